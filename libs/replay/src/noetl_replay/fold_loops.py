"""What events mean to loops: items counted, slots taken, dried and failed."""

from typing import assert_never

from msgspec import UNSET

from noetl_contracts.events import command_events, loop_events, step_events
from noetl_contracts.ids import RunId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import RunStatus
from noetl_replay import fold_lineage
from noetl_replay.state import (
    CommandState,
    ExecutionState,
    LoopState,
    SlotState,
    StepState,
)


def apply_loop(
    state: ExecutionState,
    at: Envelope,
    event: loop_events.LoopStarted
    | loop_events.LoopResized
    | loop_events.LoopDone
    | loop_events.LoopFailed,
) -> None:
    """Apply an event of a loop epoch."""
    match event:
        case loop_events.LoopStarted():
            _start_loop(state, at, event)
        case loop_events.LoopResized():
            _resize_loop(state, at, event)
        case loop_events.LoopDone() | loop_events.LoopFailed():
            _finish_loop(state, at, event)
        case _:
            assert_never(event)


def _start_loop(state: ExecutionState, at: Envelope, event: loop_events.LoopStarted) -> None:
    loop_state = LoopState(
        run_id=event.run_id,
        step=event.step,
        mode=event.mode,
        max_in_flight=event.max_in_flight,
        total=event.total or 0,
        collection=event.collection,
        collection_ref=event.collection_ref,
        collection_form=event.collection_form,
        cut=event.cut,
        counts_frames=event.counts_frames,
        stage_id=event.stage_id,
        started_at=at.event_time,
        last_event_id=at.event_id,
    )
    if event.may_batch:
        loop_state.may_batch = True
    if event.taken is not None:
        loop_state.success = event.taken.completed
        loop_state.units_ok = 0 if event.taken.frames is None else event.taken.frames.units_ok
    state.warnings += len(event.notes)
    if event.stage_id is not None and event.cut is None:
        loop_state.slots = [SlotState(slot=slot) for slot in range(event.max_in_flight)]
    state.runs[event.run_id].loop = loop_state
    state.changes.loops[event.run_id] = loop_state


def _resize_loop(state: ExecutionState, at: Envelope, event: loop_events.LoopResized) -> None:
    """Change a loop's bound; slots beyond a smaller one stay, for what they have open."""
    loop_state = touch_loop(state, event.run_id)
    if loop_state is None:
        return
    loop_state.max_in_flight, loop_state.last_event_id = event.max_in_flight, at.event_id
    if loop_state.slots:
        missing = range(len(loop_state.slots), event.max_in_flight)
        # A new slot has not claimed yet, and before it is asked it is as one that found nothing.
        loop_state.slots += [
            SlotState(slot=slot, is_dry=True, commits_floor=-1) for slot in missing
        ]


def _finish_loop(
    state: ExecutionState, at: Envelope, event: loop_events.LoopDone | loop_events.LoopFailed
) -> None:
    state.ctx = {**state.ctx, **event.patch}
    step_state = state.steps.setdefault(event.step, StepState(step=event.step))
    step_state.result = event.result
    step_state.error = event.error if isinstance(event, loop_events.LoopFailed) else None
    fold_lineage.remember_run_result(state, at, event)
    loop_state = touch_loop(state, event.run_id)
    if loop_state is None:
        return
    loop_state.is_finished, loop_state.stats, loop_state.last_event_id = (
        True,
        event.stats,
        at.event_id,
    )
    failed = isinstance(event, loop_events.LoopFailed)
    loop_state.status = RunStatus.FAILED if failed else RunStatus.COMPLETED
    loop_state.collection = None


def touch_loop(state: ExecutionState, run_id: RunId) -> LoopState | None:
    """Return a live loop and mark it as changed; None when the epoch is over."""
    run = state.runs.get(run_id)
    if run is None or run.loop is None:
        return None
    state.changes.loops[run_id] = run.loop
    return run.loop


