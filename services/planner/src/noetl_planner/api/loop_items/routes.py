"""Items of the loops of an execution: which completed, which failed and why."""

from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.problems import NUMBER_MAX, build_bad_request_error
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, fold_slices
from noetl_planner.api.loop_items import (
    claimed_reader,
    item_moments,
    local_loop_reader,
    loop_record,
)
from noetl_planner.api.loop_items.claimed_reader import ClaimedRowReader
from noetl_planner.api.loop_items.frame_reader import FrameRowReader
from noetl_planner.api.loop_items.frame_rows import open_frame_rows
from noetl_planner.api.loop_items.item_moments import LoopMoment
from noetl_planner.api.loop_items.item_reader import ItemReader
from noetl_planner.api.loop_items.local_loop_reader import LocalLoopReader
from noetl_planner.api.loop_items.loop_record import LoopRecord
from noetl_planner.api.loop_items.views import ItemPage, ItemState, ItemView

ITEMS_MAX = 1_000
WHOLE_NOTE = (
    "a frame of this loop fails as a whole (one body or one transaction for all its rows): what is "
    "recorded are frames, and not single items"
)
UNRECORDED_NOTE = (
    "some frames that failed keep no record of their rows (the loop does not collect results, they "
    "are too large for an answer, or the frame did not run to its end): they are shown as frames"
)
_NUMBER_DIGITS_MAX = 12

State = Annotated[ItemState | None, QueryParameter(name="state")]
After = Annotated[str, QueryParameter(max_length=40)]
Limit = Annotated[int, QueryParameter(ge=1, le=ITEMS_MAX)]
Version = Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)]
StepOfQuery = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=1_000,
        description="Ask for items/{step} instead.",
        schema_extra={"deprecated": True},
    ),
]
ViewPage = tuple[list[ItemView], str, bool]


@get(
    "/executions/{execution_id:str}/items/{step:path}",
    tags=["executions"],
    responses=fold_slices.UNDER_WAY,
)
async def list_items(
    services: Services,
    execution_id: FromPath[str],
    step: FromPath[str],
    item_state: State = None,
    after: After = "",
    limit: Limit = 100,
    version: Version = None,
) -> ItemPage:
    """List the items of a step's loop: its latest run, while it goes on and afterwards.

    With a `version` they are shown as they were at it.
    """
    # A step may have any name, with slashes too; the path begins with the one before it.
    name = step.removeprefix("/")
    return await _list_page(services, execution_id, name, item_state, after, limit, version)


@get("/executions/{execution_id:str}/items", tags=["executions"], responses=fold_slices.UNDER_WAY)
async def list_loop_items(
    services: Services,
    execution_id: FromPath[str],
    step: StepOfQuery = None,
    item_state: State = None,
    after: After = "",
    limit: Limit = 100,
    version: Version = None,
) -> ItemPage:
    """List the items of the loop that began first; `items/{step}` lists those of another."""
    return await _list_page(services, execution_id, step, item_state, after, limit, version)


async def _list_page(
    services: ApiServices,
    execution_id: str,
    step: str | None,
    state: ItemState | None,
    after: str,
    limit: int,
    version: int | None,
) -> ItemPage:
    """List items of a step's loop, without a step of the loop that began first."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    moment = None
    if step is None or version is not None:
        loops = await item_moments.list_loops(services, checked_id, version)
        step = step or item_moments.get_first_step(loops)
        moment = item_moments.find_loop_moment(loops, step)
    return await _build_page(services, checked_id, step, moment, state, after, limit)


async def _build_page(
    services: ApiServices,
    execution_id: ExecutionId,
    step: str,
    moment: LoopMoment | None,
    state: ItemState | None,
    after: str,
    limit: int,
) -> ItemPage:
    folded = await execution_lookup.fold_execution(services, execution_id)
    record = await loop_record.get_loop_record(
        services, folded, step, run_id=None if moment is None else moment.run_id
    )
    # What an item is now says little of what it was then.
    wanted = state if moment is None else None
    (views, last, has_more), notes = await _list_loop_items(services, record, wanted, after, limit)
    items = await item_moments.add_frame_times(services, execution_id, views)
    if moment is not None:
        shown = [item_moments.show_item_at(item, moment.at) for item in items]
        items = [item for item in shown if state in (None, item.state)]
    if any(item.record == "frame" for item in items) and not notes:
        notes = [UNRECORDED_NOTE]
    counts = None if moment is None else moment.counts
    return ItemPage(
        execution_id=execution_id,
        step=step,
        run_id=record.run_id,
        mode=record.started.mode,
        counts=counts or await loop_record.count_units(services.history, record),
        items=items,
        next_after=last,
        has_more=has_more,
        notes=notes,
    )


async def _list_loop_items(
    services: ApiServices, record: LoopRecord, state: ItemState | None, after: str, limit: int
) -> tuple[ViewPage, list[str]]:
    """Ask the reader of the loop's kind."""
    if record.has_cursor:
        claimed = ClaimedRowReader(services, record)
        loop_items = await claimed.list_items(state, after=after, limit=limit)
        return loop_items, [claimed_reader.NOTE]
    place = _parse_item_index(after)
    if not record.is_framed:
        items = await ItemReader(services, record).list_items(state, after=place, limit=limit)
        return _with_text_place(items), []
    rows = await open_frame_rows(services, record)
    if record.is_cut_inside:
        inside = LocalLoopReader(services, record, rows)
        units = await inside.list_items(state, after=place, limit=limit)
        return _with_text_place(units), [local_loop_reader.NOTE]
    frames = await FrameRowReader(services, record, rows).list_items(
        state, after=place, limit=limit
    )
    return _with_text_place(frames), [WHOLE_NOTE] if record.fails_whole else []


def _with_text_place(page: tuple[list[ItemView], int, bool]) -> ViewPage:
    items, last, has_more = page
    return items, str(last), has_more


def _parse_item_index(text: str) -> int:
    """Read up to which item a caller has seen; raises a 400."""
    if text in ("", "-1"):
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX):
        raise build_bad_request_error(
            f"after: {text[:40]!r} is no index of an item", hint="give the next_after of a page"
        )
    return int(text)


ROUTES = [list_items, list_loop_items]
