"""Facts that control an execution: pause, resume, resized loops, and writes to `ctx`.

A paused execution dispatches nothing; what runs may finish, and its bounds in time go on.
"""

from typing import assert_never

from noetl_contracts.events import execution_events, loop_events
from noetl_contracts.events.command_events import RELEASED
from noetl_contracts.ids import CommandId
from noetl_contracts.requests import facts
from noetl_planner.domain import executions, timers
from noetl_planner.domain.decision import ctx_writes, evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_planner.domain.loops import cursors, items, loop_kinds
from noetl_planner.domain.steps import commands
from noetl_replay.state import RunState

WHERE = "(api)"
ControlFact = facts.PauseRequested | facts.ResumeRequested | facts.CtxWriteRequested


def pause_execution(draft: DecisionDraft, fact: facts.PauseRequested) -> None:
    """Hold an execution; one that is held already, or being cancelled, stays as it is."""
    if draft.state.is_halted():
        return
    draft.append_event(
        execution_events.ExecutionPaused(
            request_id=fact.request_id, reason=fact.reason, requested_by=fact.requested_by
        )
    )
    draft.to_pause.update(dict.fromkeys(list_slot_commands(draft)))


def resume_execution(draft: DecisionDraft, fact: facts.ResumeRequested) -> None:
    """Send what was held back, and do what has become due meanwhile."""
    state = draft.state
    if state.paused_at is None or state.cancelling_at is not None:
        return
    command_ids = list(state.held)
    draft.append_event(
        execution_events.ExecutionResumed(
            request_id=fact.request_id, requested_by=fact.requested_by
        )
    )
    for command_id in command_ids:
        # Under a further attempt: the reaper may have called this one lost while it was held.
        commands.reissue_command(draft, draft.state.commands[command_id], RELEASED)
    timers.run_due_timers(draft, reason="resumed")


def list_slot_commands(draft: DecisionDraft) -> list[CommandId]:
    """Return the live commands that would go on by themselves: slots, frame after frame."""
    state = draft.state
    return [
        command_state.command_id
        for command_state in state.commands.values()
        if command_state.slot is not None and command_state.command_id not in state.held
    ]


def resize_loops(draft: DecisionDraft) -> None:
    """Look at every live loop again; what no longer gives a number keeps the one it has."""
    if draft.state.cancelling_at is not None:
        return
    for run in list(draft.state.runs.values()):
        if draft.state.is_terminal():
            return
        if run.run_id in draft.state.runs and _resize_loop(draft, run):
            _continue_resized(draft, run)


def _resize_loop(draft: DecisionDraft, run: RunState) -> bool:
    definition = draft.program.steps[run.step]
    loop_state, loop = run.loop, definition.loop
    if (
        loop_state is None
        or loop_state.is_finished
        or loop is None
        or items.is_local_loop(definition)
    ):
        return False
    if loop.spec.mode == "sequential" or not isinstance(loop.spec.max_in_flight, str):
        return False
    try:
        limit = items.render_in_flight(draft, loop, evaluation.build_scope(draft), run.step)
    except Refusal:
        return False
    if limit == loop_state.max_in_flight:
        return False
    draft.append_event(
        loop_events.LoopResized(step=run.step, run_id=run.run_id, max_in_flight=limit)
    )
    return True


def _continue_resized(draft: DecisionDraft, run: RunState) -> None:
    if run.loop is not None and run.loop.slots:
        cursors.resize_slots(draft, run)
    outcome = loop_kinds.continue_loop(draft, run)
    if outcome is not None:
        executions.end_run(draft, run, outcome.status, error=outcome.error)
        executions.advance_execution(draft)


def write_ctx(draft: DecisionDraft, fact: facts.CtxWriteRequested) -> None:
    """Accept a write; one that repeats another, or would make `ctx` too large, changes nothing."""
    state = draft.state
    removed = [key for key in fact.removed if key in state.ctx]
    if not fact.patch and not removed:
        return
    patch, refused = ctx_writes.store_ctx_patch(draft, fact.patch, step=WHERE)
    if refused is not None:
        return
    draft.append_event(
        execution_events.CtxPatched(
            patch=patch,
            removed=removed,
            request_id=fact.request_id,
            requested_by=fact.requested_by,
        )
    )
    resize_loops(draft)


def apply_control_fact(draft: DecisionDraft, control_fact: ControlFact) -> None:
    """Apply a request; one without a history to act on, or granted before, changes nothing."""
    if draft.state.version == 0 or control_fact.request_id in draft.state.granted_requests:
        return
    match control_fact:
        case facts.PauseRequested():
            pause_execution(draft, control_fact)
        case facts.ResumeRequested():
            resume_execution(draft, control_fact)
        case facts.CtxWriteRequested():
            write_ctx(draft, control_fact)
        case _:
            assert_never(control_fact)
