"""A registry that asks for a user: it serves one image that this machine's Docker has."""

import asyncio
import hashlib
import json
import tarfile
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from tests.support.containers import run_docker

USER, PASSWORD = "robot", "pull-token"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_EXPECTED = "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class PrivateRegistry:
    """Blobs by digest, and one manifest for all names; counts who was let in and refused."""

    def __init__(self, image: str, folder: Path) -> None:
        self.refused = 0
        self.admitted = 0
        self.port = 0
        self._blobs: dict[str, bytes] = {}
        saved = folder / "image.tar"
        run_docker("save", "--output", str(saved), image)
        with tarfile.open(saved) as archive:
            (told,) = json.loads(_read_member(archive, "manifest.json"))
            config = self._add_blob(_read_member(archive, told["Config"]))
            layers = [self._add_blob(_read_member(archive, name)) for name in told["Layers"]]
        kinds = {"config": "container.image.v1+json", "layer": "image.rootfs.diff.tar"}
        described = {kind: f"application/vnd.docker.{name}" for kind, name in kinds.items()}
        self._manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": described["config"], **config},
                "layers": [{"mediaType": described["layer"], **layer} for layer in layers],
            }
        ).encode()

    def _add_blob(self, data: bytes) -> dict[str, str | int]:
        digest = _digest(data)
        self._blobs[digest] = data
        return {"digest": digest, "size": len(data)}

    async def answer(self, request: web.Request) -> web.Response:
        """Answer as registries do: 401 names how to sign in."""
        if request.headers.get("Authorization") != _EXPECTED:
            self.refused += 1
            challenge = {"WWW-Authenticate": 'Basic realm="private"'}
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
            return web.json_response(errors, status=401, headers=challenge)
        # Docker asks for no more than the digest where it has the layers already.
        self.admitted += 1
        path = request.path
        if "/manifests/" in path:
            headers = {"Docker-Content-Digest": _digest(self._manifest)}
            return web.Response(body=self._manifest, content_type=MANIFEST, headers=headers)
        if "/blobs/" in path:
            return web.Response(body=self._blobs[path.rpartition("/")[2]])
        return web.json_response({})


@asynccontextmanager
async def private_registry(image: str, folder: Path) -> AsyncIterator[PrivateRegistry]:
    """Serve an image on loopback, which Docker trusts without a certificate."""
    registry = await asyncio.to_thread(PrivateRegistry, image, folder)
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", registry.answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        registry.port = int(runner.addresses[0][1])
        yield registry
    finally:
        await runner.cleanup()


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None, name
    return member.read()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
