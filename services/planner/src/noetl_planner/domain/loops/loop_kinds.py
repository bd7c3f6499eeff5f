"""Operations of all loops and reduces, dispatched by the kind of the step."""

from collections.abc import Iterator
from datetime import datetime

from noetl_contracts.requests import facts
from noetl_contracts.status import StageStatus
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import RunOutcome
from noetl_planner.domain.loops import batches, cursors, frames, items, loop_ends, reduce_stages
from noetl_planner.domain.steps import commands, increments, policies
from noetl_replay.state import RunState

_ITEM_MODES = frozenset({"sequential", "parallel"})


def start_run_work(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Begin the work of an activation; raises `Refusal` for what cannot begin."""
    definition = draft.program.steps[run.step]
    policies.check_failure_policy(definition)
    if definition.reduce is not None:
        return reduce_stages.start_reduce(draft, run)
    loop = definition.loop
    if loop is None:
        increments.begin_increment(draft, run)
        commands.issue_step(draft, run)
        return None
    if loop.cursor is not None:
        cursors.start_cursor_loop(draft, run)
        return None
    by_item = loop.spec.mode in _ITEM_MODES and not items.is_local_loop(definition)
    return items.start_item_loop(draft, run) if by_item else frames.start_frame_loop(draft, run)


def continue_loop(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Hand out what may be handed out next; return the outcome of what has ended."""
    loop_state = loop_ends.get_loop(run)
    if loop_state.mode == "reduce":
        return reduce_stages.continue_reduce(draft, run)
    if loop_state.cut is not None:
        return frames.continue_frame_loop(draft, run)
    return (
        cursors.continue_cursor_loop(draft, run)
        if loop_state.slots
        else items.continue_item_loop(draft, run)
    )


def iterate_wake_times(draft: DecisionDraft, run: RunState) -> Iterator[datetime]:
    """Yield the instants at which a loop wants to be looked at again."""
    if run.loop is None:
        return
    yield from run.loop.retry_at.values()
    measuring_end = batches.find_measuring_end(draft, run.loop)
    if measuring_end is not None:
        yield measuring_end
    for slot in run.loop.slots:
        due = cursors.find_slot_due_at(draft, run, slot)
        if due is not None:
            yield due


def end_collected_loop(
    draft: DecisionDraft, run: RunState, fact: facts.ItemsCollected
) -> RunOutcome:
    """End a loop whose results have been gathered."""
    return loop_ends.end_loop(draft, run, fact.result, error=fact.error)


def close_stage_early(draft: DecisionDraft, run: RunState) -> None:
    """Close the stage of a run that is being called off."""
    if run.loop is None or run.loop.stage_id is None:
        return
    stage = draft.state.stages.get(run.loop.stage_id)
    if stage is not None:
        loop_ends.close_stage(draft, stage, StageStatus.CANCELLED)
