"""Issues, completes, fails and reissues commands; rejects facts of ended attempts (the fence)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from noetl_contracts import ids
from noetl_contracts.commands import placement
from noetl_contracts.commands.command_work import IO_LANE
from noetl_contracts.commands.task_metrics import NO_METRICS, MetricsByTask
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command_events, frame_events
from noetl_contracts.ids import CommandId, FrameId, StageId, WorkerId
from noetl_contracts.status import CommandStatus, FrameStatus
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.steps import command_placement, pools
from noetl_replay.state import CommandState, FrameState, RunState

SETTLED = "the command has ended"
STALE = "a later attempt holds the command"


def find_live_command(
    draft: DecisionDraft,
    command_id: CommandId,
    attempt: int,
    *,
    fact: str,
    worker_id: WorkerId | None = None,
) -> CommandState | None:
    """Return the command when the fact bears its fence; else record the rejection, once."""
    command_state = draft.state.commands.get(command_id)
    current = find_current_attempt(draft, command_id)
    if command_state is not None and attempt == command_state.attempt:
        return command_state
    key = f"{command_id}/{attempt}/{fact}"
    if current is None or attempt >= current or key in draft.state.rejections:
        return None
    draft.append_event(
        command_events.CommandRejected(
            command_id=command_id,
            attempt=attempt,
            current_attempt=current,
            fact=fact,
            reason=STALE if command_state is not None else SETTLED,
            worker_id=worker_id,
        )
    )
    return None


def find_current_attempt(draft: DecisionDraft, command_id: CommandId) -> int | None:
    """Return the attempt that holds, or last held, a command; None when it is not remembered.

    A command that ended on its first attempt needs no memory: any late fact about it repeats one
    that was accepted.
    """
    command_state = draft.state.commands.get(command_id)
    return (
        command_state.attempt if command_state is not None else draft.state.fenced.get(command_id)
    )


def reject_frame_commit(
    draft: DecisionDraft,
    *,
    frame_id: FrameId,
    stage_id: StageId,
    step: str,
    attempt: int,
    current: int,
    reason: str,
    worker_id: WorkerId,
) -> None:
    """Record a refused commit, once per frame and attempt."""
    if f"{frame_id}/{attempt}" in draft.state.rejections:
        return
    draft.append_event(
        frame_events.FrameCommitRejected(
            frame_id=frame_id,
            stage_id=stage_id,
            step=step,
            attempt=attempt,
            current_attempt=current,
            reason=reason,
            worker_id=worker_id,
        )
    )


def issue_step(draft: DecisionDraft, run: RunState) -> None:
    """Ask for one run of a step's pipeline."""
    _issue_command(draft, run, "step", attempts_max=draft.limits.step_attempts_max)


def issue_item(draft: DecisionDraft, run: RunState, index: int, *, attempts_max: int) -> CommandId:
    """Ask for one item of a loop."""
    return _issue_command(draft, run, f"item-{index}", attempts_max=attempts_max, items=[index])


def issue_batch(
    draft: DecisionDraft, run: RunState, indexes: Sequence[int], *, attempts_max: int
) -> None:
    """Ask for several items of a loop, one after another."""
    _issue_command(draft, run, f"batch-{indexes[0]}", attempts_max=attempts_max, items=indexes)


def issue_slot(
    draft: DecisionDraft,
    run: RunState,
    slot: int,
    *,
    round_: int,
    stage_id: StageId,
    attempts_max: int,
    host: str = IO_LANE,
) -> None:
    """Ask for a slot to claim frames until it finds nothing."""
    unit = f"slot-{slot}-{round_}"
    _issue_command(
        draft, run, unit, attempts_max=attempts_max, slot=slot, stage_id=stage_id, host=host
    )


def issue_frame(
    draft: DecisionDraft,
    run: RunState,
    unit: str,
    *,
    stage_id: StageId,
    attempts_max: int,
    host: str = IO_LANE,
) -> CommandId:
    """Ask for one frame of a stage; the frame's own events say which rows it has."""
    return _issue_command(draft, run, unit, attempts_max=attempts_max, stage_id=stage_id, host=host)


def complete_command(
    draft: DecisionDraft,
    command_state: CommandState,
    *,
    worker_id: WorkerId,
    metrics: dict[str, Any],
    is_dry: bool = False,
) -> None:
    """Record that a frame's or a slot's command ended well."""
    draft.append_event(
        command_events.CommandCompleted(
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            attempt=command_state.attempt,
            worker_id=worker_id,
            stage_id=command_state.stage_id,
            slot=command_state.slot,
            is_dry=is_dry,
            metrics=metrics,
        )
    )


def fail_command(
    draft: DecisionDraft,
    command_state: CommandState,
    error: ErrorObject,
    *,
    worker_id: WorkerId | None,
    tasks: MetricsByTask = NO_METRICS,
) -> None:
    """Record that a command failed for good."""
    draft.append_event(
        command_events.CommandFailed(
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            attempt=command_state.attempt,
            error=error,
            worker_id=worker_id,
            stage_id=command_state.stage_id,
            slot=command_state.slot,
            tasks=tasks,
        )
    )


