"""Which lane runs a frame: the worker's own event loop, or waves on Spark (language, 7.6).

Also which worker is offered a command first: the one nearest its inputs.
"""

from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from noetl_contracts.commands import placement
from noetl_contracts.commands.command_work import IO_LANE, SPARK_LANE
from noetl_contracts.commands.worker_pools import choose_nearest_worker
from noetl_contracts.ids import CommandId, WorkerId
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_planner.domain.decision.spark_threshold import LoopPace, is_spark_sooner
from noetl_playbook.model.playbook import Step
from noetl_replay.state import CommandState, LoopState, RunState, StepState

ENGINES = ("auto", "io", "spark")
# Bodies that compute: everything else waits for someone, which needs no cores.
_COMPUTING = frozenset({"python", "duckdb", "noop"})
_NOT_IN_EXECUTORS = frozenset({"spark", "external", "playbook"})


def check_engine(engine: Any, *, step: str, field: str) -> str:
    """Admit the name of an engine; raises `Refusal`."""
    if engine not in ENGINES:
        known_names = ", ".join(ENGINES)
        raise Refusal.for_step(
            "validation", step, f"{field}: {engine!r:.80} is not one of {known_names}"
        )
    return str(engine)


def choose_lane_host(draft: DecisionDraft, run: RunState) -> str:
    """Choose the host of a run's frames.

    `auto` is Spark for bodies that only compute: from the start over at least as many rows as the
    deployment says are worth it, else for what is left once the pace of the first frames shows
    that it ends sooner there. A body that is a Spark job itself runs on the driver. A body that may
    park cannot run in an executor, also when the playbook asks for it.
    """
    loop = run.loop
    if loop is None or loop.stage_id is None:
        return IO_LANE
    policy = draft.state.stages[loop.stage_id].frame_policy
    step = draft.program.steps[run.step]
    engine = policy.get("engine", "auto")
    if engine == "io" or any(task.kind in _NOT_IN_EXECUTORS for task in step.tool):
        return IO_LANE
    if engine == "spark":
        return SPARK_LANE
    if not _has_only_computing_tasks(step, policy):
        return IO_LANE
    rows_min = draft.limits.spark_rows_min
    is_large = 0 < rows_min <= loop.total
    return SPARK_LANE if is_large or _is_rest_sooner_on_spark(draft, loop) else IO_LANE


def _is_rest_sooner_on_spark(draft: DecisionDraft, loop: LoopState) -> bool:
    """Tell whether Spark ends a loop sooner whose frames are counted beforehand."""
    if loop.cut is None:
        return False
    pace = LoopPace(
        frames=loop.cut.total_units,
        ended=loop.units_ok + loop.units_failed,
        at_once=loop.max_in_flight,
        elapsed_s=(draft.now - loop.started_at).total_seconds(),
    )
    return is_spark_sooner(pace, draft.limits.cores)


def _has_only_computing_tasks(step: Step, policy: dict[str, Any]) -> bool:
    return not policy.get("transaction") and all(
        task.kind in _COMPUTING and task.rate_limit is None for task in step.tool
    )


def compute_input_locality(draft: DecisionDraft, run: RunState) -> dict[str, str]:
    """Return what the places share where a run's inputs were made that are kept by reference.

    What travels within the command is nearest everywhere; of it nothing is said.
    """
    mentioned = draft.program.get_readable_names(run.step)
    reduce = draft.program.steps[run.step].reduce
    sources = frozenset(reduce.from_) if reduce is not None else frozenset()
    # Names are looked up, as a playbook may have far more steps than one of them names.
    steps = draft.state.steps
    named = [steps[name] for name in sorted(mentioned - sources) if name in steps]
    if run.came_from in steps and run.came_from not in mentioned | sources:
        named.append(steps[run.came_from])
    reduced = [steps[name].locality for name in sorted(sources) if name in steps]
    return placement.find_shared_place(
        [*reduced, *(step.locality for step in named if _has_stored_result(step))]
    )


def choose_offer(
    draft: DecisionDraft, inputs: placement.Place, *, pool: str, host: str
) -> tuple[WorkerId, datetime] | None:
    """Choose who may take a command before all others, and until when; None: anybody may."""
    is_streamed = pool not in draft.limits.pools.by_http
    if not (inputs and draft.workers and draft.limits.offer_s and is_streamed):
        return None
    beats = [
        structs.replace(beat, running=beat.running + draft.offered_to[beat.worker_id, host])
        for beat in draft.workers
    ]
    chosen = choose_nearest_worker(inputs, beats, pool=pool, lane=host)
    if chosen is None:
        return None
    draft.offered_to[chosen, host] += 1
    return chosen, draft.now + timedelta(seconds=draft.limits.offer_s)


def grant_offer(draft: DecisionDraft, command_state: CommandState, worker_id: WorkerId) -> None:
    """Tell a worker to whom a command was offered that it has it; hints get lost, so again."""
    if (
        command_state.target is not None
        and command_state.target == worker_id == command_state.worker_id
    ):
        draft.granted[command_state.command_id] = command_state.attempt


def list_untaken_commands(draft: DecisionDraft) -> list[CommandId]:
    """List the commands whose offer has ended and that nobody has."""
    return [command_id for command_id, until in draft.state.offered.items() if until <= draft.now]


def _has_stored_result(step: StepState) -> bool:
    return step.result is not None and step.result.reference is not None
