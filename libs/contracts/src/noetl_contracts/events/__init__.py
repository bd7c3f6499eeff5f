"""All that can happen: `Event` is the union of every event type, and the only list of them.

A field that holds its default is not written, so a field that a later release adds leaves the
bytes, and with them the checksums, of older events as they were.
"""

import msgspec

from noetl_contracts.events import (
    command_events,
    execution_events,
    frame_events,
    loop_events,
    state_events,
    step_events,
)

Event = (
    execution_events.PlaybookInitialized
    | execution_events.StateInherited
    | execution_events.PlaybookCompleted
    | execution_events.PlaybookFailed
    | execution_events.CancelRequested
    | execution_events.ExecutionCancelled
    | execution_events.ExecutionPaused
    | execution_events.ExecutionResumed
    | execution_events.DeadlinePassed
    | execution_events.CustomEvent
    | execution_events.CtxPatched
    | step_events.StepEnter
    | step_events.StepFailed
    | step_events.StepExit
    | step_events.CallDone
    | step_events.CallError
    | step_events.CallPartial
    | command_events.CommandIssued
    | command_events.CommandReissued
    | command_events.CommandStarted
    | command_events.CommandHeartbeat
    | command_events.CommandCompleted
    | command_events.CommandFailed
    | command_events.CommandCancelled
    | command_events.CommandRejected
    | command_events.CommandParked
    | command_events.CommandResumed
    | command_events.ChildStarted
    | command_events.ChildEnded
    | loop_events.LoopStarted
    | loop_events.LoopResized
    | loop_events.LoopItemsReturned
    | loop_events.LoopDone
    | loop_events.LoopFailed
    | loop_events.LoopFanoutStarted
    | loop_events.LoopShardEnqueued
    | loop_events.LoopShardDone
    | loop_events.LoopShardFailed
    | loop_events.LoopFaninCompleted
    | loop_events.ReduceLevelOpened
    | loop_events.StageOpened
    | loop_events.StageClosed
    | frame_events.FrameDispatched
    | frame_events.FrameStarted
    | frame_events.FrameHeartbeat
    | frame_events.FrameAbandoned
    | frame_events.FrameCommitted
    | frame_events.FrameFailed
    | frame_events.FrameCommitRejected
    | execution_events.BusinessObjectChanged
    | execution_events.FilesChanged
    | state_events.StateRead
    | state_events.StateChanged
)

# What lineage is built from; items' outcomes share two of the types and mean nothing to it.
LINEAGE_EVENTS = (
    execution_events.PlaybookInitialized,
    execution_events.StateInherited,
    execution_events.PlaybookCompleted,
    execution_events.PlaybookFailed,
    execution_events.ExecutionCancelled,
    step_events.StepEnter,
    step_events.StepFailed,
    step_events.StepExit,
    step_events.CallDone,
    step_events.CallError,
    loop_events.LoopDone,
    loop_events.LoopFailed,
)

EVENT_CLASSES: tuple[type[msgspec.Struct], ...] = Event.__args__

_TYPE_BY_CLASS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in EVENT_CLASSES}

CLASS_BY_TYPE: dict[str, type[msgspec.Struct]] = {
    name: kind for kind, name in _TYPE_BY_CLASS.items()
}


def get_event_type(event: Event) -> str:
    """Return the name of an event's type, such as `frame.committed` or `custom.<name>`."""
    if isinstance(event, execution_events.CustomEvent):
        return f"{execution_events.CUSTOM}.{event.name}"
    return _TYPE_BY_CLASS[type(event)]


def find_event_class(kind: str) -> type[msgspec.Struct] | None:
    """Return the Struct of an event type, or None for a type that this release does not know."""
    if kind.startswith(f"{execution_events.CUSTOM}."):
        return execution_events.CustomEvent
    return CLASS_BY_TYPE.get(kind) if kind != execution_events.CUSTOM else None
