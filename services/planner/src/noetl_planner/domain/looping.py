"""What all loops and reduces are asked, answered by the kind that a step has."""

from collections.abc import Iterator
from datetime import datetime

from noetl_contracts import facts
from noetl_contracts.status import StageStatus
from noetl_planner.domain import (
    cursors,
    ending,
    failure_policy,
    inside,
    issuing,
    items,
    reducing,
    units,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome
from noetl_replay.state import RunState

_ITEM_MODES = frozenset({"sequential", "parallel"})


def start(draft: Draft, run: RunState) -> Outcome | None:
    """Begin the work of an activation; raises `Refusal` for what cannot begin."""
    definition = draft.program.steps[run.step]
    failure_policy.check(definition)
    if definition.reduce is not None:
        return reducing.start(draft, run)
    loop = definition.loop
    if loop is None:
        issuing.issue_step(draft, run)
        return None
    if loop.cursor is not None:
        cursors.start(draft, run)
        return None
    by_item = loop.spec.mode in _ITEM_MODES and not inside.is_local(definition)
    return items.start(draft, run) if by_item else units.start(draft, run)


def go_on(draft: Draft, run: RunState) -> Outcome | None:
    """Hand out what may be handed out next; return the outcome of what has ended."""
    live = ending.live_loop(run)
    if live.mode == "reduce":
        return reducing.go_on(draft, run)
    if live.cut is not None:
        return units.go_on(draft, run)
    return cursors.look_again(draft, run) if live.slots else items.go_on(draft, run)


def wakes(draft: Draft, run: RunState) -> Iterator[datetime]:
    """Yield the instants at which a loop wants to be looked at again."""
    if run.loop is None:
        return
    yield from run.loop.retry_at.values()
    for slot in run.loop.slots:
        due = cursors.due_at(draft, run, slot)
        if due is not None:
            yield due


def collected(draft: Draft, run: RunState, fact: facts.ItemsCollected) -> Outcome:
    """End a loop whose results have been gathered."""
    return ending.end(draft, run, fact.result, error=fact.error)


def close_early(draft: Draft, run: RunState) -> None:
    """Close the stage of a run that is being called off."""
    if run.loop is None or run.loop.stage_id is None:
        return
    stage = draft.state.stages.get(run.loop.stage_id)
    if stage is not None:
        ending.close_stage(draft, stage, StageStatus.CANCELLED)
