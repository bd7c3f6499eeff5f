"""Which pool a step's commands go to, how urgent they are, and which pools there are."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from noetl_contracts import codec, spelling
from noetl_contracts.commands.command_work import DEFAULT_POOL, IO_LANE
from noetl_contracts.commands.worker_pools import Pools, Priority, build_lane_name
from noetl_contracts.errors import ErrorObject, get_error_code
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_playbook.model import tools

KIND = "requirement_missing"
PARKING = frozenset({"playbook", "external"})


class PoolDemand(Struct, frozen=True, kw_only=True):
    """One step and its pool; `needs_stream` says why no worker over HTTP can run it.

    `instead` is what may be written so that one can, where there is something.
    """

    step: str
    pool: str
    needs_stream: str | None = None
    instead: str | None = None


def select_pool_and_lane(
    draft: DecisionDraft, name: str, *, host: str = IO_LANE
) -> tuple[str, str]:
    """Return the pool and the lane of a step's commands; only the io host knows priorities.

    A step's own word counts most, then the request's, then the playbook's.
    """
    step_spec = draft.program.steps[name].spec
    exec_spec = draft.program.playbook.executor.spec
    pool = step_spec.pool or draft.state.pool or exec_spec.pool or DEFAULT_POOL
    if host != IO_LANE:
        return pool, host
    priority = step_spec.priority or draft.state.priority or exec_spec.priority or Priority.NORMAL
    return pool, build_lane_name(host, Priority(priority))


def list_pool_demands(model: Mapping[str, Any], requested: str | None) -> list[PoolDemand]:
    """List what the steps of a canonical playbook ask for."""
    whole = model.get("executor", {}).get("spec", {}).get("pool")
    return [
        PoolDemand(
            step=step["step"],
            pool=step.get("spec", {}).get("pool") or requested or whole or DEFAULT_POOL,
            needs_stream=needs,
            instead=instead,
        )
        for step in model.get("workflow", ())
        for needs, instead in (_explain_stream_need(step),)
    ]


def find_pool_error(pool_demands: Iterable[PoolDemand], pools: Pools) -> ErrorObject | None:
    """Name the first step whose commands nobody could ever take, or None."""
    for wish in pool_demands:
        if not pools.has_pool(wish.pool):
            known_names = ", ".join(sorted(pools.pool_names))
            guess = spelling.suggest_word(wish.pool, pools.pool_names)
            return _build_pool_error(
                wish,
                f"there is no pool {wish.pool!r} here"
                + (f" ({guess})" if guess else "")
                + f"; the pools are {known_names}",
            )
        if wish.needs_stream is not None and wish.pool in pools.by_http:
            return _build_pool_error(
                wish,
                f"pool {wish.pool!r} is served over HTTP, and {wish.needs_stream}: "
                "give the step a pool that is served by JetStream (spec.pool)"
                + (f", or {wish.instead}" if wish.instead else ""),
            )
    return None


def _explain_stream_need(step: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Say what of a step the claim API has no words for, if anything, and what it has some for."""
    if (step.get("loop") or {}).get("cursor") is not None:
        instead = "read the rows in a step before it and loop over them in mode chunked or fanout"
        return "slots of a cursor loop claim rows themselves", instead
    if step.get("incremental") is not None:
        return "a step that reads increments says with its result how far it read", None
    for task in step.get("tool", ()):
        if task.get("kind") in PARKING:
            why = f"a task of kind {task['kind']!r} lets its command go and resumes it"
            return why, "put that task into a step of its own there" if _has_several_tasks(
                step
            ) else None
        if task.get("stream") is not None:
            instead = "leave out 'stream' and loop over the whole result in mode chunked"
            return "a task that streams sends its rows in chunks", instead
    return None, None


def _has_several_tasks(step: Mapping[str, Any]) -> bool:
    return len(step.get("tool", ())) > 1


def _build_pool_error(wish: PoolDemand, message: str) -> ErrorObject:
    return ErrorObject(
        kind=KIND,
        code=get_error_code(KIND),
        step=wish.step,
        message=f"step {wish.step!r}: {message}",
    )


EXECUTOR = "(executor)"


def find_missing_requirement(draft: DecisionDraft, pool: str | None) -> ErrorObject | None:
    """Return the error of an execution that needs tools or pools which are not here, or None."""
    required = draft.program.playbook.executor.requires.tools
    program = draft.program
    executor = codec.to_builtins(program.playbook.executor)
    steps = [program.get_step_definition(name) for name in program.order]
    pool_demands = list_pool_demands({"executor": executor, "workflow": steps}, pool)
    return find_missing_tools(required, enabled=draft.limits.tools) or find_pool_error(
        pool_demands, draft.limits.pools
    )


def find_missing_tools(
    required: Sequence[str], *, enabled: Iterable[str] = ()
) -> ErrorObject | None:
    """Name the tool kinds that are required and not enabled; no `enabled` means all there are."""
    kinds = frozenset(enabled)
    absent = [
        kind
        for kind in required
        if not tools.is_kind_available(tools.KIND_ALIASES.get(kind, kind))
        or (kinds and tools.KIND_ALIASES.get(kind, kind) not in kinds)
    ]
    if not absent:
        return None
    return ErrorObject(
        kind="requirement_missing",
        code="REQUIREMENT_MISSING",
        step=EXECUTOR,
        message=f"executor.requires.tools: {', '.join(absent)} "
        f"{'is' if len(absent) == 1 else 'are'} not enabled here: "
        "enable the kind on the planner and its workers, or run it elsewhere",
    )
