"""The value behind a reference, its rows gathered when they lie in many objects."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from noetl_contracts import spread
from noetl_contracts.errors import LocatorError
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.spread import SPREAD_MEDIA_TYPE
from noetl_storage import arrow_values, encoding
from noetl_storage.arrow_values import UnshownValue
from noetl_storage.encoding import DECODED_BYTES_MAX, PayloadUnreadable

Read = Callable[[PayloadRef], Awaitable[bytes]]


async def load(read: Read, ref: PayloadRef, *, bytes_max: int = DECODED_BYTES_MAX) -> Any:
    """Return the decoded value of a reference; `read` gives stored bytes.

    Raises what `read` raises, `PayloadUnreadable`, and `msgspec.DecodeError` for damaged JSON.
    """
    return await gather(encoding.decode(await read(ref), bytes_max=bytes_max), ref, read)


async def gather(value: Any, ref: PayloadRef, read: Read) -> Any:
    """Put the rows of a payload's parts in the place of their marker; raises as `load`."""
    if ref.media_type != SPREAD_MEDIA_TYPE:
        return value
    task = spread.path_of(value)
    if task is None:
        return value
    try:
        found = spread.of_result(value, owner=ref)
    except (LocatorError, msgspec.ValidationError) as failure:
        raise PayloadUnreadable(f"the parts of {ref.sha256} cannot be used: {failure}") from failure
    assert found is not None, "the task was found by its marker"
    rows: list[Any] = []
    for part in found.parts:
        # Large tables would keep the event loop from its heartbeats.
        rows += await asyncio.to_thread(rows_of_table, await read(part))
    return spread.with_rows(value, task, rows)


def rows_of_table(data: bytes) -> list[dict[str, Any]]:
    """Read the rows of a bare table as JSON values; raises `PayloadUnreadable`."""
    table = encoding.read_table(data)
    found: list[dict[str, Any]] = []
    try:
        for batch in table.to_batches():
            found += arrow_values.rows_of(batch, [""] * batch.num_columns)
    except UnshownValue as failure:
        raise PayloadUnreadable(str(failure)) from failure
    return found