def reissue_command(draft: DecisionDraft, lost: CommandState, reason: str) -> None:
    """Ask for a lost command again, under the next attempt."""
    draft.append_event(
        command_events.CommandReissued(
            command_id=lost.command_id,
            run_id=lost.run_id,
            step=lost.step,
            attempt=lost.attempt + 1,
            reason=reason,
            previous_worker=lost.worker_id,
            stage_id=lost.stage_id,
        )
    )
    draft.to_send[lost.command_id] = None


def start_command(
    draft: DecisionDraft,
    command_state: CommandState,
    worker_id: WorkerId,
    *,
    worker_locator: str | None = None,
    locality: dict[str, Any] | None = None,
    max_distance: str | None = None,
) -> None:
    """Record that a worker took a command; a repetition changes nothing."""
    if command_state.status is not CommandStatus.ISSUED:
        return
    draft.append_event(
        command_events.CommandStarted(
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            attempt=command_state.attempt,
            worker_id=worker_id,
            worker_locator=worker_locator,
            locality=locality or {},
            stage_id=command_state.stage_id,
            placement=placement.evaluate_placement(
                command_state.source_locality, locality or {}, max_distance=max_distance
            ),
        )
    )
    frame_state = (
        draft.state.frames.get(command_state.frame_id)
        if command_state.frame_id is not None
        else None
    )
    if frame_state is not None and frame_state.status is FrameStatus.CLAIMED:
        # A frame that waited and goes on has started before.
        draft.append_event(
            frame_events.FrameStarted(
                frame_id=frame_state.frame_id,
                stage_id=frame_state.stage_id,
                step=command_state.step,
                attempt=frame_state.attempts,
                worker_id=worker_id,
            )
        )


def record_heartbeat(
    draft: DecisionDraft, command_state: CommandState, worker_id: WorkerId
) -> None:
    """Record a sign of life: of the frame that a command is at, else of the command."""
    at = _find_running_frame(draft, command_state)
    if at is None:
        draft.append_event(
            command_events.CommandHeartbeat(
                command_id=command_state.command_id,
                run_id=command_state.run_id,
                step=command_state.step,
                attempt=command_state.attempt,
                worker_id=worker_id,
                stage_id=command_state.stage_id,
            )
        )
        return
    draft.append_event(
        frame_events.FrameHeartbeat(
            frame_id=at.frame_id,
            stage_id=at.stage_id,
            step=command_state.step,
            attempt=at.attempts,
            worker_id=worker_id,
        )
    )


def _find_running_frame(draft: DecisionDraft, command_state: CommandState) -> FrameState | None:
    """Return the frame that a command runs by what is known, its own or its slot's."""
    frame_id = command_state.frame_id
    run = draft.state.runs.get(command_state.run_id)
    if command_state.slot is not None and run is not None and run.loop is not None:
        frame_id = run.loop.slots[command_state.slot].open_frame_id
    at = draft.state.frames.get(frame_id) if frame_id is not None else None
    return None if at is None or at.status is FrameStatus.ABANDONED else at


def cancel_command(
    draft: DecisionDraft, command_state: CommandState, reason: str, *, item_index: int | None = None
) -> None:
    """Cancel a command; `item_index` names the item in a loop that continues."""
    draft.append_event(
        command_events.CommandCancelled(
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            attempt=command_state.attempt,
            reason=reason,
            stage_id=command_state.stage_id,
            error=ErrorObject(
                kind="cancelled", code="CANCELLED", step=command_state.step, message=reason
            ),
            item_index=item_index,
        )
    )


def abandon_frame(
    draft: DecisionDraft,
    opened: FrameState,
    reason: str,
    *,
    retry_at: datetime | None = None,
    error: ErrorObject | None = None,
) -> None:
    """Record that a frame's owner is gone, with the attempt that it held."""
    draft.append_event(
        frame_events.FrameAbandoned(
            frame_id=opened.frame_id,
            stage_id=opened.stage_id,
            step=opened.step,
            attempt=opened.attempts,
            reason=reason,
            previous_worker=opened.owner_worker,
            retry_at=retry_at,
            error=error,
        )
    )


def _issue_command(
    draft: DecisionDraft,
    run: RunState,
    unit: str,
    *,
    attempts_max: int,
    items: Sequence[int] = (),
    slot: int | None = None,
    stage_id: StageId | None = None,
    host: str = IO_LANE,
) -> CommandId:
    command_id = ids.derive_command_id(run.run_id, unit)
    pool, lane = pools.select_pool_and_lane(draft, run.step, host=host)
    inputs = command_placement.compute_input_locality(draft, run)
    offered = command_placement.choose_offer(draft, inputs, pool=pool, host=host)
    target, offered_until = offered or (None, None)
    draft.append_event(
        command_events.CommandIssued(
            command_id=command_id,
            run_id=run.run_id,
            step=run.step,
            unit=unit,
            pool=pool,
            lane=lane,
            attempts_max=attempts_max,
            item_index=items[0] if items else None,
            batch=list(items) if len(items) > 1 else [],
            slot=slot,
            stage_id=stage_id,
            source_locality=inputs,
            target=target,
            offered_until=offered_until,
        )
    )
    draft.to_send[command_id] = None
    return command_id