def find_slot(state: ExecutionState, run_id: RunId, slot: int | None) -> SlotState | None:
    """Return a live slot, or None when the command is not a slot's or the epoch is over."""
    if slot is None:
        return None
    loop_state = touch_loop(state, run_id)
    return loop_state.slots[slot] if loop_state is not None and loop_state.cut is None else None


def count_issued(state: ExecutionState, at: Envelope, event: command_events.CommandIssued) -> None:
    """Account a new item or slot command to its loop."""
    if event.item_index is not None and (loop_state := touch_loop(state, event.run_id)):
        loop_state.next_index = max(loop_state.next_index, event.item_index + 1)
        loop_state.in_flight += 1
        loop_state.last_event_id = at.event_id
    if (slot := find_slot(state, event.run_id, event.slot)) is not None:
        loop_state = state.runs[event.run_id].loop
        slot.command_id, slot.is_dry = event.command_id, False
        slot.rounds += 1
        slot.frames_in_round = 0
        slot.commits_floor = loop_state.commits if loop_state is not None else 0
        slot.claimed_at = at.event_time


def count_reissued(
    state: ExecutionState, event: command_events.CommandReissued, lost: CommandState
) -> None:
    """Account a lost attempt to its loop; a slot's next claim comes after all commits so far."""
    if (loop_state := touch_loop(state, event.run_id)) is None:
        return
    loop_state.retried += event.reason not in command_events.UNCOUNTED
    if lost.slot is not None:
        slot = loop_state.slots[lost.slot]
        slot.frames_in_round, slot.commits_floor = 0, loop_state.commits


def count_ended_item(
    state: ExecutionState, event: step_events.CallDone | step_events.CallError
) -> None:
    """Account a finished item to its loop."""
    loop_state = touch_loop(state, event.run_id)
    if loop_state is None:
        return
    loop_state.in_flight -= 1
    count_outcome(loop_state, event)


def count_outcome(
    loop_state: LoopState, event: step_events.CallDone | step_events.CallError
) -> None:
    """Count an item as succeeded or failed."""
    if isinstance(event, step_events.CallDone):
        loop_state.success += 1
        return
    loop_state.failed += 1
    loop_state.first_error = loop_state.first_error or event.error


def count_cancelled_item(state: ExecutionState, event: command_events.CommandCancelled) -> None:
    """Account an item that was called off although its loop goes on."""
    if event.item_index is not None and (loop_state := touch_loop(state, event.run_id)):
        loop_state.in_flight -= 1
        loop_state.cancelled += _count_items(state.commands.get(event.command_id))
    holder, run = state.commands.get(event.command_id), state.runs.get(event.run_id)
    if holder is not None and holder.frame_id is not None and run is not None and run.loop:
        run.loop.retry_at.pop(holder.frame_id, None)


def _count_items(command_state: CommandState | None) -> int:
    if command_state is None or command_state.batch is UNSET:
        return 1
    return len(command_state.batch)


def end_slot(state: ExecutionState, at: Envelope, event: command_events.CommandCompleted) -> None:
    """Account a slot whose last claim found nothing."""
    slot = find_slot(state, event.run_id, event.slot)
    if slot is None:
        return
    slot.is_dry, slot.command_id, slot.claimed_at = event.is_dry, None, at.event_time
    slot.commits_floor += slot.frames_in_round
    slot.frames_in_round = 0


def fail_slot(state: ExecutionState, event: command_events.CommandFailed) -> None:
    """Account a slot that cannot go on: its loop is going to fail."""
    slot = find_slot(state, event.run_id, event.slot)
    loop_state = touch_loop(state, event.run_id)
    if slot is None or loop_state is None:
        return
    slot.is_dry, slot.has_failed, slot.command_id = True, True, None
    slot.open_frame_id = None
    loop_state.first_error = loop_state.first_error or event.error
