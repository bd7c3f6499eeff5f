"""What events mean to stages and frames."""

from typing import assert_never

from msgspec import UNSET

from noetl_contracts.events import frame_events, loop_events
from noetl_contracts.ids import FrameId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import FrameStatus
from noetl_replay import fold_commands, fold_loops
from noetl_replay.state import (
    ExecutionState,
    FrameState,
    LoopState,
    SlotState,
    StageState,
    remember_rejection,
)

_Event = (
    loop_events.StageOpened
    | loop_events.StageClosed
    | loop_events.ReduceLevelOpened
    | frame_events.FrameDispatched
    | frame_events.FrameStarted
    | frame_events.FrameHeartbeat
    | frame_events.FrameAbandoned
    | frame_events.FrameCommitted
    | frame_events.FrameFailed
    | frame_events.FrameCommitRejected
)


def apply_frame(state: ExecutionState, at: Envelope, event: _Event) -> None:
    """Apply an event of a stage or frame."""
    match event:
        case loop_events.StageOpened():
            _open_stage(state, at, event)
        case loop_events.StageClosed():
            _close_stage(state, at, event)
        case loop_events.ReduceLevelOpened():
            _open_reduce_level(state, at, event)
        case frame_events.FrameDispatched():
            _dispatch_frame(state, at, event)
        case frame_events.FrameStarted() | frame_events.FrameHeartbeat():
            frame_state = _touch_frame(state, event.frame_id)
            frame_state.status = FrameStatus.RUNNING
            frame_state.owner_worker = frame_state.owner_worker or event.worker_id
            _note_heartbeat(state, at, event.frame_id)
        case frame_events.FrameAbandoned():
            _abandon_frame(state, event)
        case frame_events.FrameCommitted() | frame_events.FrameFailed():
            _end_frame(state, at, event)
        case frame_events.FrameCommitRejected():
            remember_rejection(state, f"{event.frame_id}/{event.attempt}")
        case _:
            assert_never(event)


def _abandon_frame(state: ExecutionState, event: frame_events.FrameAbandoned) -> None:
    lost = _touch_frame(state, event.frame_id)
    lost.status, lost.owner_worker = FrameStatus.ABANDONED, None
    loop_state = _touch_frame_loop(state, lost)
    if loop_state is None or not has_planned_frames(loop_state):
        return
    remember_retry(loop_state, lost, event)
    holder = state.commands.get(lost.command_id)
    if event.error is not None and holder is not None:
        # What failed is tried from its beginning, not from where it once waited.
        holder.resume = None


def _open_stage(state: ExecutionState, at: Envelope, event: loop_events.StageOpened) -> None:
    stage_state = StageState(
        stage_id=event.stage_id,
        run_id=event.run_id,
        step=event.step,
        kind=event.kind,
        slots=event.slots,
        frame_policy=event.frame_policy,
        opened_event_id=at.event_id,
        started_at=at.event_time,
        parent_stage_id=UNSET if event.parent_stage_id is None else event.parent_stage_id,
    )
    state.stages[event.stage_id] = state.changes.stages[event.stage_id] = stage_state


def _close_stage(state: ExecutionState, at: Envelope, event: loop_events.StageClosed) -> None:
    closed = state.stages.pop(event.stage_id)
    closed.status, closed.closed_event_id = event.status, at.event_id
    closed.ended_at = at.event_time
    state.changes.stages[event.stage_id] = closed
    for frame_state in [
        frame for frame in state.frames.values() if frame.stage_id == event.stage_id
    ]:
        del state.frames[frame_state.frame_id]


