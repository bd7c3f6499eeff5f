"""An execution as it was at a version of its history, or as it is: what a page shows of it.

What is past is folded from the ledger; the present comes from the projections. Both are shown in
the same form, whose size does not grow with items and frames: these are counted by bins.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct, structs

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import FrameBin, FrameBins
from noetl_contracts.status import RunStatus
from noetl_planner.api.history import step_runs
from noetl_planner.api.history.step_runs import StepRunView
from noetl_planner.api.http.problems import NUMBER_MAX, build_bad_request_error
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, fold_slices, hidden_values, views
from noetl_planner.api.lookup.fold_slices import MomentProgress, MomentUnderWay
from noetl_planner.api.lookup.views import AwaitedMessage, LoopView, Row, StageView
from noetl_planner.api.pools import lost_work, pool_waits
from noetl_planner.api.pools.lost_work import LostWork
from noetl_planner.api.pools.pool_waits import Waiting
from noetl_planner.moments.moment_folds import MomentFold
from noetl_playbook.views import ctx_references
from noetl_replay.state import build_empty_state

# All bins of a page, the bins of a stage, and the stages, loops and runs of steps of a page.
BINS_MAX = 1600
STAGE_BINS_MAX = 160
STAGES_MAX = 200
RUNS_MAX = 1000
_ENDED = frozenset(str(status) for status in RunStatus) - {"PENDING", "RUNNING"}


class StepMoment(Struct, frozen=True, kw_only=True):
    """A step: its latest run, and how many there were; `retries` counts tries that failed."""

    step: str
    status: str
    runs: int
    retries: int
    started_at: datetime
    ended_at: datetime | None
    duration: float
    came_from: str | None
    error: Any = None


class Moment(Struct, frozen=True, kw_only=True):
    """A run at a version; `at` is when that event happened. Without READ there are no variables.

    `is_past` says that the ledger was folded up to the version. `more_stages` and `more_runs` say
    that there are more than are shown: of stages and loops the latest, and the latest of each step.
    Both stand as they began. `stage_frames` has all frames of each stage in one bin.
    """

    execution_id: str
    path: str
    playbook_version: int | None
    parent_execution_id: str | None
    status: str
    version: int
    head_version: int
    is_past: bool
    at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    duration: float | None
    current_step: str | None
    frames: int
    rows: int
    warnings: int
    error: Any
    checksum: str | None
    steps: list[StepMoment]
    stages: list[StageView]
    loops: list[LoopView]
    bins: list[FrameBin]
    stage_frames: list[FrameBin]
    more_stages: bool
    more_runs: bool
    variables: dict[str, Any]
    workload: Any
    waiting: list[Waiting] = []
    lost: list[LostWork] = []
    messages: list[AwaitedMessage] = []
    late: list[views.LateView] = []


class _Surfaces(Struct, frozen=True, kw_only=True):
    """What is known of an execution at a version."""

    execution: Row
    stages: list[Row]
    loops: list[Row]
    frames: FrameBins


@get("/executions/{execution_id:str}/moment", tags=["executions"], responses=fold_slices.UNDER_WAY)
async def show_moment(
    services: Services,
    execution_id: FromPath[str],
    version: Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)] = None,
) -> Moment:
    """Show a run as it is, or as it was at a version of its history."""
    return await view_moment(services, execution_id, version)


async def view_moment(services: ApiServices, execution_id: str, version: int | None) -> Moment:
    """View a run at a version, or as it is; raises a 404, or a 400 for a version to come."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    head_version = await _find_head_version(services, row)
    is_past = version is not None and version < head_version
    if version is not None and version > head_version:
        raise build_bad_request_error(
            f"execution {checked_id} has no version {version} yet",
            hint=f"its latest is {head_version}",
        )
    if is_past and version is not None:
        surfaces = await _fold_surfaces(services, checked_id, version)
        moment = await _view_surfaces(services, row, surfaces, head_version, is_past=True)
    else:
        moment = await _share_present(services, row, head_version)
    if not await hidden_values.may_read_values(services, checked_id):
        moment = structs.replace(moment, variables={}, workload=None)
    return moment


