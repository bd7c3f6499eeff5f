"""What a frame's rows give: held up to the frame's bytes, then put into the payload store.

A part is what was held when it became too much. At the end all of it is one result, as if nothing
had been put away; the parts are mentioned by nobody and collected.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_worker.domain.masking import Mask
from noetl_worker.stores import TenantPayloads

_PIECE_BYTES = 256 * 1024
# Rows that run at once end a little out of order, so that neighbours lie in two parts.
_PARTS_READ = 2


class _Place(Struct, frozen=True):
    """Where a row's output lies in the store."""

    part: int
    start: int
    end: int


class Outputs:
    """Plain outputs by row; with `bytes_max` 0 all of them stay in memory."""

    def __init__(self, *, payloads: TenantPayloads, mask: Mask, bytes_max: int) -> None:
        self._payloads = payloads
        self._mask = mask
        self._bytes_max = bytes_max
        self._held: dict[int, Any] = {}
        self._held_bytes = 0
        self._parts: list[PayloadRef] = []
        self._place_by_row: dict[int, _Place] = {}
        self._data_by_part: dict[int, bytes] = {}
        self._flushing = asyncio.Lock()

    @property
    def has_parts(self) -> bool:
        """Tell whether some outputs are in the store already."""
        return bool(self._parts)

    @property
    def rows(self) -> list[int]:
        """Return which rows have given something, in order."""
        return sorted(self._held.keys() | self._place_by_row.keys())

    async def put(self, row: int, value: Any) -> None:
        """Take what a row gave; raises `ToolFailure` when the store does not take a part."""
        self._held[row] = value
        if not self._bytes_max:
            return
        self._held_bytes += len(codec.encode(value))
        if self._held_bytes > self._bytes_max:
            async with self._flushing:
                await self._flush()

    async def _flush(self) -> None:
        """Put what is held into a part; what a cancelled row leaves unstored stays held."""
        held, self._held, self._held_bytes = self._held, {}, 0
        if not held:
            return
        data, places, part = bytearray(b"["), {}, len(self._parts)
        for row, value in held.items():
            start = len(data)
            data += self._encoded(value)
            places[row] = _Place(part, start, len(data))
            data += b","
        data[-1:] = b"]"
        try:
            reference = await self._payloads.store(
                bytes(data), media_type=JSON_MEDIA_TYPE, row_count=len(held)
            )
            self._parts.append(reference)
            self._place_by_row.update(places)
        finally:
            if len(self._parts) == part:
                self._held = {**held, **self._held}

    def held(self, rows: Sequence[int]) -> list[Any]:
        """Return outputs that are in memory, None where a row gave nothing."""
        return [self._held.get(row) for row in rows]

    async def all(self) -> list[tuple[int, Any]]:
        """Return every output with its row, in order; raises `ToolFailure`."""
        return [(row, codec.decode(await self._data(row))) for row in self.rows]

    async def pieces(self, rows: Sequence[int]) -> AsyncIterator[bytes]:
        """Yield the masked JSON of outputs, with commas between them; raises `ToolFailure`."""
        gathered = bytearray()
        for number, row in enumerate(rows):
            gathered += b"," if number else b""
            gathered += await self._data(row)
            if len(gathered) >= _PIECE_BYTES:
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered)

    async def _data(self, row: int) -> bytes:
        place = self._place_by_row.get(row)
        if place is None:
            return self._encoded(self._held.get(row))
        if place.part not in self._data_by_part:
            while len(self._data_by_part) >= _PARTS_READ:
                del self._data_by_part[next(iter(self._data_by_part))]
            self._data_by_part[place.part] = await self._payloads.read(self._parts[place.part])
        return self._data_by_part[place.part][place.start : place.end]

    def _encoded(self, value: Any) -> bytes:
        return self._mask.data(codec.canonical(value))
