"""Payloads in memory: the reference adapter."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from io import BytesIO
from typing import IO

from noetl_storage.payloads.objects import CallRunner, InlineRunner, ObjectInfo, ObjectReader
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.payload_ports import ObjectSeals

_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryObjects:
    """Keeps every object in one mapping by key; without a clock all are of one age."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: _NO_TIME) -> None:
        self.bytes_by_key: dict[str, bytes] = {}
        self._modified_at: dict[str, datetime] = {}
        self._now = now

    def translate_errors(self, key: str) -> AbstractContextManager[None]:  # noqa: ARG002 - nothing is raised that needs a name
        """Translate nothing: a mapping raises what the port names."""
        return nullcontext()

    def store_object(self, key: str, data: bytes, media_type: str) -> None:  # noqa: ARG002 - nobody asks for it again
        """Write an object, replacing the one before."""
        self.bytes_by_key[key] = data
        self._modified_at[key] = self._now()

    def store_object_once(self, key: str, data: bytes) -> None:
        """Write an object; raises `FileExistsError` when there is one."""
        if key in self.bytes_by_key:
            raise FileExistsError(key)
        self.store_object(key, data, "")

    def open_staging(self) -> IO[bytes]:
        """Open a place where a stream gathers."""
        return BytesIO()

    def store_staged(self, key: str, staging_file: IO[bytes], media_type: str) -> None:
        """Write what was staged."""
        staging_file.seek(0)
        self.store_object(key, staging_file.read(), media_type)

    def discard_staged(self, staging_file: IO[bytes]) -> None:
        """Close what was staged."""
        staging_file.close()

    def read_object(self, key: str) -> bytes:
        """Return an object; raises `KeyError`."""
        return self.bytes_by_key[key]

    def open_object(self, key: str) -> ObjectReader:
        """Begin to read an object; raises `KeyError`."""
        return BytesIO(self.bytes_by_key[key])

    def find_object(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        data = self.bytes_by_key.get(key)
        if data is None:
            return None
        modified_at = self._modified_at.get(key, _NO_TIME)
        return ObjectInfo(key=key, stored_bytes=len(data), modified_at=modified_at)

    def delete_object(self, key: str) -> None:
        """Remove an object; removing what is not there is no error."""
        self.bytes_by_key.pop(key, None)
        self._modified_at.pop(key, None)

    def move_object(self, key: str, to: str) -> None:
        """Move an object; raises `KeyError`."""
        self.store_object(to, self.bytes_by_key[key], "")
        self.delete_object(key)

    def iterate_objects_under(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects under a prefix and behind a key, in order, as they were when asked."""
        for key in sorted(key for key in self.bytes_by_key if key.startswith(prefix)):
            if key <= after:
                continue
            if (object_info := self.find_object(key)) is not None:
                yield object_info


class MemoryPayloads(PayloadStore):
    """Payloads that end with the process."""

    def __init__(
        self,
        *,
        seals: ObjectSeals | None = None,
        runner: CallRunner | None = None,
        now: Callable[[], datetime] = lambda: _NO_TIME,
    ) -> None:
        objects = MemoryObjects(now=now)
        self.bytes_by_key = objects.bytes_by_key
        super().__init__(objects, runner=runner or InlineRunner(), seals=seals)
