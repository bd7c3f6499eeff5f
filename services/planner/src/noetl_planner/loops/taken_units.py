"""What a loop took over from an earlier execution, read part by part."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import (
    CollectionLayout,
    PartList,
    TakenFrame,
    TakenFrames,
    TakenItem,
    TakenItems,
)
from noetl_contracts.events.frame_events import FrameEnd, FrameFailed
from noetl_contracts.payloads import ResultEnvelope
from noetl_planner.loops.units import FramesByUnit, UnitResult
from noetl_playbook.views.loop_parts import LoopPart
from noetl_storage.ports.ledger_ports import Payloads

Rows = Callable[[FrameEnd], Awaitable[list[Any]]]
Open = Callable[[ResultEnvelope], Awaitable[list[Any]]]
Keep = Callable[[list[Any]], Awaitable[ResultEnvelope]]


class TakenResults:
    """Reads the results of one loop's items or frames that do not run; a part is held at once."""

    def __init__(self, payloads: Payloads, takeover: TakenItems) -> None:
        self._payloads = payloads
        self._takeover = takeover

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
        listed = codec.decode_as(
            await self._payloads.read_payload(self._takeover.results_ref), PartList
        )
        for part in listed.parts:
            if part.end > first and (end is None or part.start < end):
                yield await self._payloads.read_payload(part.ref)


class UnitMerger(Struct, frozen=True, kw_only=True):
    """Puts the rows that ran into the places that they have among those that were taken over.

    `todo` says which rows ran, `base` how the whole collection was grouped, if it was. `rows` reads
    what an ended frame gave, `open_rows` what a frame that is taken over gave, and `keep` stores
    what a unit gave in all. `is_fanout` says that a unit of one row gives that row's result.
    """

    taken_frames: TakenFrames
    todo: CollectionLayout
    base: CollectionLayout | None
    is_fanout: bool
    rows: Rows
    open_rows: Open
    keep: Keep

    async def read_units(
        self, ended: AsyncIterator[FrameEnd], earlier_frames: AsyncIterator[TakenFrame]
    ) -> AsyncIterator[UnitResult]:
        """Yield units in order, from the frames that ended here and those that are taken over."""
        ended_frames = FramesByUnit(ended, lambda frame: frame.slot)
        taken_frames = FramesByUnit(earlier_frames, lambda frame: frame.unit)
        index = 0
        for unit in range(self.taken_frames.cut.units):
            ran, frames = await ended_frames.take_frames(unit), await taken_frames.take_frames(unit)
            has_rows = self.todo.offsets[unit] < self.todo.offsets[unit + 1]
            if has_rows or not all(frame.is_complete for frame in frames):
                yield await self._merge_unit(unit, index, ran, frames)
                index += 1
                continue
            for frame in frames:
                yield await self._view_taken_frame(unit, index, frame)
                index += 1

    async def _view_taken_frame(self, unit: int, index: int, frame: TakenFrame) -> UnitResult:
        """Show a frame that did not run: its part is the one that it was."""
        rows = [] if frame.result is None else await self.open_rows(frame.result)
        part = LoopPart(
            index=index,
            key=frame.key or str(index),
            result=frame.result,
            row_count=frame.row_count,
            is_single=self._is_single(unit),
        )
        return UnitResult(part=part, results=rows)

    async def _merge_unit(
        self, unit: int, index: int, ran: list[FrameEnd], taken_frames: list[TakenFrame]
    ) -> UnitResult:
        """Show a unit of which rows ran; those that did not get to run are null."""
        by_index: dict[int, Any] = {}
        for frame in taken_frames:
            rows = [] if frame.result is None else await self.open_rows(frame.result)
            by_index |= {
                place: row
                for place, row in zip(frame.list_item_indexes(), rows, strict=True)
                if place >= 0
            }
        first, end = self.todo.offsets[unit], self.todo.offsets[unit + 1]
        rows = [row for event in ran for row in await self.rows(event)]
        is_whole = self.taken_frames.counts_frames
        places = [unit] if is_whole else self.todo.order[first:end]
        by_index |= dict(zip(places, rows, strict=False))
        error = next((event.error for event in ran if isinstance(event, FrameFailed)), None)
        indexes = [unit] if is_whole else self._list_unit_indexes(unit)
        results = [by_index.get(place) for place in indexes]
        status = "ok" if all(place in by_index for place in indexes) else "cancelled"
        keys = [event.key for event in (*ran, *taken_frames) if event.key is not None]
        part = LoopPart(
            index=index,
            key=keys[0] if keys else str(index),
            status="error" if error is not None else status,
            result=ran[0].result if is_whole and ran else await self.keep(results),
            error=None if error is None else codec.to_builtins(error),
            row_count=len(self._list_unit_indexes(unit)),
            is_single=self._is_single(unit),
        )
        return UnitResult(part=part, results=results)

    def _list_unit_indexes(self, unit: int) -> list[int]:
        """Return the items of a unit in its order."""
        offsets = None if self.base is None else self.base.offsets
        first, end = self.taken_frames.cut.get_unit_bounds(unit, offsets)
        return list(range(first, end)) if self.base is None else self.base.order[first:end]

    def _is_single(self, unit: int) -> bool:
        return self.taken_frames.counts_frames or (
            self.is_fanout and len(self._list_unit_indexes(unit)) == 1
        )
