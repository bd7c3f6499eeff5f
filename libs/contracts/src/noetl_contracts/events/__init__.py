"""All that can happen: `Event` is the union of every event type, and the only list of them.

A field that holds its default is not written, so a field that a later release adds leaves the
bytes, and with them the checksums, of older events as they were.
"""

import msgspec

from noetl_contracts.events import (
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

Event = (
    execution.PlaybookInitialized
    | execution.StateInherited
    | execution.PlaybookCompleted
    | execution.PlaybookFailed
    | execution.CancelRequested
    | execution.ExecutionCancelled
    | control.ExecutionPaused
    | control.ExecutionResumed
    | control.CustomEvent
    | context.CtxPatched
    | step.StepEnter
    | step.StepFailed
    | step.StepExit
    | step.CallDone
    | step.CallError
    | stream.CallPartial
    | command.CommandIssued
    | command.CommandReissued
    | command.CommandStarted
    | command.CommandHeartbeat
    | command.CommandCompleted
    | command.CommandFailed
    | command.CommandCancelled
    | command.CommandRejected
    | parking.CommandParked
    | parking.CommandResumed
    | parking.ChildStarted
    | parking.ChildEnded
    | loop.LoopStarted
    | loop.LoopResized
    | loop.LoopDone
    | loop.LoopFailed
    | fanout.LoopFanoutStarted
    | fanout.LoopShardEnqueued
    | fanout.LoopShardDone
    | fanout.LoopShardFailed
    | fanout.LoopFaninCompleted
    | reduce.ReduceLevelOpened
    | stage.StageOpened
    | stage.StageClosed
    | frame.FrameDispatched
    | frame.FrameStarted
    | frame.FrameHeartbeat
    | frame.FrameAbandoned
    | frame.FrameCommitted
    | frame.FrameFailed
    | frame.FrameCommitRejected
    | business.BusinessObjectChanged
    | files.FilesChanged
)

EVENT_CLASSES: tuple[type[msgspec.Struct], ...] = Event.__args__

_TYPE_BY_CLASS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in EVENT_CLASSES}

CLASS_BY_TYPE: dict[str, type[msgspec.Struct]] = {
    name: kind for kind, name in _TYPE_BY_CLASS.items()
}


def event_type(event: Event) -> str:
    """Return the name of an event's type, such as `frame.committed` or `custom.<name>`."""
    if isinstance(event, control.CustomEvent):
        return f"{control.CUSTOM}.{event.name}"
    return _TYPE_BY_CLASS[type(event)]


def find_class(kind: str) -> type[msgspec.Struct] | None:
    """Return the Struct of an event type, or None for a type that this release does not know."""
    if kind.startswith(f"{control.CUSTOM}."):
        return control.CustomEvent
    return CLASS_BY_TYPE.get(kind) if kind != control.CUSTOM else None
