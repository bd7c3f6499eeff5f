"""Units of a loop whose frames were taken over from an earlier execution, or ran again, in part."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.events.frame import FrameEnd, FrameFailed
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.slicing import Layout
from noetl_contracts.taken_items import TakenFrame, TakenFrames
from noetl_planner.shell.frames_by_unit import FramesByUnit
from noetl_planner.shell.gathered import Unit
from noetl_playbook.parts import Part

Rows = Callable[[FrameEnd], Awaitable[list[Any]]]
Open = Callable[[ResultEnvelope], Awaitable[list[Any]]]
Keep = Callable[[list[Any]], Awaitable[ResultEnvelope]]


class MergedUnits(Struct, frozen=True, kw_only=True):
    """Puts the rows that ran into the places that they have among those that were taken over.

    `todo` says which rows ran, `base` how the whole collection was grouped, if it was. `rows` reads
    what an ended frame gave, `open_rows` what a frame that is taken over gave, and `keep` stores
    what a unit gave in all. `is_fanout` says that a unit of one row gives that row's result.
    """

    taken: TakenFrames
    todo: Layout
    base: Layout | None
    is_fanout: bool
    rows: Rows
    open_rows: Open
    keep: Keep

    async def read(
        self, ended: AsyncIterator[FrameEnd], taken: AsyncIterator[TakenFrame]
    ) -> AsyncIterator[Unit]:
        """Yield units in order, from the frames that ended here and those that are taken over."""
        ended_frames = FramesByUnit(ended, lambda frame: frame.slot)
        taken_frames = FramesByUnit(taken, lambda frame: frame.unit)
        index = 0
        for unit in range(self.taken.cut.units):
            ran, found = await ended_frames.take(unit), await taken_frames.take(unit)
            has_rows = self.todo.offsets[unit] < self.todo.offsets[unit + 1]
            if has_rows or not all(frame.is_whole for frame in found):
                yield await self._merge(unit, index, ran, found)
                index += 1
                continue
            for frame in found:
                yield await self._take(unit, index, frame)
                index += 1

    async def _take(self, unit: int, index: int, frame: TakenFrame) -> Unit:
        """Show a frame that did not run: its part is the one that it was."""
        rows = [] if frame.result is None else await self.open_rows(frame.result)
        part = Part(
            index=index,
            key=frame.key or str(index),
            result=frame.result,
            row_count=frame.row_count,
            is_single=self._is_single(unit),
        )
        return Unit(part=part, results=rows)

    async def _merge(
        self, unit: int, index: int, ran: list[FrameEnd], found: list[TakenFrame]
    ) -> Unit:
        """Show a unit of which rows ran; those that did not get to run are null."""
        by_index: dict[int, Any] = {}
        for frame in found:
            rows = [] if frame.result is None else await self.open_rows(frame.result)
            by_index |= {
                place: row for place, row in zip(frame.places(), rows, strict=True) if place >= 0
            }
        first, end = self.todo.offsets[unit], self.todo.offsets[unit + 1]
        rows = [row for event in ran for row in await self.rows(event)]
        is_whole = self.taken.counts_frames
        places = [unit] if is_whole else self.todo.order[first:end]
        by_index |= dict(zip(places, rows, strict=False))
        error = next((event.error for event in ran if isinstance(event, FrameFailed)), None)
        indexes = [unit] if is_whole else self._indexes(unit)
        results = [by_index.get(place) for place in indexes]
        status = "ok" if all(place in by_index for place in indexes) else "cancelled"
        keys = [event.key for event in (*ran, *found) if event.key is not None]
        part = Part(
            index=index,
            key=keys[0] if keys else str(index),
            status="error" if error is not None else status,
            result=ran[0].result if is_whole and ran else await self.keep(results),
            error=None if error is None else codec.builtins(error),
            row_count=len(self._indexes(unit)),
            is_single=self._is_single(unit),
        )
        return Unit(part=part, results=results)

    def _indexes(self, unit: int) -> list[int]:
        """Return the items of a unit in its order."""
        offsets = None if self.base is None else self.base.offsets
        first, end = self.taken.cut.bounds(unit, offsets)
        return list(range(first, end)) if self.base is None else self.base.order[first:end]

    def _is_single(self, unit: int) -> bool:
        return self.taken.counts_frames or (self.is_fanout and len(self._indexes(unit)) == 1)
