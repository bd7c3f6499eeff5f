"""The fence: facts of an old attempt, or of a command that has ended, change nothing."""

from noetl_contracts.events import command, frame
from noetl_contracts.ids import CommandId, FrameId, StageId, WorkerId
from noetl_planner.domain.draft import Draft
from noetl_replay.state import CommandState

SETTLED = "the command has ended"
STALE = "a later attempt holds the command"


def live_command(
    draft: Draft,
    command_id: CommandId,
    attempt: int,
    *,
    fact: str,
    worker_id: WorkerId | None = None,
) -> CommandState | None:
    """Return the command when the fact bears its fence; else record the rejection, once."""
    live = draft.state.commands.get(command_id)
    current = current_attempt(draft, command_id)
    if live is not None and attempt == live.attempt:
        return live
    key = f"{command_id}/{attempt}/{fact}"
    if current is None or attempt >= current or key in draft.state.rejections:
        return None
    draft.emit(
        command.CommandRejected(
            command_id=command_id,
            attempt=attempt,
            current_attempt=current,
            fact=fact,
            reason=STALE if live is not None else SETTLED,
            worker_id=worker_id,
        )
    )
    return None


def current_attempt(draft: Draft, command_id: CommandId) -> int | None:
    """Return the attempt that holds, or last held, a command; None when it is not remembered.

    A command that ended on its first attempt needs no memory: any late fact about it repeats one
    that was accepted.
    """
    live = draft.state.commands.get(command_id)
    return live.attempt if live is not None else draft.state.fenced.get(command_id)


def reject_frame(
    draft: Draft,
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
    draft.emit(
        frame.FrameCommitRejected(
            frame_id=frame_id,
            stage_id=stage_id,
            step=step,
            attempt=attempt,
            current_attempt=current,
            reason=reason,
            worker_id=worker_id,
        )
    )