def _dispatch_frame(
    state: ExecutionState, at: Envelope, event: frame_events.FrameDispatched
) -> None:
    frame_state = state.frames.get(event.frame_id)
    if frame_state is None:
        frame_state = state.frames[event.frame_id] = FrameState(
            frame_id=event.frame_id,
            stage_id=event.stage_id,
            command_id=event.command_id,
            step=event.step,
            slot=event.slot,
            frame_index=event.frame_index,
            row_count=event.row_count,
            rows_ref=event.rows_ref,
            parent_frame_id=event.parent_frame_id,
            claimed_event_id=at.event_id,
            created_at=at.event_time,
        )
    frame_state.attempts, frame_state.status = event.attempt, FrameStatus.CLAIMED
    frame_state.fence = event.fence
    frame_state.owner_worker, frame_state.claimed_event_id = event.worker_id, at.event_id
    frame_state.command_id = event.command_id
    state.changes.frames[event.frame_id] = frame_state
    loop = _touch_frame_loop(state, frame_state)
    if loop is not None and has_planned_frames(loop):
        count_dispatched_frame(state, loop, frame_state, event)
    frame_slot = _find_frame_slot(state, frame_state)
    if frame_slot is not None:
        frame_slot.open_frame_id, frame_slot.next_index = event.frame_id, event.frame_index
    _note_heartbeat(state, at, event.frame_id)


def _end_frame(
    state: ExecutionState,
    at: Envelope,
    event: frame_events.FrameCommitted | frame_events.FrameFailed,
) -> None:
    frame_state = _touch_frame(state, event.frame_id)
    _note_heartbeat(state, at, event.frame_id)
    del state.frames[event.frame_id]
    holder = state.commands.get(frame_state.command_id)
    if holder is not None:
        # A slot goes on with frames that have not waited.
        holder.resume = None
    failed = isinstance(event, frame_events.FrameFailed)
    frame_state.status = FrameStatus.FAILED if failed else FrameStatus.COMPLETED
    frame_state.terminal_event_id, frame_state.completed_at = at.event_id, at.event_time
    frame_state.metrics, frame_state.row_count = event.metrics, event.row_count
    frame_state.rows_failed = (
        event.rows_failed if isinstance(event, frame_events.FrameFailed) else 0
    )
    frame_state.output_ref = event.result
    state.warnings += len(event.notes)
    state.ctx = {**state.ctx, **event.patch}
    state.frames_total += 1
    state.rows_total += frame_state.row_count
    _count_frame(state, frame_state)
    _count_rows(state, frame_state, event)
    fold_commands.add_run_metrics(state, state.stages[frame_state.stage_id].run_id, event.tasks)


def _count_frame(state: ExecutionState, ended_frame: FrameState) -> None:
    owner = state.stages[ended_frame.stage_id]
    owner.frames += 1
    owner.rows += ended_frame.row_count
    owner.rows_failed += ended_frame.rows_failed
    owner.frames_failed += ended_frame.status is FrameStatus.FAILED
    state.changes.stages[owner.stage_id] = owner


def _count_rows(
    state: ExecutionState,
    ended_frame: FrameState,
    event: frame_events.FrameCommitted | frame_events.FrameFailed,
) -> None:
    loop_state = fold_loops.touch_loop(state, state.stages[ended_frame.stage_id].run_id)
    if loop_state is None:
        return
    if has_planned_frames(loop_state):
        count_ended_frame(loop_state, ended_frame, event)
        loop_state.first_error = loop_state.first_error or getattr(event, "error", None)
        return
    loop_state.commits += 1
    loop_state.total += ended_frame.row_count
    loop_state.failed += ended_frame.rows_failed
    loop_state.success += ended_frame.row_count - ended_frame.rows_failed
    if isinstance(event, frame_events.FrameFailed):
        loop_state.first_error = loop_state.first_error or event.error
    slot = loop_state.slots[ended_frame.slot]
    slot.open_frame_id = None
    slot.next_index = ended_frame.frame_index + 1
    slot.rows_left = event.rows_left
    slot.frames_in_round += 1


def _touch_frame(state: ExecutionState, frame_id: FrameId) -> FrameState:
    frame_state = state.frames[frame_id]
    state.changes.frames[frame_id] = frame_state
    return frame_state


