"""What events mean to units that are frames: slices of a collection, shards, groups of parts."""

from noetl_contracts.envelope import Envelope
from noetl_contracts.events import frame, reduce
from noetl_contracts.status import FrameStatus
from noetl_replay.state import ExecutionState, FrameState, LoopState


def open_level(state: ExecutionState, at: Envelope, event: reduce.ReduceLevelOpened) -> None:
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


def is_framed(live: LoopState | None) -> bool:
    """Tell whether the planner mints the frames of a loop."""
    return live is not None and live.cut is not None


def dispatch(
    state: ExecutionState, live: LoopState, taken: FrameState, event: frame.FrameDispatched
) -> None:
    """Account a frame that was handed out to its unit and to the command that runs it."""
    taken.start, taken.retry_at = event.start, None
    live.retry_at.pop(event.frame_id, None)
    holder = state.commands.get(event.command_id)
    if holder is not None:
        holder.frame_id = event.frame_id
    if event.attempt == 1 and event.parent_frame_id is None:
        live.next_index = max(live.next_index, event.slot + 1)
        live.in_flight += 1


def abandon(live: LoopState, lost: FrameState, event: frame.FrameAbandoned) -> None:
    """Remember when a frame may be handed out again."""
    lost.retry_at = event.retry_at
    if event.retry_at is not None:
        live.retry_at[event.frame_id] = event.retry_at


def terminate(
    live: LoopState, done: FrameState, event: frame.FrameCommitted | frame.FrameFailed
) -> None:
    """Count a frame that ended; a unit ends with its last frame."""
    units_ok, units_failed = _units(live, done, event)
    if live.counts_frames:
        live.success += units_ok
        live.failed += units_failed
    else:
        live.success += done.row_count - done.rows_failed
        live.failed += done.rows_failed
    live.retry_at.pop(event.frame_id, None)
    if event.rows_left:
        return
    live.in_flight -= 1
    live.units_ok += units_ok
    live.units_failed += units_failed


def _units(
    live: LoopState, done: FrameState, event: frame.FrameCommitted | frame.FrameFailed
) -> tuple[int, int]:
    """Count what a frame adds to its loop's units: itself, or those that its worker cut it into."""
    has_failed = done.status is FrameStatus.FAILED
    if event.units is not None:
        live.retried += event.units.retried
        return event.units.ok, event.units.failed
    inside = live.cut.inside if live.cut is not None else None
    many = 1 if inside is None else inside
    return (0, many) if has_failed else (many, 0)
