"""Idempotency keys: what makes a transition the same transition when it is decided twice."""

from noetl_contracts.events import (
    Event,
    business,
    command,
    context,
    control,
    execution,
    fanout,
    files,
    frame,
    loop,
    parking,
    reduce,
    stage,
    step,
    stream,
)
from noetl_contracts.ids import CommandId, FrameId, RunId, StageId

STARTED = "execution/started"
# At most one event ends an execution.
ENDED = "execution/terminal"


def key_of(event: Event) -> str | None:
    """Return the key that is unique within the execution, or None for what may repeat."""
    # What happens to every command is asked first: most events of a history are theirs.
    match event:
        case command.CommandIssued():
            return f"command/{event.command_id}/issued"
        case command.CommandReissued():
            return reissued(event.command_id, event.attempt)
        case command.CommandStarted():
            return f"command/{event.command_id}/started/{event.attempt}"
        case command.CommandCompleted() | command.CommandFailed() | command.CommandCancelled():
            return f"command/{event.command_id}/terminal"
        case command.CommandRejected():
            return f"command/{event.command_id}/rejected/{event.attempt}/{event.fact}"
        case parking.CommandParked():
            return f"command/{event.command_id}/parked/{event.attempt}"
        case parking.CommandResumed():
            return f"command/{event.command_id}/resumed/{event.attempt}"
        case parking.ChildStarted():
            return f"command/{event.command_id}/child/{event.wait.key}"
        case parking.ChildEnded():
            return f"child/{event.child_execution_id}/ended"
        case _:
            return _flow_key(event)


def _flow_key(event: Event) -> str | None:
    match event:
        case execution.PlaybookInitialized():
            return STARTED
        case (
            execution.PlaybookCompleted()
            | execution.PlaybookFailed()
            | execution.ExecutionCancelled()
        ):
            return ENDED
        case execution.CancelRequested():
            return "execution/cancelling"
        case step.StepEnter():
            return f"run/{event.run_id}/enter"
        case step.StepFailed():
            return f"run/{event.run_id}/failed"
        case step.StepExit():
            return f"run/{event.run_id}/exit"
        case step.CallDone() | step.CallError():
            return f"command/{event.command_id}/call"
        case loop.LoopStarted():
            return loop_started(event.run_id)
        case loop.LoopDone() | loop.LoopFailed():
            return f"run/{event.run_id}/loop/ended"
        case _:
            return _stage_key(event)


def _stage_key(event: Event) -> str | None:
    match event:
        case stage.StageOpened():
            return stage_opened(event.stage_id)
        case stage.StageClosed():
            return f"stage/{event.stage_id}/closed"
        case fanout.LoopFanoutStarted():
            return f"stage/{event.stage_id}/fanout"
        case fanout.LoopShardEnqueued():
            return f"frame/{event.frame_id}/enqueued"
        case fanout.LoopShardDone() | fanout.LoopShardFailed():
            return f"frame/{event.frame_id}/shard"
        case fanout.LoopFaninCompleted():
            return f"stage/{event.stage_id}/fanin"
        case reduce.ReduceLevelOpened():
            return f"stage/{event.stage_id}/level/{event.level}"
        case _:
            return _frame_key(event)


def _frame_key(event: Event) -> str | None:
    match event:
        case frame.FrameDispatched():
            return f"frame/{event.frame_id}/dispatched/{event.attempt}"
        case frame.FrameStarted():
            return f"frame/{event.frame_id}/started/{event.attempt}"
        case frame.FrameAbandoned():
            return abandoned(event.frame_id, event.attempt)
        case frame.FrameCommitted() | frame.FrameFailed():
            return f"frame/{event.frame_id}/terminal"
        case frame.FrameCommitRejected():
            return f"frame/{event.frame_id}/rejected/{event.attempt}"
        case _:
            return _control_key(event)


def _control_key(event: Event) -> str | None:
    match event:
        case stream.CallPartial():
            return f"run/{event.run_id}/chunk/{event.chunk.index}"
        case context.CtxPatched():
            return f"ctx/{event.request_id}" if event.request_id is not None else None
        case execution.StateInherited():
            return f"execution/inherited/{event.part}"
        case control.ExecutionPaused():
            return f"execution/paused/{event.request_id}"
        case control.ExecutionResumed():
            return f"execution/resumed/{event.request_id}"
        case control.CustomEvent():
            return f"run/{event.run_id}/custom/{event.name}"
        case files.FilesChanged():
            return f"files/{event.entries}"
        case business.BusinessObjectChanged():
            return f"run/{event.run_id}/object/{event.object_id}"
        case _:
            return None


def loop_started(run_id: RunId) -> str:
    """Return the key of the event that began a loop epoch."""
    return f"run/{run_id}/loop/started"


def stage_opened(stage_id: StageId) -> str:
    """Return the key of the event that opened a stage."""
    return f"stage/{stage_id}/opened"


def reissued(command_id: CommandId, attempt: int) -> str:
    """Return the key of the event that sent a command out for an attempt after the first."""
    return f"command/{command_id}/reissued/{attempt}"


def abandoned(frame_id: FrameId, attempt: int) -> str:
    """Return the key of the event that ended an attempt of a frame that was to run again."""
    return f"frame/{frame_id}/abandoned/{attempt}"