def _touch_frame_loop(state: ExecutionState, frame_state: FrameState) -> LoopState | None:
    return fold_loops.touch_loop(state, state.stages[frame_state.stage_id].run_id)


def _find_frame_slot(state: ExecutionState, frame_state: FrameState) -> SlotState | None:
    return fold_loops.find_slot(state, state.stages[frame_state.stage_id].run_id, frame_state.slot)


def _note_heartbeat(state: ExecutionState, at: Envelope, frame_id: FrameId) -> None:
    """Count a frame's sign of life as one of the command that runs it."""
    holder = state.commands.get(state.frames[frame_id].command_id)
    if holder is not None:
        holder.heard_at, holder.losses = at.event_time, 0
        state.changes.commands[holder.command_id] = holder


def _open_reduce_level(
    state: ExecutionState, at: Envelope, event: loop_events.ReduceLevelOpened
) -> None:
    """Begin a level of a reduce stage: its groups are counted from zero."""
    state.runs[event.run_id].loop = LoopState(
        run_id=event.run_id,
        step=event.step,
        mode="reduce",
        max_in_flight=event.max_in_flight,
        started_at=at.event_time,
        total=event.cut.units,
        collection_ref=event.parts_ref,
        stage_id=event.stage_id,
        cut=event.cut,
        counts_frames=True,
        level=event.level,
        last_event_id=at.event_id,
    )


def has_planned_frames(loop_state: LoopState | None) -> bool:
    """Tell whether the planner mints the frames of a loop."""
    return loop_state is not None and loop_state.cut is not None


def count_dispatched_frame(
    state: ExecutionState,
    loop_state: LoopState,
    frame_state: FrameState,
    event: frame_events.FrameDispatched,
) -> None:
    """Account a frame that was handed out to its unit and to the command that runs it."""
    frame_state.start, frame_state.retry_at = event.start, None
    loop_state.retry_at.pop(event.frame_id, None)
    holder = state.commands.get(event.command_id)
    if holder is not None:
        holder.frame_id = event.frame_id
    if event.attempt == 1 and event.parent_frame_id is None:
        loop_state.next_index = max(loop_state.next_index, event.slot + 1)
        loop_state.in_flight += 1


def remember_retry(
    loop_state: LoopState, lost: FrameState, event: frame_events.FrameAbandoned
) -> None:
    """Remember when a frame may be handed out again."""
    lost.retry_at = event.retry_at
    if event.retry_at is not None:
        loop_state.retry_at[event.frame_id] = event.retry_at


def count_ended_frame(
    loop_state: LoopState,
    ended_frame: FrameState,
    event: frame_events.FrameCommitted | frame_events.FrameFailed,
) -> None:
    """Count a frame that ended; a unit ends with its last frame."""
    units_ok, units_failed = _count_units(loop_state, ended_frame, event)
    if loop_state.counts_frames:
        loop_state.success += units_ok
        loop_state.failed += units_failed
    else:
        loop_state.success += ended_frame.row_count - ended_frame.rows_failed
        loop_state.failed += ended_frame.rows_failed
    loop_state.retry_at.pop(event.frame_id, None)
    if event.rows_left:
        return
    loop_state.in_flight -= 1
    loop_state.units_ok += units_ok
    loop_state.units_failed += units_failed


def _count_units(
    loop_state: LoopState,
    ended_frame: FrameState,
    event: frame_events.FrameCommitted | frame_events.FrameFailed,
) -> tuple[int, int]:
    """Count what a frame adds to its loop's units: itself, or those that its worker cut it into."""
    has_failed = ended_frame.status is FrameStatus.FAILED
    if event.units is not None:
        loop_state.retried += event.units.retried
        return event.units.ok, event.units.failed
    inside = loop_state.cut.inside if loop_state.cut is not None else None
    units_in_frame = 1 if inside is None else inside
    return (0, units_in_frame) if has_failed else (units_in_frame, 0)
