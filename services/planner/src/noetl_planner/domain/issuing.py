"""Commands for workers: issued once, sent again under a higher attempt."""

from datetime import datetime
from typing import Any

from noetl_contracts import commands, ids
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command, frame
from noetl_contracts.ids import CommandId, StageId, WorkerId
from noetl_contracts.status import CommandStatus
from noetl_planner.domain.draft import Draft
from noetl_replay.state import CommandState, FrameState, RunState


def issue_step(draft: Draft, run: RunState) -> None:
    """Ask for one run of a step's pipeline."""
    _issue(draft, run, "step", attempts_max=draft.limits.step_attempts_max)


def issue_item(draft: Draft, run: RunState, index: int, *, attempts_max: int) -> None:
    """Ask for one item of a loop."""
    _issue(draft, run, f"item-{index}", attempts_max=attempts_max, item_index=index)


def issue_slot(
    draft: Draft,
    run: RunState,
    slot: int,
    *,
    round_: int,
    stage_id: StageId,
    attempts_max: int,
    lane: str = commands.IO_LANE,
) -> None:
    """Ask for a slot to claim frames until it finds nothing."""
    unit = f"slot-{slot}-{round_}"
    _issue(draft, run, unit, attempts_max=attempts_max, slot=slot, stage_id=stage_id, lane=lane)


def issue_frame(
    draft: Draft,
    run: RunState,
    unit: str,
    *,
    stage_id: StageId,
    attempts_max: int,
    lane: str = commands.IO_LANE,
) -> CommandId:
    """Ask for one frame of a stage; the frame's own events say which rows it has."""
    return _issue(draft, run, unit, attempts_max=attempts_max, stage_id=stage_id, lane=lane)


def complete(
    draft: Draft,
    live: CommandState,
    *,
    worker_id: WorkerId,
    metrics: dict[str, Any],
    is_dry: bool = False,
) -> None:
    """Record that a frame's or a slot's command ended well."""
    draft.emit(
        command.CommandCompleted(
            command_id=live.command_id,
            run_id=live.run_id,
            step=live.step,
            attempt=live.attempt,
            worker_id=worker_id,
            stage_id=live.stage_id,
            slot=live.slot,
            is_dry=is_dry,
            metrics=metrics,
        )
    )


def fail(
    draft: Draft, live: CommandState, error: ErrorObject, *, worker_id: WorkerId | None
) -> None:
    """Record that a command failed for good."""
    draft.emit(
        command.CommandFailed(
            command_id=live.command_id,
            run_id=live.run_id,
            step=live.step,
            attempt=live.attempt,
            error=error,
            worker_id=worker_id,
            stage_id=live.stage_id,
            slot=live.slot,
        )
    )


def reissue(draft: Draft, lost: CommandState, reason: str) -> None:
    """Ask for a lost command again, under the next attempt."""
    draft.emit(
        command.CommandReissued(
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


def start(
    draft: Draft,
    live: CommandState,
    worker_id: WorkerId,
    *,
    worker_locator: str | None = None,
    locality: dict[str, Any] | None = None,
) -> None:
    """Record that a worker took a command; a repetition changes nothing."""
    if live.status is not CommandStatus.ISSUED:
        return
    draft.emit(
        command.CommandStarted(
            command_id=live.command_id,
            run_id=live.run_id,
            step=live.step,
            attempt=live.attempt,
            worker_id=worker_id,
            worker_locator=worker_locator,
            locality=locality or {},
            stage_id=live.stage_id,
        )
    )
    if live.frame_id is not None and live.stage_id is not None:
        draft.emit(
            frame.FrameStarted(
                frame_id=live.frame_id,
                stage_id=live.stage_id,
                step=live.step,
                attempt=draft.state.frames[live.frame_id].attempts,
                worker_id=worker_id,
            )
        )


def call_off(
    draft: Draft, live: CommandState, reason: str, *, item_index: int | None = None
) -> None:
    """End a command that nobody is to finish; `item_index` is for a loop that goes on."""
    draft.emit(
        command.CommandCancelled(
            command_id=live.command_id,
            run_id=live.run_id,
            step=live.step,
            attempt=live.attempt,
            reason=reason,
            stage_id=live.stage_id,
            error=ErrorObject(kind="cancelled", code="CANCELLED", step=live.step, message=reason),
            item_index=item_index,
        )
    )


def abandon(
    draft: Draft,
    opened: FrameState,
    reason: str,
    *,
    retry_at: datetime | None = None,
    error: ErrorObject | None = None,
) -> None:
    """Record that a frame's owner is gone, with the attempt that it held."""
    draft.emit(
        frame.FrameAbandoned(
            frame_id=opened.frame_id,
            stage_id=opened.stage_id,
            step=opened.step,
            attempt=opened.attempts,
            reason=reason,
            previous_owner=opened.owner_worker,
            retry_at=retry_at,
            error=error,
        )
    )


def _issue(
    draft: Draft,
    run: RunState,
    unit: str,
    *,
    attempts_max: int,
    item_index: int | None = None,
    slot: int | None = None,
    stage_id: StageId | None = None,
    lane: str = commands.IO_LANE,
) -> CommandId:
    command_id = ids.command_id(run.run_id, unit)
    draft.emit(
        command.CommandIssued(
            command_id=command_id,
            run_id=run.run_id,
            step=run.step,
            unit=unit,
            pool=commands.DEFAULT_POOL,
            lane=lane,
            attempts_max=attempts_max,
            item_index=item_index,
            slot=slot,
            stage_id=stage_id,
        )
    )
    draft.to_send[command_id] = None
    return command_id
