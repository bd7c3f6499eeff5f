"""Replays in slices: a part a request, with the rows of the projections that are asked for."""

import asyncio
from http import HTTPStatus

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup, fold_slices
from noetl_planner.api.lookup.fold_slices import MomentProgress, MomentUnderWay
from noetl_planner.moments import replay_folds
from noetl_planner.moments.replay_folds import EncodedRows, ReplayFold
from noetl_replay import snapshot
from noetl_replay.state import ExecutionState, build_empty_state

TO_HOLD, TO_SEND = "to hold", "to send"
_STATE_ALONE = ("execution",)
_FRAMES_ALONE = ("frame",)


async def fold_state(
    services: ApiServices, execution_id: ExecutionId, *, until: int
) -> ExecutionState:
    """Fold a history up to a version, from the nearest snapshot; raises a 409 if it does not."""
    fold = await _begin_fold(services, execution_id, _STATE_ALONE, until=until)
    await fold_slices.feed_until(services.history, fold, until=until)
    return fold.state


async def fold_in_slices(
    services: ApiServices,
    execution_id: ExecutionId,
    surfaces: tuple[str, ...],
    *,
    until: int,
    mark: int | None = None,
) -> ReplayFold:
    """Fold a slice of a history; raises `MomentUnderWay` where that does not reach the version.

    On the way the rows at version `mark` are kept. Raises a 409 where the history does not fold,
    and a 413 where its rows take too much memory.
    """
    folds = services.history.replay_folds
    fold = folds.take_fold(execution_id, surfaces, until=until, mark=mark)
    fold = fold or await _begin_fold(services, execution_id, surfaces, until=mark or until)
    end = min(until, fold.state.version + fold_slices.SLICE_EVENTS)
    try:
        if mark is not None and fold.marked_version != mark:
            await _feed_fold(services, fold, until=min(mark, end))
            if fold.state.version == mark:
                fold.mark_rows()
        await _feed_fold(services, fold, until=end)
    except asyncio.CancelledError:
        # Who asked has gone on to another position: the pages so far are whole.
        folds.keep_fold(fold)
        raise
    # Without rows a later question begins at a snapshot that is near.
    if end < until or surfaces != _STATE_ALONE:
        folds.keep_fold(fold)
    if end < until:
        progress = MomentProgress(execution_id=execution_id, folded=end, wanted=until)
        raise MomentUnderWay(progress)
    return fold


async def fold_frames(
    services: ApiServices, execution_id: ExecutionId, version: int
) -> EncodedRows:
    """Return the frames that there were at a version, encoded, by their ids.

    Raises a 400 for a version to come, and what `fold_in_slices` raises.
    """
    await execution_lookup.get_version_time(services, execution_id, version)
    fold = await fold_in_slices(services, execution_id, _FRAMES_ALONE, until=version)
    return fold.rows_by_surface["frame"]


async def _begin_fold(
    services: ApiServices, execution_id: ExecutionId, surfaces: tuple[str, ...], *, until: int
) -> ReplayFold:
    """Begin at the beginning, or where no rows are wanted at the latest snapshot."""
    start_state = build_empty_state(execution_id, **services.tenant_scope)
    if surfaces == _STATE_ALONE:
        past_snapshot = await services.history.past_snapshots.find_snapshot_before(
            execution_id, until
        )
        start_state = snapshot.restore_state(past_snapshot) or start_state
    fold = ReplayFold(start_state, surfaces)
    # A snapshot may be of the very version.
    fold.feed_events(())
    return fold


async def _feed_fold(services: ApiServices, fold: ReplayFold, *, until: int) -> None:
    """Fold page by page, as long as the rows have room."""
    while fold.state.version < until:
        end = min(until, fold.state.version + fold_slices.PAGE_EVENTS)
        await fold_slices.feed_until(services.history, fold, until=end)
        if fold.weight > replay_folds.BYTES_MAX:
            raise build_too_large_error(fold, TO_HOLD, replay_folds.BYTES_MAX)


def build_too_large_error(fold: ReplayFold, use: str, bytes_max: int) -> ApiError:
    """Build the error for rows that are too many to hold or to send."""
    rows_total = sum(map(len, fold.rows_by_surface.values()))
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="replay_too_large",
        detail=f"at version {fold.state.version} the replay has {rows_total} rows, which are too "
        f"many {use}: {bytes_max // 2**20} MiB",
        hint="ask for one projection, such as projection=execution, or for rows=false"
        if use == TO_SEND
        else "ask for one projection, such as projection=execution, or for an earlier position",
    )
