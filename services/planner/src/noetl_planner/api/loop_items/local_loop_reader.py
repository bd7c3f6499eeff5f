"""Reads items of `exec: local` loops, of which the ledger has one frame."""

from collections.abc import AsyncIterator

from msgspec import structs

from noetl_contracts.events.frame_events import FrameEnd
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import payload_reader
from noetl_planner.api.loop_items.frame_reader import view_open_row, view_whole_frame
from noetl_planner.api.loop_items.frame_rows import EndedFrame, FrameRows
from noetl_planner.api.loop_items.loop_record import LoopRecord
from noetl_planner.api.loop_items.views import ItemState, ItemView
from noetl_playbook.views import error_view, result_envelope
from noetl_playbook.views.loop_parts import LoopPart

NOTE = (
    "one worker runs this loop and cuts it into chunks or shards: what is recorded are these, when "
    "all have ended, and not single items"
)

_STATE_BY_STATUS = {
    "ok": ItemState.COMPLETED,
    "error": ItemState.FAILED,
    "cancelled": ItemState.CANCELLED,
}

ViewPage = tuple[list[ItemView], int, bool]


class LocalLoopReader:
    """Lists the chunks or shards of one epoch of such a loop."""

    def __init__(self, services: ApiServices, record: LoopRecord, rows: FrameRows) -> None:
        self._services = services
        self._record = record
        self._rows = rows

    async def list_items(self, state: ItemState | None, *, after: int, limit: int) -> ViewPage:
        """Return units after an item, up to which item was looked, and whether more follow."""
        views = [view async for view in self._iterate_views()]
        item_views = [view for view in views if view.index > after and state in (None, view.state)]
        last = item_views[limit - 1] if len(item_views) > limit else None
        if last is None:
            return item_views, max(after, self._record.cut.items - 1), False
        return item_views[:limit], last.index + last.count - 1, True

    async def _iterate_views(self) -> AsyncIterator[ItemView]:
        async for unit in self._rows.read_units(first=0):
            for ended in unit.ended:
                for view in await self._view_ended_units(ended):
                    yield view
            if not unit.ended:
                for view in self._view_open_units():
                    yield view

    async def _view_ended_units(self, ended: EndedFrame) -> list[ItemView]:
        event: FrameEnd = ended.event
        if event.units is None or event.units.parts_ref is None:
            return [view_whole_frame(ended)] if ended.indexes else []
        listed = result_envelope.convert_stored(
            await payload_reader.read_payload(self._services, event.units.parts_ref), list[LoopPart]
        )
        cut = structs.replace(self._record.cut, units=self._record.cut.total_units, inside=None)
        offsets = None if self._rows.places.base is None else self._rows.places.base.offsets
        views: list[ItemView] = []
        for part in listed:
            first, end = cut.get_unit_bounds(part.index, offsets)
            views.append(
                ItemView(
                    index=first,
                    count=end - first,
                    record="unit",
                    state=_STATE_BY_STATUS.get(part.status, ItemState.FAILED),
                    error=error_view.show_error_summary(part.error),
                    tries=(part.error or {}).get("tries", []),
                    attempts=event.attempt,
                    worker_id=event.worker_id,
                )
            )
        return views

    def _view_open_units(self) -> list[ItemView]:
        count = self._record.cut.items
        for frame in self._record.state.frames.values():
            if frame.stage_id == self._record.started.stage_id:
                view = view_open_row(frame, 0, 0)
                return [structs.replace(view, count=count, record="frame")]
        state = ItemState.CANCELLED if self._record.live is None else ItemState.PENDING
        return [ItemView(index=0, count=count, state=state, record="frame")] if count else []
