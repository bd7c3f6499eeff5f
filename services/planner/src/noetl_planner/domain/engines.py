"""Which lane runs a frame: the worker's own event loop, or waves on Spark (language, 7.6)."""

from typing import Any

from noetl_contracts.commands import IO_LANE, SPARK_LANE
from noetl_planner.domain.crossover import Pace, is_spark_sooner
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook.model import Step
from noetl_replay.state import LoopState, RunState

ENGINES = ("auto", "io", "spark")
# Bodies that compute: everything else waits for someone, which needs no cores.
_COMPUTING = frozenset({"python", "duckdb", "noop"})
_NOT_IN_EXECUTORS = frozenset({"spark", "external", "playbook"})


def checked(engine: Any, *, step: str, field: str) -> str:
    """Admit the name of an engine; raises `Refusal`."""
    if engine not in ENGINES:
        known = ", ".join(ENGINES)
        raise Refusal.of("validation", step, f"{field}: {engine!r:.80} is not one of {known}")
    return str(engine)


def host(draft: Draft, run: RunState) -> str:
    """Choose the host of a run's frames.

    `auto` is Spark for bodies that only compute: from the start over at least as many rows as the
    deployment says are worth it, else for what is left once the pace of the first frames shows
    that it ends sooner there. A body that is a Spark job itself is the driver's, and one that may
    wait for someone cannot wait in an executor, whatever is written.
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
    if not _only_computes(step, policy):
        return IO_LANE
    rows_min = draft.limits.spark_rows_min
    is_large = 0 < rows_min <= loop.total
    return SPARK_LANE if is_large or _is_sooner(draft, loop) else IO_LANE


def _is_sooner(draft: Draft, loop: LoopState) -> bool:
    """Tell whether Spark ends a loop sooner whose frames are counted beforehand."""
    if loop.cut is None:
        return False
    pace = Pace(
        frames=loop.cut.units_all,
        ended=loop.units_ok + loop.units_failed,
        at_once=loop.max_in_flight,
        elapsed_s=(draft.now - loop.started_at).total_seconds(),
    )
    return is_spark_sooner(pace, draft.limits.cores)


def _only_computes(step: Step, policy: dict[str, Any]) -> bool:
    return not policy.get("transaction") and all(
        task.kind in _COMPUTING and task.rate_limit is None for task in step.tool
    )
