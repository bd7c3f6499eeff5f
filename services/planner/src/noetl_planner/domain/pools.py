"""Which pool a step's commands go to, how urgent they are, and which pools there are."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from noetl_contracts import spelling
from noetl_contracts.commands import DEFAULT_POOL, IO_LANE
from noetl_contracts.errors import ErrorObject, code_of
from noetl_contracts.lanes import Pools, Priority, lane_of
from noetl_planner.domain.draft import Draft

KIND = "requirement_missing"
PARKING = frozenset({"playbook", "external"})


class Wish(Struct, frozen=True, kw_only=True):
    """One step and its pool; `needs_stream` says why no worker over HTTP can run it.

    `instead` is what may be written so that one can, where there is something.
    """

    step: str
    pool: str
    needs_stream: str | None = None
    instead: str | None = None


def of_step(draft: Draft, name: str, *, host: str = IO_LANE) -> tuple[str, str]:
    """Return the pool and the lane of a step's commands; only the io host knows priorities.

    A step's own word counts most, then the request's, then the playbook's.
    """
    own = draft.program.steps[name].spec
    whole = draft.program.playbook.executor.spec
    pool = own.pool or draft.state.pool or whole.pool or DEFAULT_POOL
    if host != IO_LANE:
        return pool, host
    priority = own.priority or draft.state.priority or whole.priority or Priority.NORMAL
    return pool, lane_of(host, Priority(priority))


def wishes(model: Mapping[str, Any], requested: str | None) -> list[Wish]:
    """List what the steps of a canonical playbook ask for."""
    whole = model.get("executor", {}).get("spec", {}).get("pool")
    return [
        Wish(
            step=step["step"],
            pool=step.get("spec", {}).get("pool") or requested or whole or DEFAULT_POOL,
            needs_stream=needs,
            instead=instead,
        )
        for step in model.get("workflow", ())
        for needs, instead in (_needs_stream(step),)
    ]


def fault(found: Iterable[Wish], pools: Pools) -> ErrorObject | None:
    """Name the first step whose commands nobody could ever take, or None."""
    for wish in found:
        if not pools.has(wish.pool):
            known = ", ".join(sorted(pools.names))
            guess = spelling.hint(wish.pool, pools.names)
            return _error(
                wish,
                f"there is no pool {wish.pool!r} here"
                + (f" ({guess})" if guess else "")
                + f"; the pools are {known}",
            )
        if wish.needs_stream is not None and wish.pool in pools.by_http:
            return _error(
                wish,
                f"pool {wish.pool!r} is served over HTTP, and {wish.needs_stream}: "
                "give the step a pool that is served by JetStream (spec.pool)"
                + (f", or {wish.instead}" if wish.instead else ""),
            )
    return None


def _needs_stream(step: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Say what of a step the claim API has no words for, if anything, and what it has some for."""
    if (step.get("loop") or {}).get("cursor") is not None:
        instead = "read the rows in a step before it and loop over them in mode chunked or fanout"
        return "slots of a cursor loop claim rows themselves", instead
    for task in step.get("tool", ()):
        if task.get("kind") in PARKING:
            why = f"a task of kind {task['kind']!r} lets its command go and resumes it"
            return why, "put that task into a step of its own there" if _has_more(step) else None
        if task.get("stream") is not None:
            instead = "leave out 'stream' and loop over the whole result in mode chunked"
            return "a task that streams sends its rows in chunks", instead
    return None, None


def _has_more(step: Mapping[str, Any]) -> bool:
    return len(step.get("tool", ())) > 1


def _error(wish: Wish, message: str) -> ErrorObject:
    return ErrorObject(
        kind=KIND, code=code_of(KIND), step=wish.step, message=f"step {wish.step!r}: {message}"
    )
