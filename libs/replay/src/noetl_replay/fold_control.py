"""What events mean that are no part of the flow: pauses, writes to `ctx`, a playbook's objects."""

from typing import assert_never

from noetl_contracts.envelope import Envelope
from noetl_contracts.events import business, context, control, files
from noetl_contracts.status import ExecutionStatus
from noetl_replay import fold_objects
from noetl_replay.state import ExecutionState, forget_oldest

WISHES_MAX = 256

ControlEvent = (
    control.ExecutionPaused
    | control.ExecutionResumed
    | control.CustomEvent
    | context.CtxPatched
    | business.BusinessObjectChanged
    | files.FilesChanged
)


def apply(state: ExecutionState, at: Envelope, event: ControlEvent) -> None:
    """Apply an event that moves no token."""
    match event:
        case control.ExecutionPaused():
            state.status, state.paused_at = ExecutionStatus.PAUSED, at.event_time
            _remember(state, event.request_id)
        case control.ExecutionResumed():
            state.status, state.paused_at = ExecutionStatus.RUNNING, None
            state.held.clear()
            _remember(state, event.request_id)
        case context.CtxPatched():
            kept = {key: value for key, value in state.ctx.items() if key not in event.removed}
            state.ctx = {**kept, **event.patch}
            if event.request_id is not None:
                _remember(state, event.request_id)
        case business.BusinessObjectChanged():
            fold_objects.apply(state, at, event)
        case files.FilesChanged():
            state.file_entries = max(state.file_entries, event.entries)
        case control.CustomEvent():
            pass
        case _:
            assert_never(event)


def _remember(state: ExecutionState, request_id: str) -> None:
    """Keep a wish's identity for as long as its repetition is likely."""
    state.wishes[request_id] = None
    forget_oldest(state.wishes, WISHES_MAX)
