"""What one unit gave, as the collector writes it down; and units that one worker ran as a whole."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.errors import ResultMalformed
from noetl_contracts.events.frame import FrameEnd, FrameFailed
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.slicing import Layout
from noetl_playbook import carried, error_view
from noetl_playbook.parts import Part
from noetl_replay.state import LoopState
from noetl_storage.envelopes import Load

Open = Callable[[ResultEnvelope], Awaitable[Any]]


class Unit(Struct, frozen=True, kw_only=True):
    """What one unit gave: its part of the outcome, and its entries in `results`."""

    part: Part
    results: list[Any]


class InsideUnits:
    """Reads the units of a frame that its worker cut: their list, and what each of them kept."""

    def __init__(self, *, load: Load, open_result: Open) -> None:
        self._load = load
        self._open = open_result

    async def read(
        self, event: FrameEnd, loop: LoopState, layout: Layout | None
    ) -> AsyncIterator[Unit]:
        """Yield the units in order; a loop whose command never ran failed as one."""
        if event.units is None or event.units.parts_ref is None:
            yield _failed(event, loop)
            return
        listed = carried.read_as(await self._load(event.units.parts_ref), list[Part])
        found = [await self._unit(part, loop, layout) for part in listed]
        if layout is not None and not loop.counts_frames:
            found = regrouped(found, layout.order)
        for unit in found:
            yield unit

    async def _unit(self, part: Part, loop: LoopState, layout: Layout | None) -> Unit:
        results: list[Any] = []
        if part.result is not None:
            results = entries(await self._open(part.result))
        missing = _entries(part, loop, layout) - len(results)
        return Unit(part=part, results=[*results, *([None] * missing)])


def entries(value: Any) -> list[Any]:
    """Return what a frame gave, an entry a row; raises `ResultMalformed`."""
    results = value.get("results") if isinstance(value, dict) else None
    if not isinstance(results, list):
        raise ResultMalformed("the result of a frame lists no results")
    return results


def regrouped(units: list[Unit], order: list[int]) -> list[Unit]:
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


def failure(event: FrameEnd) -> dict[str, Any]:
    """Return what stands in `results` for what a failed frame would have given."""
    assert isinstance(event, FrameFailed), "a committed frame has its results"
    return {"status": "error", "error": error_view.shown(codec.builtins(event.error))}


def _failed(event: FrameEnd, loop: LoopState) -> Unit:
    assert isinstance(event, FrameFailed), "a committed frame has its results"
    part = Part(index=0, key="0", status="error", error=codec.builtins(event.error))
    return Unit(part=part, results=[failure(event)] * loop.total)


def _entries(part: Part, loop: LoopState, layout: Layout | None) -> int:
    """Count what a unit has in `results`."""
    if loop.counts_frames:
        return 1
    assert loop.cut is not None, "only framed loops come here"
    inner = structs.replace(loop.cut, units=loop.cut.units_all, inside=None)
    first, end = inner.bounds(part.index, None if layout is None else layout.offsets)
    return end - first
