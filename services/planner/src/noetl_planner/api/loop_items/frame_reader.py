"""Items of loops whose units are frames: a row of a frame each, where frames record their rows."""

from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.errors import TRIES_MAX
from noetl_contracts.events.frame_events import FrameAbandoned, FrameEnd, FrameFailed
from noetl_contracts.ids import FrameId
from noetl_contracts.status import FrameStatus
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.loop_items.frame_rows import EndedFrame, FrameRows, UnitFrames
from noetl_planner.api.loop_items.loop_record import CollectionReader, LoopRecord
from noetl_planner.api.loop_items.views import FramePlace, ItemState, ItemView, view_item_input
from noetl_planner.domain.decision import idempotency_keys
from noetl_playbook.views import error_view
from noetl_replay.state import FrameState

# Units that one answer looks at, also where it finds few.
UNITS_LOOKED_AT_MAX = 2_000

ViewPage = tuple[list[ItemView], int, bool]


class FrameRowReader:
    """Lists the rows of the frames of one epoch of a loop over a collection."""

    def __init__(self, services: ApiServices, record: LoopRecord, rows: FrameRows) -> None:
        self._services = services
        self._record = record
        self._rows = rows
        self._places = rows.places

    async def list_items(self, state: ItemState | None, *, after: int, limit: int) -> ViewPage:
        """Return rows after a place, up to which place was looked, and whether more follow."""
        items = self._record.cut.items
        if after + 1 >= items:
            return [], after, False
        placed_views: list[tuple[int, ItemView]] = []
        first = self._places.get_unit_at(after + 1)
        last, looked = after, 0
        async for unit in self._rows.read_units(first=first):
            for place, view in self._view_unit(unit):
                if place > after and state in (None, view.state):
                    placed_views.append((place, view))
            last = self._places.get_unit_bounds(unit.unit)[1] - 1
            looked += 1
            if len(placed_views) >= limit or looked >= UNITS_LOOKED_AT_MAX:
                break
        if len(placed_views) >= limit:
            placed_views = placed_views[:limit]
            last = placed_views[-1][0] + placed_views[-1][1].count - 1
        collection = self._record.open_collection(self._services)
        views = [await self._complete_view(collection, place, view) for place, view in placed_views]
        return views, last, last + 1 < items

    def _view_unit(self, unit: UnitFrames) -> list[tuple[int, ItemView]]:
        """Show the rows of a unit in their order, each with its place in the collection."""
        first, _ = self._places.get_unit_bounds(unit.unit)
        place_by_index = {
            index: first + place
            for place, index in enumerate(self._places.list_unit_items(unit.unit))
        }
        by_place: dict[int, ItemView] = {}
        for frame in unit.taken:
            for index in frame.list_item_indexes():
                if index >= 0:
                    by_place[place_by_index[index]] = ItemView(
                        index=index,
                        state=ItemState.COMPLETED,
                        record="row",
                        taken_from=self._source_execution_id,
                    )
        for ended in unit.ended:
            for view in view_ended_frame(ended, is_whole=self._record.started.counts_frames):
                by_place[place_by_index[view.index]] = view
        covered = {
            place + offset for place, view in by_place.items() for offset in range(view.count)
        }
        for index, view in self._view_open_frames(unit.unit):
            if place_by_index[index] not in covered:
                by_place[place_by_index[index]] = view
                covered.add(place_by_index[index])
        for index, place in place_by_index.items():
            if place not in covered:
                by_place[place] = self._view_missing_item(index)
        return sorted(by_place.items())

    @property
    def _source_execution_id(self) -> str | None:
        takeover = self._record.started.taken
        return None if takeover is None else takeover.execution_id

    def _view_open_frames(self, unit: int) -> list[tuple[int, ItemView]]:
        """Show the rows of frames that are not over."""
        open_frames: list[tuple[int, ItemView]] = []
        begins_at = self._places.get_unit_bounds(unit)[0]
        if self._places.todo is not None:
            begins_at = self._places.todo.offsets[unit]
        running = self._places.list_running_items(unit)
        for frame in self._record.state.frames.values():
            if frame.stage_id != self._record.started.stage_id or frame.slot != unit:
                continue
            start = (frame.start or 0) - begins_at
            for row, index in enumerate(running[start : start + frame.row_count]):
                open_frames.append((index, view_open_row(frame, index, row)))
        return open_frames

    def _view_missing_item(self, index: int) -> ItemView:
        is_over = self._record.live is None
        return ItemView(
            index=index,
            state=ItemState.CANCELLED if is_over else ItemState.PENDING,
            record="row",
        )

    async def _complete_view(
        self, collection: CollectionReader, place: int, view: ItemView
    ) -> ItemView:
        """Add what takes looking further: the input of a row, earlier attempts of its frame."""
        about: dict[str, Any] = {}
        if view.frame is not None and view.attempts > 1:
            losses = await list_frame_losses(
                self._services.history, self._record, view.frame, view.attempts
            )
            about["tries"] = [*losses, *view.tries]
        if view.count == 1:
            about |= await view_item_input(collection, place)
        return structs.replace(view, **about)


