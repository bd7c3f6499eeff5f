"""Manifests of a wave in the payload store: executors bundle them, the worker reads and removes.

One object a frame would cost more than many a frame. A bundle is what ended in a moment in one
partition, so a dying executor loses at most that moment's manifests, and its frames run again.
"""

import asyncio
from contextlib import suppress

import msgspec
import structlog

from noetl_contracts import codec
from noetl_worker.domain import waves
from noetl_worker.domain.waves import FrameManifest, WavePartition
from noetl_worker.payloads.tenant_payloads import TenantPayloads

BUNDLE_S = 0.25
_OVER = b"over"

log = structlog.get_logger(__name__)


class ManifestBundler:
    """Writes what ends in one partition, a moment's manifests as one object."""

    def __init__(self, share: WavePartition, payloads: TenantPayloads) -> None:
        self._share = share
        self._payloads = payloads
        self._pending: list[bytes] = []
        self._closed = asyncio.Event()
        self._bundle_count = 0

    def add_manifest(self, manifest: bytes) -> None:
        """Take a manifest into the next bundle."""
        self._pending.append(manifest)

    def close(self) -> None:
        """Let `write_bundles` write what is left, and return."""
        self._closed.set()

    async def write_bundles(self) -> None:
        """Write what there is every moment until it is closed; raises `ToolFailure`."""
        while not self._closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(BUNDLE_S):
                    await self._closed.wait()
            await self._write_pending()
        # It may have been closed before this began.
        await self._write_pending()

    async def _write_pending(self) -> None:
        """Write what no bundle holds yet."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        number, self._bundle_count = self._bundle_count, self._bundle_count + 1
        name = waves.build_bundle_name(self._share.name, self._share.part, number)
        await self._payloads.put_named(name, b"[" + b",".join(pending) + b"]")


class WaveManifests:
    """What the store holds of one wave, as its worker, or a second task of a partition, sees it."""

    def __init__(self, wave: str, payloads: TenantPayloads) -> None:
        self._wave = wave
        self._payloads = payloads
        self._read_names: set[str] = set()

    async def read_manifests(self, part: int | None = None) -> list[bytes]:
        """Return the manifests, of one partition or of all, that were not read before.

        Raises `ToolFailure`.
        """
        stored_names = await self._payloads.list_names(f"{self._wave}/")
        unread_names = [
            name
            for name in stored_names
            if waves.is_bundle_name(name, part) and name not in self._read_names
        ]
        manifests: list[bytes] = []
        for name in unread_names:
            data = await self._payloads.find_named(name)
            if data is not None:
                manifests += _decode_bundle(data, name)
            self._read_names.add(name)
        return manifests

    async def clear_wave(self, *, parts: int, has_ended: bool) -> None:
        """Remove what the wave has left, as nobody needs it any more; raises `ToolFailure`.

        Of a job that broke off, tasks may still begin: every partition is taken first, and that it
        is stays written.
        """
        if not has_ended:
            for part in range(parts):
                await self._payloads.put_named(waves.build_claim_name(self._wave, part), _OVER)
        for name in await self._payloads.list_names(f"{self._wave}/"):
            if has_ended or waves.is_bundle_name(name, None):
                await self._payloads.delete_named(name)


def decode_manifest(data: bytes, wave: str) -> FrameManifest | None:
    """Read a manifest; one that cannot be read counts as none."""
    try:
        return codec.decode_as(data, FrameManifest)
    except msgspec.DecodeError as problem:
        # An executor of another release may have written it.
        log.warning("a manifest cannot be read", wave=wave, reason=str(problem))
        return None


def _decode_bundle(data: bytes, name: str) -> list[bytes]:
    try:
        return [bytes(item) for item in codec.decode_as(data, list[msgspec.Raw])]
    except msgspec.DecodeError as problem:
        log.warning("manifests cannot be read", bundle=name, reason=str(problem))
        return []
