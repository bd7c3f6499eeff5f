"""Reads the frames of an ended loop unit by unit, and encodes the results of the units."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionLayout
from noetl_contracts.errors import ResultMalformed
from noetl_contracts.events.frame_events import FrameEnd, FrameFailed
from noetl_contracts.payloads import ResultEnvelope
from noetl_playbook.views import error_view, result_envelope
from noetl_playbook.views.loop_parts import FAILED_ITEMS_MAX, FailedRow, LoopPart
from noetl_replay.state import LoopState
from noetl_storage.arrow.result_values import Load

Frame = TypeVar("Frame")


class FramesByUnit(Generic[Frame]):
    """Reads frames as far as the unit that is asked for; one frame is held ahead."""

    def __init__(self, frames: AsyncIterator[Frame], unit_of: Callable[[Frame], int]) -> None:
        self._frames = frames
        self._unit_of = unit_of
        self._next: Frame | None = None
        self._is_over = False

    async def take_frames(self, unit: int) -> list[Frame]:
        """Return the frames of a unit; units are asked for in their order."""
        frames: list[Frame] = []
        while not self._is_over:
            if self._next is None:
                self._next = await anext(self._frames, None)
            if self._next is None:
                self._is_over = True
            elif self._unit_of(self._next) == unit:
                frames.append(self._next)
                self._next = None
            else:
                break
        return frames


Open = Callable[[ResultEnvelope], Awaitable[Any]]


class UnitResult(Struct, frozen=True, kw_only=True):
    """What one unit gave: its part of the outcome, and its entries in `results`."""

    part: LoopPart
    results: list[Any]


class LocalUnitReader:
    """Reads the units of a frame that its worker cut: their list, and what each of them kept."""

    def __init__(self, *, load: Load, open_result: Open) -> None:
        self._load = load
        self._open = open_result

    async def read_units(
        self, event: FrameEnd, loop: LoopState, layout: CollectionLayout | None
    ) -> AsyncIterator[UnitResult]:
        """Yield the units in order; a loop whose command never ran failed as one."""
        if event.units is None or event.units.parts_ref is None:
            yield _build_failed_unit(event, loop)
            return
        listed = result_envelope.convert_stored(
            await self._load(event.units.parts_ref), list[LoopPart]
        )
        unit_results = [await self._read_unit(part, loop, layout) for part in listed]
        if layout is not None and not loop.counts_frames:
            unit_results = restore_item_order(unit_results, layout.order)
        for unit in unit_results:
            yield unit

    async def _read_unit(
        self, part: LoopPart, loop: LoopState, layout: CollectionLayout | None
    ) -> UnitResult:
        results: list[Any] = []
        if part.result is not None:
            results = list_row_results(await self._open(part.result))
        missing = _count_row_results(part, loop, layout) - len(results)
        return UnitResult(part=part, results=[*results, *([None] * missing)])


def list_row_results(value: Any) -> list[Any]:
    """Return what a frame gave, an entry a row; raises `ResultMalformed`."""
    results = value.get("results") if isinstance(value, dict) else None
    if not isinstance(results, list):
        raise ResultMalformed("the result of a frame lists no results")
    return results


def restore_item_order(units: list[UnitResult], order: list[int]) -> list[UnitResult]:
    """Return the results of units to the places that their items had; the first unit has all.

    Raises `ResultMalformed` when they are not as many.
    """
    values: list[Any] = [None] * len(order)
    flat = [value for unit in units for value in unit.results]
    if len(flat) != len(order):
        raise ResultMalformed(f"{len(order)} items have {len(flat)} results")
    for place, value in zip(order, flat, strict=True):
        values[place] = value
    return [
        structs.replace(unit, results=values if position == 0 else [])
        for position, unit in enumerate(units)
    ]


def build_failure_record(event: FrameEnd) -> dict[str, Any]:
    """Return what stands in `results` for what a failed frame would have given."""
    assert isinstance(event, FrameFailed), "a committed frame has its results"
    return {"status": "error", "error": error_view.show_error(codec.to_builtins(event.error))}


def _build_failed_unit(event: FrameEnd, loop: LoopState) -> UnitResult:
    """Give every item of a loop that one worker was to run the error of its one frame."""
    assert isinstance(event, FrameFailed), "a committed frame has its results"
    part = LoopPart(index=0, key="0", status="error", error=codec.to_builtins(event.error))
    return UnitResult(part=part, results=[build_failure_record(event)] * loop.total)


def _count_row_results(part: LoopPart, loop: LoopState, layout: CollectionLayout | None) -> int:
    """Count what a unit has in `results`."""
    if loop.counts_frames:
        return 1
    assert loop.cut is not None, "only framed loops come here"
    inner = structs.replace(loop.cut, units=loop.cut.total_units, inside=None)
    first, end = inner.get_unit_bounds(part.index, None if layout is None else layout.offsets)
    return end - first


def counts_rows(loop: LoopState) -> bool:
    """Tell whether each item of a loop counts, though its units hold several."""
    return loop.cut is not None and loop.mode != "fanout" and not loop.counts_frames


class UnitEncoder:
    """Encodes units as they come: results into a stream, parts into a list."""

    def __init__(
        self, units: AsyncIterator[UnitResult], parts: list[bytes], loop: LoopState
    ) -> None:
        self._units = units
        self._loop = loop
        self._rows_left = FAILED_ITEMS_MAX
        self._parts = parts
        self.count = 0
        self.is_over = False

    async def read_head(self, bytes_max: int) -> bytes:
        """Read on until everything is read, or until there is more than fits."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self._encode_units():
            pieces.append(piece)
            size += len(piece) + 1
            if size > bytes_max:
                return b",".join(pieces)
        self.is_over = True
        return b",".join(pieces)

    async def stream_payload(self, head: bytes, *, tail: bytes) -> AsyncIterator[bytes]:
        """Yield the whole payload of a loop's result."""
        yield b'{"results":[' + head
        async for piece in self._encode_units():
            yield b"," + piece
        yield b'],"stats":' + tail + b"}"

    async def _encode_units(self) -> AsyncIterator[bytes]:
        async for unit in self._units:
            self._parts.append(codec.encode_json(self._add_failed_rows(unit)))
            if unit.results:
                self.count += len(unit.results)
                yield codec.encode_json(unit.results)[1:-1]

    def _add_failed_rows(self, unit: UnitResult) -> LoopPart:
        """Return a unit's part with the items that failed in it, a bounded number for the loop."""
        if unit.part.status != "error" or not counts_rows(self._loop):
            return unit.part
        rows = [
            FailedRow(index=index, key=f"{self._loop.run_id}:{index}", error=record["error"])
            for index, record in enumerate(unit.results, start=self.count)
            if _is_failure_record(record, self._loop.step)
        ][: self._rows_left]
        self._rows_left -= len(rows)
        return structs.replace(unit.part, failed_rows=rows)


def _is_failure_record(value: Any, step: str) -> bool:
    """Tell what stands for an item that failed from a result that a tool gave."""
    if not isinstance(value, dict) or value.get("status") != "error":
        return False
    error = value.get("error")
    return isinstance(error, dict) and "kind" in error and error.get("step") == step