async def list_frame_losses(
    history: HistoryStores, record: LoopRecord, frame: FramePlace, attempts: int
) -> list[dict[str, Any]]:
    """Tell the latest attempts of a frame that failed, or ended with their worker."""
    frame_losses: list[dict[str, Any]] = []
    for attempt in range(max(1, attempts - TRIES_MAX), attempts):
        key = idempotency_keys.build_abandoned_key(FrameId(frame.frame_id), attempt)
        event = await history.ledger.find_by_key(record.execution_id, key)
        if event is None or not isinstance(event.event, FrameAbandoned):
            continue
        lost = event.event
        error_summary = error_view.show_error_summary(lost.error) or {
            "kind": "worker_lost",
            "message": lost.reason,
        }
        frame_losses.append({**error_summary, "attempt": attempt, "at": event.event_time})
    return frame_losses


def view_ended_frame(ended: EndedFrame, *, is_whole: bool) -> list[ItemView]:
    """Show the rows of a frame that ended; one view where it keeps no record of them."""
    event = ended.event
    if ended.errors is None or is_whole:
        return [view_whole_frame(ended)]
    views: list[ItemView] = []
    for row, index in enumerate(ended.indexes):
        error = ended.errors[row] if row < len(ended.errors) else {}
        views.append(
            ItemView(
                index=index,
                state=_classify_row(error),
                record="row",
                error=error_view.show_error_summary(error) if error else None,
                attempts=event.attempt,
                tries=(error or {}).get("tries", []),
                worker_id=event.worker_id,
                frame=_build_frame_place(event, row),
            )
        )
    return views


def _classify_row(error: dict[str, Any] | None) -> ItemState:
    if error is None:
        return ItemState.COMPLETED
    return ItemState.FAILED if error else ItemState.CANCELLED


def view_whole_frame(ended: EndedFrame) -> ItemView:
    """Show a frame that ended as one."""
    event = ended.event
    is_failed = isinstance(event, FrameFailed)
    error = event.error if isinstance(event, FrameFailed) else None
    duration_ms = event.metrics.get("duration_ms")
    return ItemView(
        index=ended.indexes[0],
        count=len(ended.indexes),
        state=ItemState.FAILED if is_failed else ItemState.COMPLETED,
        record="frame",
        failed=event.rows_failed if isinstance(event, FrameFailed) else 0,
        error=error_view.show_error_summary(error),
        attempts=event.attempt,
        tries=[] if error is None else codec.to_builtins(error.tries),
        duration=None if duration_ms is None else duration_ms / 1000,
        worker_id=event.worker_id,
        frame=_build_frame_place(event, None),
    )


def _build_frame_place(event: FrameEnd, row: int | None) -> FramePlace:
    return FramePlace(
        frame_id=event.frame_id, slot=event.slot, frame_index=event.frame_index, row=row
    )


def view_open_row(frame: FrameState, index: int, row: int) -> ItemView:
    """Show a row of a frame that has not ended."""
    is_running = frame.status is FrameStatus.RUNNING
    return ItemView(
        index=index,
        state=ItemState.RUNNING if is_running else ItemState.PENDING,
        record="row",
        attempts=frame.attempts,
        worker_id=frame.owner_worker,
        frame=FramePlace(
            frame_id=frame.frame_id, slot=frame.slot, frame_index=frame.frame_index, row=row
        ),
    )
