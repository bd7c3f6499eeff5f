"""Items of the loops of an execution: which completed, which failed and why."""

from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

from noetl_contracts.ids import ExecutionId
from noetl_planner.http import finding, histories
from noetl_planner.http.loop_items import claimed_reader, inside_reader, loop_record
from noetl_planner.http.loop_items.claimed_reader import ClaimedReader
from noetl_planner.http.loop_items.frame_reader import FrameReader
from noetl_planner.http.loop_items.frame_rows import open_frames
from noetl_planner.http.loop_items.inside_reader import InsideReader
from noetl_planner.http.loop_items.item_reader import ItemReader
from noetl_planner.http.loop_items.loop_record import LoopRecord
from noetl_planner.http.loop_items.views import ItemPage, ItemState, ItemView
from noetl_planner.http.problems import refused
from noetl_planner.http.services import ApiServices, Services

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

Found = tuple[list[ItemView], str, bool]


@get("/executions/{execution_id:str}/items/{step:path}", tags=["executions"])
async def list_items(
    services: Services,
    execution_id: FromPath[str],
    step: FromPath[str],
    wanted: Annotated[ItemState | None, QueryParameter(name="state")] = None,
    after: Annotated[str, QueryParameter(max_length=40)] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=ITEMS_MAX)] = 100,
) -> ItemPage:
    """List the items of a step's loop: its latest run, while it goes on and afterwards."""
    row = await finding.get_row(services, execution_id)
    known = ExecutionId(row["execution_id"])
    folded = await histories.folded(services, known)
    # A step may have any name, with slashes too; the path begins with the one before it.
    name = step.removeprefix("/")
    record = await loop_record.find_loop(services, folded, name)
    (items, last, has_more), notes = await _list(services, record, wanted, after, limit)
    if any(item.record == "frame" for item in items) and not notes:
        notes = [UNRECORDED_NOTE]
    return ItemPage(
        execution_id=known,
        step=name,
        run_id=record.run_id,
        mode=record.started.mode,
        counts=await loop_record.count_units(services, record),
        items=items,
        next_after=last,
        has_more=has_more,
        notes=notes,
    )


async def _list(
    services: ApiServices, record: LoopRecord, state: ItemState | None, after: str, limit: int
) -> tuple[Found, list[str]]:
    """Ask the reader of the loop's kind."""
    if record.has_cursor:
        claimed = ClaimedReader(services, record)
        found = await claimed.list_items(state, after=after, limit=limit)
        return found, [claimed_reader.NOTE]
    place = _parse_index(after)
    if not record.is_framed:
        items = await ItemReader(services, record).list_items(state, after=place, limit=limit)
        return _as_text(items), []
    rows = await open_frames(services, record)
    if record.is_cut_inside:
        inside = InsideReader(services, record, rows)
        units = await inside.list_items(state, after=place, limit=limit)
        return _as_text(units), [inside_reader.NOTE]
    frames = await FrameReader(services, record, rows).list_items(state, after=place, limit=limit)
    return _as_text(frames), [WHOLE_NOTE] if record.fails_whole else []


def _as_text(found: tuple[list[ItemView], int, bool]) -> Found:
    items, last, has_more = found
    return items, str(last), has_more


def _parse_index(text: str) -> int:
    """Read up to which item a caller has seen; raises a 400."""
    if text in ("", "-1"):
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX):
        raise refused(
            f"after: {text[:40]!r} is no index of an item", hint="give the next_after of a page"
        )
    return int(text)


ROUTES = [list_items]
