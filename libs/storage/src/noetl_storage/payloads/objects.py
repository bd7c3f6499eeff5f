"""Port of an object store: bytes by key. Digests, names, seals and owners are handled above it.

Every call blocks and is made inside `translate_errors`, which turns what the driver raises into
`KeyError` for a missing object, `FileExistsError` for a taken key, and else an error of storage.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from http import HTTPStatus
from typing import IO, ParamSpec, Protocol, TypeVar

from msgspec import Struct

P = ParamSpec("P")
R = TypeVar("R")

CHUNK_BYTES = 1024 * 1024
SPOOL_BYTES = 8 * 1024 * 1024
_PASSING = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)


class ObjectInfo(Struct, frozen=True, kw_only=True):
    """An object as a listing shows it."""

    key: str
    stored_bytes: int
    modified_at: datetime


class ObjectReader(Protocol):
    """An object that is being read."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes, and none at the end."""

    def close(self) -> None:
        """Stop reading."""


class CallRunner(Protocol):
    """Where blocking calls run."""

    async def run_call(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call and wait for its result."""


class Objects(Protocol):
    """One bucket, folder or mapping."""

    def translate_errors(self, key: str) -> AbstractContextManager[None]:
        """Translate what the driver raises while a call for this key runs."""

    def store_object(self, key: str, data: bytes, media_type: str) -> None:
        """Write an object, replacing the one before as a whole; its time is now."""

    def store_object_once(self, key: str, data: bytes) -> None:
        """Write an object; raises `FileExistsError` when there is one."""

    def open_staging(self) -> IO[bytes]:
        """Open a place where a stream gathers before its key is known."""

    def store_staged(self, key: str, staging_file: IO[bytes], media_type: str) -> None:
        """Write what was staged, as `store_object` does."""

    def discard_staged(self, staging_file: IO[bytes]) -> None:
        """Close what was staged and leave nothing of it but what was stored."""

    def read_object(self, key: str) -> bytes:
        """Return an object; raises `KeyError`."""

    def open_object(self, key: str) -> ObjectReader:
        """Begin to read an object; raises `KeyError`."""

    def find_object(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""

    def delete_object(self, key: str) -> None:
        """Remove an object; removing what is not there is no error."""

    def move_object(self, key: str, to: str) -> None:
        """Move an object, replacing the one there; its time is now. Raises `KeyError`.

        There is no moment at which it is at neither place, unless the move takes no time at all.
        """

    def iterate_objects_under(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with a prefix and lies behind another, in order."""


class InlineRunner:
    """Runs calls where they are made: for objects that are in memory."""

    async def run_call(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call at once."""
        return call(*args, **kwargs)


def is_request_refused(status: int | None) -> bool:
    """Tell whether an answer blames the request: asking for hours would not help."""
    if status is None or not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return False
    return status not in _PASSING


async def cut_into_chunks(data: bytes) -> AsyncIterator[bytes]:
    """Yield large content piece by piece."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


async def join_small_pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces of any size joined until they are large enough, the last one as it is."""
    joined_pieces: list[bytes] = []
    size = 0
    async for piece in pieces:
        joined_pieces.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(joined_pieces)
            joined_pieces, size = [], 0
    if joined_pieces:
        yield b"".join(joined_pieces)
