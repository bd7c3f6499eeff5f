"""Facts about frames: opened, closed, and slots that ran dry."""

from msgspec import UNSET

from noetl_contracts.events import frame_events
from noetl_contracts.ids import FrameId
from noetl_contracts.requests import facts
from noetl_contracts.status import FrameStatus
from noetl_planner.domain import command_facts, executions
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.loops import batches, cursors, frames
from noetl_planner.domain.steps import commands, waits
from noetl_replay.state import CommandState, FrameState, SlotState

GAP = "an earlier report of this slot was lost"


def open_frame(draft: DecisionDraft, fact: facts.FrameOpened) -> None:
    """Accept a recorded window of rows; a gap in the slot's frames means that facts were lost."""
    command_state = _find_live_command(draft, fact)
    slot = _find_slot(draft, command_state) if command_state is not None else None
    if command_state is None or slot is None or _is_repeated_open(draft, command_state, slot, fact):
        return
    if slot.open_frame_id not in {None, fact.frame_id} or fact.frame_index != slot.next_index:
        _resume_after_gap(draft, command_state)
        return
    commands.start_command(draft, command_state, fact.worker_id)
    frame_state = draft.state.frames.get(fact.frame_id)
    attempt = _recover_dispatches(
        draft, fact, last_attempt=frame_state.attempts if frame_state is not None else 0
    )
    _append_dispatched(draft, fact, attempt)
    draft.append_event(
        frame_events.FrameStarted(
            frame_id=fact.frame_id,
            stage_id=fact.stage_id,
            step=command_state.step,
            attempt=attempt,
            worker_id=fact.worker_id,
        )
    )


def _recover_dispatches(draft: DecisionDraft, fact: facts.FrameOpened, *, last_attempt: int) -> int:
    """Record dispatches that only the frame's own record shows; return the next attempt."""
    attempts = last_attempt + fact.attempts_before
    for attempt in range(last_attempt + 1, attempts + 1):
        _append_dispatched(draft, fact, attempt, recovery={"source": "frame record"})
        draft.append_event(
            frame_events.FrameAbandoned(
                frame_id=fact.frame_id,
                stage_id=fact.stage_id,
                step=_get_step_name(draft, fact),
                attempt=attempt,
                reason=GAP,
            )
        )
    return attempts + 1


def _append_dispatched(
    draft: DecisionDraft,
    fact: facts.FrameOpened,
    attempt: int,
    recovery: dict[str, str] | None = None,
) -> None:
    draft.append_event(
        frame_events.FrameDispatched(
            frame_id=fact.frame_id,
            stage_id=fact.stage_id,
            step=_get_step_name(draft, fact),
            command_id=fact.command_id,
            slot=fact.slot,
            frame_index=fact.frame_index,
            attempt=attempt,
            fence=fact.attempt,
            row_count=fact.row_count,
            rows_ref=fact.rows_ref,
            worker_id=fact.worker_id,
            parent_frame_id=fact.parent_frame_id,
            recovery=dict(recovery) if recovery else None,
        )
    )


def close_frame(draft: DecisionDraft, fact: facts.FrameClosed) -> None:
    """Accept a frame's outcome; an old fence is refused and recorded."""
    command_state = draft.state.commands.get(fact.command_id)
    current = commands.find_current_attempt(draft, fact.command_id)
    if current is not None and fact.attempt < current:
        _reject_commit(
            draft, fact, current, commands.STALE if command_state is not None else commands.SETTLED
        )
        return
    if command_state is None or command_state.attempt != fact.attempt:
        return
    if command_state.frame_id is not None:
        command_facts.close_unit(draft, command_state, fact)
        return
    slot = _find_slot(draft, command_state)
    if slot is None:
        return
    opened = _find_open_frame(draft, slot, fact)
    if opened is None or not _is_known_attempt(opened, command_state):
        if fact.frame_index >= slot.next_index:
            _reject_commit(draft, fact, command_state.attempt, GAP)
            _resume_after_gap(draft, command_state)
        return
    frames.record_frame_end(draft, opened, fact)
    _continue_cursor(draft, command_state)


def _reject_commit(
    draft: DecisionDraft, fact: facts.FrameClosed, current: int, reason: str
) -> None:
    commands.reject_frame_commit(
        draft,
        frame_id=fact.frame_id,
        stage_id=fact.stage_id,
        step=_get_step_name(draft, fact),
        attempt=fact.attempt,
        current=current,
        reason=reason,
        worker_id=fact.worker_id,
    )


