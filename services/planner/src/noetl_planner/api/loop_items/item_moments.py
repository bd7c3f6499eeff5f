"""The items of a loop as they were at a version of the history."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.status import RunStatus
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup, replay_slices, views
from noetl_planner.api.loop_items.views import ItemState, ItemView

_LOOPS_ALONE = ("loop",)
_ENDED = (RunStatus.COMPLETED, RunStatus.FAILED)
_NEVER_BEGUN = (ItemState.PENDING, ItemState.CANCELLED)

# What an item that has not ended does not have.
_OPEN: dict[str, Any] = {
    **dict.fromkeys(("error", "failed", "ended_at", "duration")),
    "attempts": 0,
    "tries": [],
}


class KnownLoops(Struct, frozen=True, kw_only=True):
    """The rows of all loops, the first loop first: as they were `at` a version, or as they are."""

    execution_id: ExecutionId
    version: int | None
    at: datetime | None
    rows: list[dict[str, Any]]


class LoopMoment(Struct, frozen=True, kw_only=True):
    """A loop at a version: which epoch it was in, when that was, and its counts there.

    Items of an epoch that had ended are shown as they are: nothing of it changes any more.
    """

    at: datetime
    run_id: RunId
    counts: dict[str, int]
    has_ended: bool


async def list_loops(
    services: ApiServices, execution_id: ExecutionId, version: int | None
) -> KnownLoops:
    """List all loops at a version; raises a 400 for a version to come."""
    at = None
    if version is None:
        rows = views.sort_loops(await services.history.projections.list_rows("loop", execution_id))
    else:
        at = await execution_lookup.get_version_time(services, execution_id, version)
        fold = await replay_slices.fold_in_slices(
            services, execution_id, _LOOPS_ALONE, until=version
        )
        rows = [codec.decode_json(row) for row in fold.rows_by_surface["loop"].values()]
    return KnownLoops(execution_id=execution_id, version=version, at=at, rows=rows)


def get_first_step(loops: KnownLoops) -> str:
    """Return the step whose loop began first; raises a 404 before any did."""
    if not loops.rows:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            code="no_loop",
            detail=f"no loop had begun in execution {loops.execution_id}",
            hint=f"noetl status {loops.execution_id} lists its steps",
        )
    return str(loops.rows[0]["step_name"])


def find_loop_moment(loops: KnownLoops, step: str) -> LoopMoment | None:
    """Return how a step's loop was; None for loops as they are. Raises a 404 before it began."""
    if loops.at is None:
        return None
    row = next((row for row in reversed(loops.rows) if row["step_name"] == step), None)
    if row is None:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            code="no_loop",
            detail=f"at version {loops.version} no loop of step {step[:200]!r} of execution "
            f"{loops.execution_id} had begun",
            hint=f"noetl events {loops.execution_id} tells when it began",
        )
    return LoopMoment(
        at=loops.at,
        run_id=RunId(str(row["run_id"])),
        counts=_count_items(row),
        has_ended=row["status"] in _ENDED,
    )


def _count_items(row: dict[str, Any]) -> dict[str, int]:
    names = {"total": "total", "completed": "done", "failed": "failed", "running": "in_flight"}
    return {name: row[column] or 0 for name, column in names.items()}


async def add_frame_times(
    services: ApiServices, execution_id: ExecutionId, items: Sequence[ItemView]
) -> list[ItemView]:
    """Add to the rows of frames when their frames were handed out, and when these ended."""
    frame_ids = {item.frame.frame_id for item in items if item.frame is not None}
    rows = {
        frame_id: await services.history.projections.find_frame(execution_id, frame_id)
        for frame_id in frame_ids
    }
    return [
        structs.replace(item, issued_at=row["created_at"], ended_at=row["completed_at"])
        if item.frame is not None and (row := rows[item.frame.frame_id]) is not None
        else item
        for item in items
    ]


def show_item_at(item: ItemView, at: datetime) -> ItemView:
    """Show an item as it was; raises a 409 where nothing tells when it began or ended.

    Of an item that ran then, attempts are not told.
    """
    if item.taken_from is not None:
        return item
    if item.issued_at is None and item.state not in _NEVER_BEGUN:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="items_without_times",
            detail=f"nothing tells when item {item.index} began: this loop keeps no such times",
            hint="ask for the latest moment: leave out version",
        )
    if item.ended_at is not None and item.ended_at <= at:
        return item
    open_item = structs.replace(item, **_OPEN)
    if item.issued_at is not None and item.issued_at <= at:
        return structs.replace(open_item, state=ItemState.RUNNING)
    return structs.replace(open_item, state=ItemState.PENDING, issued_at=None, worker_id=None)
