"""What a loop took over from an earlier execution, read part by part."""

from collections.abc import AsyncIterator

from noetl_contracts import codec
from noetl_contracts.slicing import PartList
from noetl_contracts.taken_items import TakenFrame, TakenItem, TakenItems
from noetl_storage.ports import Payloads


class TakenResults:
    """Reads the results of one loop's items or frames that do not run; a part is held at once."""

    def __init__(self, payloads: Payloads, taken: TakenItems) -> None:
        self._payloads = payloads
        self._taken = taken

    async def read_items(
        self, *, first: int = 0, end: int | None = None
    ) -> AsyncIterator[TakenItem]:
        """Yield items in order: those from index `first` up to `end`."""
        async for data in self._read_parts(first, end):
            for item in codec.decode_as(data, list[TakenItem]):
                if item.index >= first and (end is None or item.index < end):
                    yield item

    async def read_frames(
        self, *, first: int = 0, end: int | None = None
    ) -> AsyncIterator[TakenFrame]:
        """Yield frames in order: those of the units from `first` up to `end`."""
        async for data in self._read_parts(first, end):
            for frame in codec.decode_as(data, list[TakenFrame]):
                if frame.unit >= first and (end is None or frame.unit < end):
                    yield frame

    async def _read_parts(self, first: int, end: int | None) -> AsyncIterator[bytes]:
        listed = codec.decode_as(await self._payloads.read(self._taken.results_ref), PartList)
        for part in listed.parts:
            if part.end > first and (end is None or part.start < end):
                yield await self._payloads.read(part.ref)