def park_command(draft: DecisionDraft, fact: facts.CommandParked) -> None:
    """Park a command that waits; a slot's command only in a frame that is open in the history."""
    command_state = _find_live_command(draft, fact)
    if command_state is None:
        return
    if command_state.slot is not None and not _is_running_frame(
        draft, command_state, fact.frame_id
    ):
        _resume_after_gap(draft, command_state)
        return
    if fact.item_index is not UNSET:
        moved = batches.move_waiting_item(draft, command_state, fact)
        if moved is None:
            return
        command_state = moved
    waits.park_command(draft, command_state, fact)


def _is_running_frame(
    draft: DecisionDraft, command_state: CommandState, frame_id: FrameId | None
) -> bool:
    """Tell whether the slot has this frame open; None, of an earlier release, stands for any.

    It has not when the end of an earlier frame, or this one's beginning, was lost on its way.
    """
    slot = _find_slot(draft, command_state)
    if slot is None or slot.open_frame_id is None:
        return False
    opened = draft.state.frames[slot.open_frame_id]
    return frame_id in {None, opened.frame_id} and _is_known_attempt(opened, command_state)


def record_dry_slot(draft: DecisionDraft, fact: facts.SlotDry) -> None:
    """Accept that a slot's latest claim found nothing."""
    command_state = _find_live_command(draft, fact)
    slot = _find_slot(draft, command_state) if command_state is not None else None
    if command_state is None or slot is None:
        return
    if slot.open_frame_id is not None or fact.next_index != slot.next_index:
        _resume_after_gap(draft, command_state)
        return
    commands.start_command(draft, command_state, fact.worker_id)
    commands.complete_command(
        draft, command_state, worker_id=fact.worker_id, metrics=fact.metrics, is_dry=True
    )
    _continue_cursor(draft, command_state)


def _continue_cursor(draft: DecisionDraft, command_state: CommandState) -> None:
    run = draft.state.runs.get(command_state.run_id)
    if run is None or draft.state.cancelling_at is not None:
        executions.settle_cancellation(draft)
        return
    outcome = cursors.continue_cursor_loop(draft, run)
    if outcome is not None:
        executions.end_run(draft, run, outcome.status, error=outcome.error)
        executions.advance_execution(draft)


def _resume_after_gap(draft: DecisionDraft, command_state: CommandState) -> None:
    """Reissue a slot's command after facts of it were lost; its holder is fenced off."""
    draft.to_stop[command_state.command_id] = None
    command_facts.lose_command(
        draft,
        facts.CommandLost(
            command_id=command_state.command_id,
            attempt=command_state.attempt,
            reason=GAP,
            is_release=False,
        ),
    )


def _find_live_command(
    draft: DecisionDraft, fact: facts.FrameOpened | facts.SlotDry | facts.CommandParked
) -> CommandState | None:
    return commands.find_live_command(
        draft,
        fact.command_id,
        fact.attempt,
        fact=str(fact.__struct_config__.tag),
        worker_id=fact.worker_id,
    )


def _is_repeated_open(
    draft: DecisionDraft, command_state: CommandState, slot: SlotState, fact: facts.FrameOpened
) -> bool:
    """Tell whether the frame is open already: by this attempt, or since before it waited."""
    if fact.frame_index < slot.next_index:
        return True
    opened = _find_open_frame(draft, slot, fact)
    return opened is not None and _is_known_attempt(opened, command_state)


def _find_open_frame(
    draft: DecisionDraft, slot: SlotState, fact: facts.FrameOpened | facts.FrameClosed
) -> FrameState | None:
    is_open = slot.open_frame_id == fact.frame_id
    return draft.state.frames.get(fact.frame_id) if is_open else None


def _is_known_attempt(opened: FrameState, command_state: CommandState) -> bool:
    """Tell whether the history knows that the command's attempt runs the frame."""
    has_waited = command_state.resume is not None and opened.status is not FrameStatus.ABANDONED
    return has_waited or opened.fence == command_state.attempt


def _find_slot(draft: DecisionDraft, command_state: CommandState) -> SlotState | None:
    run = draft.state.runs.get(command_state.run_id)
    if run is None or run.loop is None or command_state.slot is None:
        return None
    return run.loop.slots[command_state.slot]


def _get_step_name(draft: DecisionDraft, fact: facts.FrameOpened | facts.FrameClosed) -> str:
    stage = draft.state.stages.get(fact.stage_id)
    return stage.step if stage is not None else ""
