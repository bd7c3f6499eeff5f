"""Idempotency keys: what makes a transition the same transition when it is decided twice."""

from noetl_contracts.events import (
    Event,
    command_events,
    execution_events,
    frame_events,
    loop_events,
    state_events,
    step_events,
)
from noetl_contracts.ids import CommandId, FrameId, RunId, StageId

STARTED = "execution/started"
# At most one event ends an execution.
ENDED = "execution/terminal"


def build_event_key(event: Event) -> str | None:
    """Return the key that is unique within the execution, or None for what may repeat."""
    # What happens to every command is asked first: most events of a history are theirs.
    match event:
        case command_events.CommandIssued():
            return f"command/{event.command_id}/issued"
        case command_events.CommandReissued():
            return build_reissued_key(event.command_id, event.attempt)
        case command_events.CommandStarted():
            return f"command/{event.command_id}/started/{event.attempt}"
        case (
            command_events.CommandCompleted()
            | command_events.CommandFailed()
            | command_events.CommandCancelled()
        ):
            return f"command/{event.command_id}/terminal"
        case command_events.CommandRejected():
            return f"command/{event.command_id}/rejected/{event.attempt}/{event.fact}"
        case command_events.CommandParked():
            return f"command/{event.command_id}/parked/{event.attempt}"
        case command_events.CommandResumed():
            return f"command/{event.command_id}/resumed/{event.attempt}"
        case command_events.ChildStarted():
            return f"command/{event.command_id}/child/{event.wait.key}"
        case command_events.ChildEnded():
            return f"child/{event.child_execution_id}/ended"
        case _:
            return _build_flow_key(event)


def _build_flow_key(event: Event) -> str | None:
    match event:
        case execution_events.PlaybookInitialized():
            return STARTED
        case (
            execution_events.PlaybookCompleted()
            | execution_events.PlaybookFailed()
            | execution_events.ExecutionCancelled()
        ):
            return ENDED
        case execution_events.CancelRequested():
            return "execution/cancelling"
        case step_events.StepEnter():
            return f"run/{event.run_id}/enter"
        case step_events.StepFailed():
            return f"run/{event.run_id}/failed"
        case step_events.StepExit():
            return f"run/{event.run_id}/exit"
        case step_events.CallDone() | step_events.CallError():
            return f"command/{event.command_id}/call"
        case loop_events.LoopStarted():
            return build_loop_started_key(event.run_id)
        case loop_events.LoopDone() | loop_events.LoopFailed():
            return f"run/{event.run_id}/loop/ended"
        case _:
            return _build_stage_key(event)


def _build_stage_key(event: Event) -> str | None:
    match event:
        case loop_events.StageOpened():
            return build_stage_opened_key(event.stage_id)
        case loop_events.StageClosed():
            return f"stage/{event.stage_id}/closed"
        case loop_events.LoopFanoutStarted():
            return f"stage/{event.stage_id}/fanout"
        case loop_events.LoopShardEnqueued():
            return f"frame/{event.frame_id}/enqueued"
        case loop_events.LoopShardDone() | loop_events.LoopShardFailed():
            return f"frame/{event.frame_id}/shard"
        case loop_events.LoopFaninCompleted():
            return f"stage/{event.stage_id}/fanin"
        case loop_events.ReduceLevelOpened():
            return f"stage/{event.stage_id}/level/{event.level}"
        case _:
            return _build_frame_key(event)


def _build_frame_key(event: Event) -> str | None:
    match event:
        case frame_events.FrameDispatched():
            return f"frame/{event.frame_id}/dispatched/{event.attempt}"
        case frame_events.FrameStarted():
            return f"frame/{event.frame_id}/started/{event.attempt}"
        case frame_events.FrameAbandoned():
            return build_abandoned_key(event.frame_id, event.attempt)
        case frame_events.FrameCommitted() | frame_events.FrameFailed():
            return f"frame/{event.frame_id}/terminal"
        case frame_events.FrameCommitRejected():
            return f"frame/{event.frame_id}/rejected/{event.attempt}"
        case _:
            return _build_control_key(event)


def _build_control_key(event: Event) -> str | None:
    match event:
        case step_events.CallPartial():
            return f"run/{event.run_id}/chunk/{event.chunk.index}"
        case execution_events.CtxPatched():
            return f"ctx/{event.request_id}" if event.request_id is not None else None
        case execution_events.StateInherited():
            return f"execution/inherited/{event.part}"
        case execution_events.ExecutionPaused():
            return f"execution/paused/{event.request_id}"
        case execution_events.ExecutionResumed():
            return f"execution/resumed/{event.request_id}"
        case execution_events.CustomEvent():
            return f"run/{event.run_id}/custom/{event.name}"
        case execution_events.FilesChanged():
            return f"files/{event.entries}"
        case execution_events.BusinessObjectChanged():
            return f"run/{event.run_id}/object/{event.object_id}"
        case _:
            return _build_state_key(event)


def _build_state_key(event: Event) -> str | None:
    match event:
        case state_events.StateRead():
            return f"run/{event.run_id}/state/read"
        case state_events.StateChanged():
            return f"command/{event.command_id}/state"
        case execution_events.DeadlinePassed():
            return f"run/{event.run_id}/late" if event.run_id is not None else "execution/late"
        case _:
            return None


def build_loop_started_key(run_id: RunId) -> str:
    """Return the key of the event that began a loop epoch."""
    return f"run/{run_id}/loop/started"


def build_stage_opened_key(stage_id: StageId) -> str:
    """Return the key of the event that opened a stage."""
    return f"stage/{stage_id}/opened"


def build_reissued_key(command_id: CommandId, attempt: int) -> str:
    """Return the key of the event that sent a command out for an attempt after the first."""
    return f"command/{command_id}/reissued/{attempt}"


def build_abandoned_key(frame_id: FrameId, attempt: int) -> str:
    """Return the key of the event that ended an attempt of a frame that was to run again."""
    return f"frame/{frame_id}/abandoned/{attempt}"
