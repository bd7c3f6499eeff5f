"""One epoch of a loop, as the history of its execution tells it."""

from http import HTTPStatus
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.events.loop import LoopDone, LoopFailed, LoopStarted
from noetl_contracts.events.stage import StageOpened
from noetl_contracts.events.step import StepEnter
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.slicing import Cut, Form, Layout
from noetl_planner.domain import keys
from noetl_planner.http import problems, reading, step_names
from noetl_planner.http.loop_items.collection import Collection
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_replay.state import ExecutionState, LoopState


class LoopRecord(Struct, frozen=True, kw_only=True):
    """The latest epoch of a step's loop.

    `version` is the position at which it began, `live` its state while it goes on. `policy` is that
    of its frames, empty for a loop whose units are items.
    """

    state: ExecutionState
    started: LoopStarted
    version: int
    live: LoopState | None
    policy: dict[str, Any]

    @property
    def execution_id(self) -> ExecutionId:
        """Return the execution."""
        return self.state.execution_id

    @property
    def run_id(self) -> RunId:
        """Return the run of the step."""
        return self.started.run_id

    @property
    def has_cursor(self) -> bool:
        """Tell whether the loop claims its rows from a source of theirs."""
        return self.started.stage_id is not None and self.started.cut is None

    @property
    def is_cut_inside(self) -> bool:
        """Tell whether one worker cuts the loop into units that the ledger does not know."""
        return self.started.cut is not None and self.started.cut.inside is not None

    @property
    def is_framed(self) -> bool:
        """Tell whether the units are frames."""
        return self.started.stage_id is not None

    @property
    def fails_whole(self) -> bool:
        """Tell whether a frame fails with all its rows: one transaction, or one body for them."""
        is_transaction = bool(self.policy.get("transaction"))
        return self.started.counts_frames or is_transaction

    @property
    def cut(self) -> Cut:
        """Return how the whole collection is cut, that which was taken over included."""
        taken = self.started.taken
        if taken is not None and taken.frames is not None:
            return taken.frames.cut
        assert self.started.cut is not None, "only framed loops are cut"
        return self.started.cut

    def collection(self, services: ApiServices) -> Collection:
        """Open the whole collection."""
        started, taken = self.started, self.started.taken
        if taken is not None:
            return Collection(services, form=taken.collection_form, reference=taken.collection_ref)
        is_range = started.collection_form is Form.RANGE
        return Collection(
            services,
            form=started.collection_form,
            reference=started.collection_ref,
            inline=None if is_range else started.collection,
        )


async def find_loop(services: ApiServices, state: ExecutionState, step: str) -> LoopRecord:
    """Return the latest epoch of a step's loop; raises a 404."""
    known = state.steps.get(step)
    run_id = known.run_id if known is not None else None
    if known is None or run_id is None:
        await step_names.check_step(
            services,
            state.execution_id,
            path=state.path,
            version=state.catalog_version,
            step=step,
        )
        raise problems.not_found(
            f"step {step[:200]!r} of execution {state.execution_id} has not run",
            hint=f"noetl status {state.execution_id} lists loops",
        )
    found = await services.ledger.find_by_key(state.execution_id, keys.loop_started(run_id))
    if found is None or not isinstance(found.event, LoopStarted):
        raise await _no_loop(services, state, step, run_id)
    run = state.runs.get(run_id)
    stage_id = found.event.stage_id
    opened = None
    if stage_id is not None:
        key = keys.stage_opened(stage_id)
        opened = await services.ledger.find_by_key(state.execution_id, key)
    is_opened = opened is not None and isinstance(opened.event, StageOpened)
    return LoopRecord(
        state=state,
        started=found.event,
        version=found.stream_version,
        live=run.loop if run is not None else None,
        policy=opened.event.frame_policy if is_opened else {},  # type: ignore[union-attr]  # just looked at
    )


async def _no_loop(
    services: ApiServices, state: ExecutionState, step: str, run_id: RunId
) -> ApiError:
    entered = await services.ledger.find_by_key(state.execution_id, f"run/{run_id}/enter")
    is_own = entered is not None and isinstance(entered.event, StepEnter)
    if state.source is not None and not is_own:
        detail = f"step {step[:200]!r} was taken over from execution {state.source.execution_id}"
        hint = f"ask for the items of execution {state.source.execution_id}"
    else:
        detail = (
            f"step {step[:200]!r} of execution {state.execution_id} has no items: no loop of it "
            "began in its latest run"
        )
        hint = "items are those of a loop; chunks of a stream and groups of a reduce are none"
    return ApiError(HTTPStatus.NOT_FOUND, code="no_loop", detail=detail, hint=hint)


async def count_units(services: ApiServices, record: LoopRecord) -> dict[str, int]:
    """Count the units of a loop by what became of them."""
    ended = await services.ledger.find_outcome(record.execution_id, record.run_id)
    if ended is not None and isinstance(ended.event, LoopDone | LoopFailed):
        stats = ended.event.stats
        return {
            "total": stats.total,
            "completed": stats.success,
            "failed": stats.failed,
            "cancelled": stats.cancelled,
        }
    live = record.live
    if live is None:
        # It was called off with its execution.
        rows = await services.projections.list_rows("loop", record.execution_id)
        return next((_counted(row) for row in rows if row["run_id"] == record.run_id), {})
    return {
        "total": live.total,
        "completed": live.success,
        "failed": live.failed,
        "running": live.in_flight,
    }


def _counted(row: dict[str, Any]) -> dict[str, int]:
    total, done, failed = row["total"] or 0, row["done"] or 0, row["failed"] or 0
    return {
        "total": total,
        "completed": done,
        "failed": failed,
        "cancelled": max(0, total - done - failed),
    }


async def read_layout(services: ApiServices, cut: Cut) -> Layout | None:
    """Return how grouped items are laid out, or None where they are not grouped."""
    if cut.layout_ref is None:
        return None
    return codec.convert(await reading.read(services, cut.layout_ref), Layout)
