"""A small API server of Kubernetes: Jobs, Secrets and pods whose states a test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

TOKEN = "account-token"  # noqa: S105 - of no server


class FakeCluster:
    """Keeps objects by kind and name; `play` gives the status of a pod each time it is read."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.logs: list[bytes] = []
        self.refusal: tuple[int, str] | None = None
        self.job_status: dict[str, Any] = {}
        # The pods of workers: their uids by their names.
        self.workers = {"worker-0": "uid-of-worker"}
        self.play: Callable[[int], dict[str, Any] | None] = lambda _: ended_with(0)
        self._reads = 0
        self._uids = 0

    def find(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind."""
        return [item for (own, _), item in self.objects.items() if own == kind]

    async def handle_request(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _answer(401, {"message": "Unauthorized"})
        *_, namespace, kind = request.match_info["path"].split("/")[:5][-5:]
        parts = request.match_info["path"].split("/")
        at = parts.index("namespaces")
        namespace, kind, name = parts[at + 1], parts[at + 2], "/".join(parts[at + 3 :])
        self.requests.append((request.method, f"{namespace}/{kind}/{name}".rstrip("/")))
        if self.refusal is not None:
            return _answer(self.refusal[0], {"message": self.refusal[1]})
        if kind == "pods":
            return await self._handle_pods(request, name)
        body = msgspec.json.decode(await request.read()) if request.can_read_body else {}
        return self._handle_object(request.method, kind, name, body)

    def _handle_object(self, method: str, kind: str, name: str, body: Any) -> web.Response:
        if method == "GET" and not name:
            return _answer(200, {"items": self.find(kind)})
        key = (kind, name or body["metadata"]["name"])
        if method == "POST":
            if key in self.objects:
                return _answer(409, {"message": "AlreadyExists"})
            self._uids += 1
            body["metadata"]["uid"] = f"uid-{self._uids}"
            self.objects[key] = body
            return _answer(201, body)
        if key not in self.objects:
            return _answer(404, {"message": f"{kind} {name} not found"})
        if method == "PATCH":
            self.objects[key]["spec"] |= body["spec"]
        elif method == "DELETE":
            wanted = (body.get("preconditions") or {}).get("uid")
            if wanted not in (None, self.objects[key]["metadata"]["uid"]):
                return _answer(409, {"message": "the UID in the precondition does not match"})
            removed = self.objects.pop(key)
            self.objects.pop(("secrets", name), None)
            return _answer(200, removed)
        return _answer(200, {**self.objects[key], "status": self.job_status})

    async def _handle_pods(self, request: web.Request, name: str) -> web.StreamResponse:
        if name.endswith("/log"):
            return await self._send_log(request)
        if name in self.workers:
            return _answer(200, {"metadata": {"name": name, "uid": self.workers[name]}})
        job = name.removesuffix("-pod") or self._find_job(request.query["labelSelector"])
        if request.method == "DELETE":
            return _answer(200, {"items": []})
        status = None
        if ("jobs", job) in self.objects and not self.objects["jobs", job]["spec"]["suspend"]:
            status = self.play(self._reads)
            self._reads += 1
        if status is None:
            return _answer(404, {"message": "gone"}) if name else _answer(200, {"items": []})
        pod = {"metadata": {"name": f"{job}-pod"}, "status": status}
        return _answer(200, pod if name else {"items": [pod]})

    def _find_job(self, selector: str) -> str:
        label, _, value = selector.partition("=")
        if label == "job-name":
            return value
        assert label == "controller-uid", selector
        uids = {key: found["metadata"]["uid"] for key, found in self.objects.items()}
        return next((key[1] for key, uid in uids.items() if uid == value), "")

    async def _send_log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if self.logs:
            await response.write(self.logs.pop(0))
        await response.write_eof()
        return response


def ended_with(code: int, **more: Any) -> dict[str, Any]:
    """The status of a pod whose container has ended."""
    terminated = {
        "exitCode": code,
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:00:01Z",
        **more,
    }
    phase = "Succeeded" if code == 0 else "Failed"
    return {"phase": phase, "containerStatuses": [{"state": {"terminated": terminated}}]}


def running() -> dict[str, Any]:
    """The status of a pod whose container runs."""
    return {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """The status of a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


@asynccontextmanager
async def serve_cluster(folder: Path) -> AsyncIterator[tuple[FakeCluster, str]]:
    """Serve a cluster, and write the account of a worker into a folder."""
    for name, text in (("token", TOKEN), ("namespace", "jobs"), ("ca.crt", "")):
        await asyncio.to_thread((folder / name).write_text, text)
    cluster = FakeCluster()
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", cluster.handle_request)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield cluster, f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def _answer(status: int, body: Any) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )
