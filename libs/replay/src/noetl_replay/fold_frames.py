"""What events mean to stages and frames."""

from typing import assert_never

from msgspec import UNSET

from noetl_contracts.envelope import Envelope
from noetl_contracts.events import frame, stage
from noetl_contracts.ids import FrameId
from noetl_contracts.status import FrameStatus
from noetl_replay import fold_loops, fold_metrics, fold_units
from noetl_replay.state import (
    ExecutionState,
    FrameState,
    LoopState,
    SlotState,
    StageState,
    remember_rejection,
)

_Event = (
    stage.StageOpened
    | stage.StageClosed
    | frame.FrameDispatched
    | frame.FrameStarted
    | frame.FrameHeartbeat
    | frame.FrameAbandoned
    | frame.FrameCommitted
    | frame.FrameFailed
    | frame.FrameCommitRejected
)


def apply(state: ExecutionState, at: Envelope, event: _Event) -> None:
    """Apply an event of a stage or frame."""
    match event:
        case stage.StageOpened():
            _open_stage(state, at, event)
        case stage.StageClosed():
            _close_stage(state, at, event)
        case frame.FrameDispatched():
            _dispatch(state, at, event)
        case frame.FrameStarted() | frame.FrameHeartbeat():
            held = _touched(state, event.frame_id)
            held.status = FrameStatus.RUNNING
            held.owner_worker = held.owner_worker or event.worker_id
            _hear(state, at, event.frame_id)
        case frame.FrameAbandoned():
            lost = _touched(state, event.frame_id)
            lost.status, lost.owner_worker = FrameStatus.ABANDONED, None
            if (live := _loop(state, lost)) is not None and fold_units.is_framed(live):
                fold_units.abandon(live, lost, event)
                holder = state.commands.get(lost.command_id)
                if event.error is not None and holder is not None:
                    # What failed is tried from its beginning, not from where it once waited.
                    holder.resume = None
        case frame.FrameCommitted() | frame.FrameFailed():
            _terminate(state, at, event)
        case frame.FrameCommitRejected():
            remember_rejection(state, f"{event.frame_id}/{event.attempt}")
        case _:
            assert_never(event)


def _open_stage(state: ExecutionState, at: Envelope, event: stage.StageOpened) -> None:
    opened = StageState(
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
    state.stages[event.stage_id] = state.changes.stages[event.stage_id] = opened


def _close_stage(state: ExecutionState, at: Envelope, event: stage.StageClosed) -> None:
    closed = state.stages.pop(event.stage_id)
    closed.status, closed.closed_event_id = event.status, at.event_id
    closed.ended_at = at.event_time
    state.changes.stages[event.stage_id] = closed
    for left in [one for one in state.frames.values() if one.stage_id == event.stage_id]:
        del state.frames[left.frame_id]


def _dispatch(state: ExecutionState, at: Envelope, event: frame.FrameDispatched) -> None:
    live = state.frames.get(event.frame_id)
    if live is None:
        live = state.frames[event.frame_id] = FrameState(
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
    live.attempts, live.status = event.attempt, FrameStatus.CLAIMED
    live.fence = event.fence
    live.owner_worker, live.claimed_event_id = event.worker_id, at.event_id
    live.command_id = event.command_id
    state.changes.frames[event.frame_id] = live
    loop = _loop(state, live)
    if loop is not None and fold_units.is_framed(loop):
        fold_units.dispatch(state, loop, live, event)
    taken = _slot(state, live)
    if taken is not None:
        taken.open_frame_id, taken.next_index = event.frame_id, event.frame_index
    _hear(state, at, event.frame_id)


def _terminate(
    state: ExecutionState, at: Envelope, event: frame.FrameCommitted | frame.FrameFailed
) -> None:
    live = _touched(state, event.frame_id)
    _hear(state, at, event.frame_id)
    del state.frames[event.frame_id]
    holder = state.commands.get(live.command_id)
    if holder is not None:
        # A slot goes on with frames that have not waited.
        holder.resume = None
    failed = isinstance(event, frame.FrameFailed)
    live.status = FrameStatus.FAILED if failed else FrameStatus.COMPLETED
    live.terminal_event_id, live.completed_at = at.event_id, at.event_time
    live.metrics, live.row_count = event.metrics, event.row_count
    live.rows_failed = event.rows_failed if isinstance(event, frame.FrameFailed) else 0
    live.output_ref = event.result
    state.warnings += len(event.notes)
    state.ctx = {**state.ctx, **event.patch}
    state.frames_total += 1
    state.rows_total += live.row_count
    _count_frame(state, live)
    _count_rows(state, live, event)
    fold_metrics.add_to_run(state, state.stages[live.stage_id].run_id, event.tasks)


def _count_frame(state: ExecutionState, done: FrameState) -> None:
    owner = state.stages[done.stage_id]
    owner.frames += 1
    owner.rows += done.row_count
    owner.rows_failed += done.rows_failed
    owner.frames_failed += done.status is FrameStatus.FAILED
    state.changes.stages[owner.stage_id] = owner


def _count_rows(
    state: ExecutionState, done: FrameState, event: frame.FrameCommitted | frame.FrameFailed
) -> None:
    live = fold_loops.touched(state, state.stages[done.stage_id].run_id)
    if live is None:
        return
    if fold_units.is_framed(live):
        fold_units.terminate(live, done, event)
        live.first_error = live.first_error or getattr(event, "error", None)
        return
    live.commits += 1
    live.total += done.row_count
    live.failed += done.rows_failed
    live.success += done.row_count - done.rows_failed
    if isinstance(event, frame.FrameFailed):
        live.first_error = live.first_error or event.error
    taken = live.slots[done.slot]
    taken.open_frame_id = None
    taken.next_index = done.frame_index + 1
    taken.rows_left = event.rows_left
    taken.frames_in_round += 1


def _touched(state: ExecutionState, frame_id: FrameId) -> FrameState:
    live = state.frames[frame_id]
    state.changes.frames[frame_id] = live
    return live


def _loop(state: ExecutionState, live: FrameState) -> LoopState | None:
    return fold_loops.touched(state, state.stages[live.stage_id].run_id)


def _slot(state: ExecutionState, live: FrameState) -> SlotState | None:
    return fold_loops.slot_of(state, state.stages[live.stage_id].run_id, live.slot)


def _hear(state: ExecutionState, at: Envelope, frame_id: FrameId) -> None:
    """Count a frame's sign of life as one of the command that runs it."""
    holder = state.commands.get(state.frames[frame_id].command_id)
    if holder is not None:
        holder.heard_at, holder.losses = at.event_time, 0
        state.changes.commands[holder.command_id] = holder
