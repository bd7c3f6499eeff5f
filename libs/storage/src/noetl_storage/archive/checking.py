"""Whether a unit of the archive is what its manifest says, by reading all of it back."""

from collections.abc import Iterator

from noetl_contracts import codec, stored
from noetl_contracts.archives import Kept, Manifest, Part
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.stored import StoredEvent
from noetl_storage.archive import units
from noetl_storage.archive.packing import parquet
from noetl_storage.errors import PayloadCorrupt
from noetl_storage.ports import Payloads


class _Follower:
    """Follows the histories of a manifest, event by event."""

    def __init__(self, manifest: Manifest) -> None:
        self._expected = iter(manifest.histories)
        self._current: Kept | None = None
        self._version = 0
        self._checksum = codec.CHECKSUM_NONE

    def take(self, one: StoredEvent, part: Part) -> None:
        """Take the event that follows; raises `PayloadCorrupt` when it does not."""
        current = self._current
        if current is None or one.execution_id != current.execution_id:
            current = self._begin(one, part)
        is_next = one.stream_version == self._version + 1
        if not is_next or not stored.is_sealed(one, self._checksum):
            raise PayloadCorrupt(
                f"{part.name}: version {one.stream_version} of execution {one.execution_id} is not "
                f"what was sealed behind version {self._version}"
            )
        self._version, self._checksum = one.stream_version, one.envelope_checksum

    def _begin(self, one: StoredEvent, part: Part) -> Kept:
        self._check_end()
        following = next(self._expected, None)
        if following is None or one.execution_id != following.execution_id:
            raise PayloadCorrupt(
                f"{part.name} holds execution {one.execution_id} where the manifest names "
                f"{'none' if following is None else following.execution_id}"
            )
        self._current = following
        self._version, self._checksum = following.first_version - 1, following.previous
        return following

    def end(self) -> None:
        """Have seen everything; raises `PayloadCorrupt` when something did not come."""
        self._check_end()
        missing = next(self._expected, None)
        if missing is not None:
            raise PayloadCorrupt(f"no part holds execution {missing.execution_id}")

    def _check_end(self) -> None:
        kept = self._current
        if kept is None or (self._version, self._checksum) == (kept.last_version, kept.checksum):
            return
        raise PayloadCorrupt(
            f"execution {kept.execution_id} ends at version {self._version} of the archive; its "
            f"manifest says {kept.last_version}"
        )


async def verify(store: Payloads, manifest: Manifest) -> int:
    """Read everything back and return how many events it is.

    Every version of every history must be there once, each event as it was sealed behind the one
    before, the last one as the manifest says. Raises `PayloadMissing` or `PayloadCorrupt`.
    """
    follower = _Follower(manifest)
    events = 0
    for part in manifest.parts:
        for one in _decoded(part, await units.read_part(store, manifest.unit, part)):
            follower.take(one, part)
            events += 1
    follower.end()
    if manifest.mentions is not None:
        await units.read_part(store, manifest.unit, manifest.mentions)
    return events


def _decoded(part: Part, data: bytes) -> Iterator[StoredEvent]:
    try:
        yield from parquet.decode(data)
    except MalformedMessage as failure:
        raise PayloadCorrupt(f"{part.name}: {failure}") from failure