async def view_present(services: ApiServices, execution_id: ExecutionId) -> Moment:
    """View a run as it is, with the values that not all who see it may read; raises a 404."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    return await _share_present(services, row, await _find_head_version(services, row))


async def _find_head_version(services: ApiServices, row: Row) -> int:
    head = await services.history.ledger.find_head(ExecutionId(row["execution_id"]))
    return row.get("version") or 0 if head is None else head.version


async def _share_present(services: ApiServices, row: Row, head_version: int) -> Moment:
    moment: Moment = await services.history.shared_moments.get_moment(
        row["execution_id"],
        (row.get("version") or 0, head_version),
        partial(_view_present, services, row, head_version),
    )
    return moment


async def _view_present(services: ApiServices, row: Row, head_version: int) -> Moment:
    """View a run as it is: the same for all who may see it, but for values that are hidden."""
    execution_id = ExecutionId(row["execution_id"])
    surfaces = await _read_surfaces(services.history, execution_id, row)
    moment = await _view_surfaces(services, row, surfaces, head_version, is_past=False)
    return moment if views.is_terminal(row) else await show_waits(services, moment)


async def show_waits(services: ApiServices, moment: Moment) -> Moment:
    """Show what a live run waits for now: that changes without an event of the run."""
    execution_id = ExecutionId(moment.execution_id)
    late = await pool_waits.list_late_commands(services, execution_id)
    return structs.replace(
        moment,
        waiting=await pool_waits.explain_waits(services, late),
        lost=await lost_work.list_lost_work(services, execution_id, late),
        messages=await views.list_awaited_messages(services, execution_id),
    )


async def _view_surfaces(
    services: ApiServices, row: Row, surfaces: _Surfaces, head_version: int, *, is_past: bool
) -> Moment:
    shown_version = surfaces.execution.get("version") or 0
    end = surfaces.execution.get("updated_at") if is_past else None
    now = surfaces.execution.get("ended_at") or end or services.clock.now()
    run_events = await step_runs.find_run_events(
        services.history, row, after=0, runs_max=RUNS_MAX + 1
    )
    runs = step_runs.view_runs(
        [event for event in run_events if event.version <= shown_version], now=now
    )
    return _build_moment(surfaces, runs, now=now, head_version=head_version, is_past=is_past)


async def _read_surfaces(history: HistoryStores, execution_id: ExecutionId, row: Row) -> _Surfaces:
    stages = views.sort_stages(await history.projections.list_rows("stage", execution_id))
    frames = FrameBins(bins=[], stages=[])
    if stages:
        bins_max = _count_stage_bins(len(stages))
        frames = await history.projections.bin_frames(execution_id, bins_max=bins_max)
    return _Surfaces(
        execution=row,
        stages=stages,
        loops=views.sort_loops(await history.projections.list_rows("loop", execution_id)),
        frames=frames,
    )


async def _fold_surfaces(
    services: ApiServices, execution_id: ExecutionId, version: int
) -> _Surfaces:
    fold = await _fold_until(services, execution_id, version)
    stages = views.sort_stages(fold.list_rows("stage"))
    surfaces = _Surfaces(
        execution=fold.show_execution(),
        stages=stages,
        loops=views.sort_loops(fold.list_rows("loop")),
        frames=fold.bin_frames(bins_max=_count_stage_bins(len(stages))),
    )
    services.history.moment_folds.keep_fold(fold)
    return surfaces


async def _fold_until(services: ApiServices, execution_id: ExecutionId, version: int) -> MomentFold:
    """Fold a slice of a history; raises `MomentUnderWay` where that does not reach the version."""
    folds = services.history.moment_folds
    fold = folds.take_fold(execution_id, version) or MomentFold(
        build_empty_state(execution_id, **services.tenant_scope)
    )
    end = min(version, fold.state.version + fold_slices.SLICE_EVENTS)
    try:
        await fold_slices.feed_until(services.history, fold, until=end)
    except asyncio.CancelledError:
        # Who asked has gone on to another moment: the pages so far are whole.
        folds.keep_fold(fold)
        raise
    if end < version:
        folds.keep_fold(fold)
        raise MomentUnderWay(MomentProgress(execution_id=execution_id, folded=end, wanted=version))
    return fold


def _count_stage_bins(stages: int) -> int:
    return max(1, min(STAGE_BINS_MAX, BINS_MAX // max(1, min(stages, STAGES_MAX))))


def _build_moment(
    surfaces: _Surfaces,
    runs: list[StepRunView],
    *,
    now: datetime,
    head_version: int,
    is_past: bool,
) -> Moment:
    row = surfaces.execution
    summary = views.view_summary(row, now=now)
    stages = choose_shown_rows(surfaces.stages)
    return Moment(
        execution_id=row["execution_id"],
        path=row["path"],
        playbook_version=row.get("catalog_version"),
        parent_execution_id=row.get("parent_execution_id"),
        status=row["status"],
        version=row.get("version") or 0,
        head_version=head_version,
        is_past=is_past,
        at=row.get("updated_at"),
        started_at=row.get("started_at"),
        ended_at=row.get("ended_at"),
        duration=summary.duration,
        current_step=summary.current_step,
        frames=summary.frames,
        rows=summary.rows,
        warnings=row.get("warnings") or 0,
        error=summary.error,
        checksum=row.get("envelope_checksum"),
        steps=sum_steps(runs[:RUNS_MAX]),
        stages=[views.view_stage(stage) for stage in stages],
        loops=[views.view_loop(loop) for loop in choose_shown_rows(surfaces.loops)],
        bins=_sort_bins(surfaces.frames.bins, stages),
        stage_frames=_sort_bins(surfaces.frames.stages, stages),
        more_stages=len(surfaces.stages) > STAGES_MAX or len(surfaces.loops) > STAGES_MAX,
        more_runs=len(runs) > RUNS_MAX,
        variables=ctx_references.show_markers(row.get("variables") or {}),
        workload=row.get("workload"),
        late=views.list_late_marks(row),
    )


def choose_shown_rows(rows: list[Row]) -> list[Row]:
    """Choose the stages or loops of a page: the latest of each step, and the latest of all."""
    if len(rows) <= STAGES_MAX:
        return rows
    latest = set({row["step_name"]: place for place, row in enumerate(rows)}.values())
    ranked = sorted(range(len(rows)), key=lambda place: (place in latest, place))
    return [rows[place] for place in sorted(ranked[-STAGES_MAX:])]


def _sort_bins(bins: Iterable[FrameBin], stages: list[Row]) -> list[FrameBin]:
    """Return the bins of these stages, in the order of the stages."""
    place_by_stage = {stage["stage_id"]: place for place, stage in enumerate(stages)}
    shown_bins = [frame_bin for frame_bin in bins if frame_bin.stage_id in place_by_stage]
    return sorted(shown_bins, key=lambda frame_bin: place_by_stage[frame_bin.stage_id])


def sum_steps(runs: Iterable[StepRunView]) -> list[StepMoment]:
    """Sum the runs of each step, in the order in which the steps began first."""
    runs_by_step: dict[str, list[StepRunView]] = {}
    for run in runs:
        runs_by_step.setdefault(run.step, []).append(run)
    return [_sum_step(step, of_step) for step, of_step in runs_by_step.items()]


def _sum_step(step: str, runs: list[StepRunView]) -> StepMoment:
    live_runs = [run for run in runs if run.status not in _ENDED]
    latest = (live_runs or runs)[-1]
    return StepMoment(
        step=step,
        status=latest.status,
        runs=len(runs),
        retries=sum(len(run.tries) for run in runs),
        started_at=runs[0].started_at,
        ended_at=latest.ended_at,
        duration=round(sum(run.duration for run in runs), 3),
        came_from=latest.came_from,
        error=latest.error,
    )


ROUTES = [show_moment]
