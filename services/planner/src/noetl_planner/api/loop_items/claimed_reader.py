"""Reads items of cursor loops: rows by frame, without an index in a collection."""

from typing import Any

import msgspec
from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.events.frame_events import FrameEnd
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.problems import build_bad_request_error
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.loop_items.frame_reader import (
    list_frame_losses,
    view_ended_frame,
    view_open_row,
)
from noetl_planner.api.loop_items.frame_rows import FRAMES_PAGE, EndedFrame, find_frame_row_errors
from noetl_planner.api.loop_items.loop_record import CollectionReader, LoopRecord
from noetl_planner.api.loop_items.views import ItemState, ItemView, view_item_input

FRAMES_LOOKED_AT_MAX = 2_000
NOTE = (
    "the rows of a cursor have no place in a collection: an index is a row's place in its frame, "
    "and rows stand in the order of their frames, slot by slot"
)

Place = tuple[int, int, int]
ViewPage = tuple[list[ItemView], str, bool]


class ClaimedRowReader:
    """Lists the rows of the frames of one epoch of a cursor loop."""

    def __init__(self, services: ApiServices, record: LoopRecord) -> None:
        self._services = services
        self._record = record

    async def list_items(self, state: ItemState | None, *, after: str, limit: int) -> ViewPage:
        """Return rows after a place, up to which place was looked, and whether more follow."""
        place = parse_row_place(after)
        placed_views: list[tuple[Place, ItemView]] = []
        looked, last, is_over = 0, place, False
        while len(placed_views) <= limit and looked < FRAMES_LOOKED_AT_MAX and not is_over:
            frames, is_over = await self._read_frame_page(
                last if looked else (place[0], place[1] - 1, -1)
            )
            for at, views in frames:
                placed_views += [
                    ((*at, row), view)
                    for row, view in enumerate(views)
                    if (*at, row) > place and state in (None, view.state)
                ]
            looked += len(frames)
            last = (*frames[-1][0], 2**31 - 1) if frames else last
        if len(placed_views) > limit:
            placed_views, last, is_over = placed_views[:limit], placed_views[limit - 1][0], False
        views = [await self._complete_view(view) for _, view in placed_views]
        return views, ".".join(map(str, last)), not is_over

    async def _read_frame_page(
        self, after: Place
    ) -> tuple[list[tuple[tuple[int, int], list[ItemView]]], bool]:
        """Return a page of frames with their rows, and whether it is the last one."""
        record = self._record
        assert record.started.stage_id is not None, "a cursor loop has a stage"
        ended = await self._services.history.ledger.list_frame_results(
            record.execution_id,
            record.started.stage_id,
            after=(after[0], after[1]),
            results_max=FRAMES_PAGE,
        )
        is_last = len(ended) < FRAMES_PAGE
        views = {
            (event.slot, event.frame_index): await self._view_frame_rows(event) for event in ended
        }
        until = max(views, default=(0, 0))
        for frame in record.state.frames.values():
            at = (frame.slot, frame.frame_index)
            is_here = frame.stage_id == record.started.stage_id and at not in views
            if is_here and at > after[:2] and (is_last or at < until):
                views[at] = [view_open_row(frame, row, row) for row in range(frame.row_count)]
        return sorted(views.items()), is_last

    async def _view_frame_rows(self, event: FrameEnd) -> list[ItemView]:
        errors = await find_frame_row_errors(self._services, self._record, event)
        count = event.row_count if errors is None else len(errors)
        ended = EndedFrame(event=event, indexes=list(range(count)), errors=errors)
        return view_ended_frame(ended, is_whole=self._record.fails_whole) if count else []

    async def _complete_view(self, view: ItemView) -> ItemView:
        about: dict[str, Any] = {}
        assert view.frame is not None, "a claimed row has a frame"
        if view.attempts > 1:
            losses = await list_frame_losses(
                self._services.history, self._record, view.frame, view.attempts
            )
            about["tries"] = [*losses, *view.tries]
        if view.count == 1:
            about |= await self._read_row_input(view)
        return structs.replace(view, **about)

    async def _read_row_input(self, view: ItemView) -> dict[str, Any]:
        """Read a row from the record that its frame was run by."""
        assert view.frame is not None, "a claimed row has a frame"
        rows = await find_claimed_rows(
            self._services, self._record.execution_id, view.frame.frame_id
        )
        if rows is None:
            return {"input_problem": "the record of the frame is not there any more"}
        collection = CollectionReader(
            self._services, form=CollectionForm.LIST, reference=None, inline=rows
        )
        return await view_item_input(collection, view.index)


async def find_claimed_rows(
    services: ApiServices, execution_id: ExecutionId, frame_id: str
) -> list[Any] | None:
    """Return the rows that a frame was recorded with; None where the record is not there."""
    name = f"frames/{execution_id}/{frame_id}"
    data = await services.payloads.find_named(name, **services.tenant_scope)
    try:
        rows: list[Any] = codec.decode_json(data or b"")["rows"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return rows


def parse_row_place(text: str) -> Place:
    """Read a place among claimed rows; raises a 400."""
    parts = text.split(".") if text else ["0", "0", "-1"]
    is_place = len(parts) == len(("slot", "frame", "row")) and all(
        part.removeprefix("-").isdigit() and part.isascii() for part in parts
    )
    if not is_place or any(len(part) > len(str(2**31)) for part in parts):
        raise build_bad_request_error(
            f"after: {text[:40]!r} is no place among the rows of a cursor",
            hint="give the next_after of a page",
        )
    slot, frame, row = map(int, parts)
    return slot, frame, row
