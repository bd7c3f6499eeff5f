"""What became of the rows of frames: of those that ended here, and of those taken over."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionLayout, TakenFrame
from noetl_contracts.errors import ResultMalformed
from noetl_contracts.events.frame_events import FrameCommitted, FrameEnd, FrameFailed
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import payload_reader
from noetl_planner.api.loop_items.loop_record import LoopRecord, read_layout
from noetl_planner.loops.taken_units import TakenResults
from noetl_planner.loops.units import FramesByUnit, list_row_results
from noetl_playbook.views import result_envelope
from noetl_storage.arrow import result_values

FRAMES_PAGE = 200
_SLOT_INDEX_MAX = 2**31 - 1


class RowPlaces(Struct, frozen=True, kw_only=True):
    """Where the rows of units stand: `base` groups the whole collection, `todo` what runs of it."""

    record: LoopRecord
    base: CollectionLayout | None
    todo: CollectionLayout | None

    def get_unit_bounds(self, unit: int) -> tuple[int, int]:
        """Return the places of a unit in the collection, from the first up to the last."""
        return self.record.cut.get_unit_bounds(
            unit, None if self.base is None else self.base.offsets
        )

    def get_item_index(self, place: int) -> int:
        """Return the index of the item at a place: another one where items are grouped."""
        return place if self.base is None else self.base.order[place]

    def list_unit_items(self, unit: int) -> list[int]:
        """Return the items of a unit in its order."""
        return [self.get_item_index(place) for place in range(*self.get_unit_bounds(unit))]

    def get_unit_at(self, place: int) -> int:
        """Return the unit that a place is in."""
        low, high = 0, self.record.cut.units
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high) if self.get_unit_bounds(middle)[0] <= place else (low, middle)
            )
        return low

    def list_running_items(self, unit: int) -> list[int]:
        """Return the items of a unit that run in this execution, in the order of its frames."""
        if self.todo is None:
            return self.list_unit_items(unit)
        return self.todo.order[self.todo.offsets[unit] : self.todo.offsets[unit + 1]]


class EndedFrame(Struct, frozen=True, kw_only=True):
    """A frame that ended, and what became of its rows.

    `list_unit_items` are its items. `errors` has an entry a row: None for one that completed, the
    error of one that failed, an empty error for one that was called off. It is None where the frame
    keeps no record of its rows, and failed.
    """

    event: FrameEnd
    indexes: list[int]
    errors: list[dict[str, Any] | None] | None


class UnitFrames(Struct, frozen=True, kw_only=True):
    """All frames of a unit that ended."""

    unit: int
    ended: list[EndedFrame]
    taken: list[TakenFrame]


class FrameRows:
    """Reads the frames of a loop unit by unit, with what became of their rows."""

    def __init__(self, services: ApiServices, record: LoopRecord, places: RowPlaces) -> None:
        self._services = services
        self._record = record
        self.places = places

    async def read_units(self, *, first: int) -> AsyncIterator[UnitFrames]:
        """Yield every unit in order, from unit `first` on."""
        ended = FramesByUnit(self._iterate_ended_frames(first), lambda frame: frame.slot)
        frames_by_unit = FramesByUnit(self._iterate_taken_frames(first), lambda frame: frame.unit)
        for unit in range(first, self._record.cut.units):
            frames = await ended.take_frames(unit)
            running = self.places.list_running_items(unit)
            judged: list[EndedFrame] = []
            start = 0
            for event in frames:
                errors = await find_frame_row_errors(self._services, self._record, event)
                # Rows that were called off are not counted, and have their entries.
                count = event.row_count if errors is None else len(errors)
                if event is frames[-1] and not event.rows_left:
                    count = len(running) - start
                judged.append(
                    EndedFrame(event=event, indexes=running[start : start + count], errors=errors)
                )
                start += count
            yield UnitFrames(unit=unit, ended=judged, taken=await frames_by_unit.take_frames(unit))

    async def _iterate_ended_frames(self, first: int) -> AsyncIterator[FrameEnd]:
        stage_id = self._record.started.stage_id
        assert stage_id is not None, "only framed loops have frames"
        after = (first - 1, _SLOT_INDEX_MAX)
        while page := await self._services.history.ledger.list_frame_results(
            self._record.execution_id, stage_id, after=after, results_max=FRAMES_PAGE
        ):
            for event in page:
                yield event
            after = (page[-1].slot, page[-1].frame_index)

    async def _iterate_taken_frames(self, first: int) -> AsyncIterator[TakenFrame]:
        takeover = self._record.started.taken
        if takeover is None:
            return
        async for frame in TakenResults(self._services.payloads, takeover).read_frames(first=first):
            yield frame


async def find_frame_row_errors(
    services: ApiServices, record: LoopRecord, event: FrameEnd
) -> list[dict[str, Any] | None] | None:
    """Tell what became of each row of a frame; None where it failed and keeps no record of them."""
    if isinstance(event, FrameCommitted):
        return [None] * event.row_count
    if record.fails_whole or event.result is None:
        return None
    try:
        loaded = await result_values.load_stored_result(
            partial(payload_reader.read_payload, services), event.result
        )
        rows = list_row_results(
            result_envelope.build_plain_result(
                event.result, result_envelope.make_payload_finder(loaded)
            )
        )
    except (ApiError, ResultMalformed):
        # Too large to be read for an answer, or not what a frame keeps.
        return None
    return match_row_errors(rows, event)


async def open_frame_rows(services: ApiServices, record: LoopRecord) -> FrameRows:
    """Prepare to read the frames of a loop over a collection."""
    todo = None
    if record.started.taken is not None:
        listed = await payload_reader.read_payload(services, record.started.taken.todo_ref)
        todo = codec.convert_value(listed, CollectionLayout)
    base = await read_layout(services, record.cut)
    return FrameRows(services, record, RowPlaces(record=record, base=base, todo=todo))


def match_row_errors(rows: list[Any], event: FrameFailed) -> list[dict[str, Any] | None] | None:
    """Tell rows that failed from others by their failure records.

    None when there are not as many records as rows failed: what a row gave may look like one.
    """
    cancelled = len(rows) - event.row_count
    errors = [find_row_error(row) for row in rows]
    empty = [place for place, row in enumerate(rows) if row is None]
    if sum(error is not None for error in errors) != event.rows_failed:
        return None
    if cancelled and cancelled != len(empty):
        return None
    for place in empty if cancelled else ():
        errors[place] = {}
    return errors


def find_row_error(row: Any) -> dict[str, Any] | None:
    """Return the error of a failure record, or None for what is none."""
    if not isinstance(row, dict) or row.get("status") != "error":
        return None
    error = row.get("error")
    is_error = isinstance(error, dict) and "kind" in error and "message" in error
    return error if is_error else None
