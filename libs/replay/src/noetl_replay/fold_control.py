"""What events mean that are no part of the flow: pauses, writes to `ctx`, a playbook's objects."""

from typing import assert_never

from noetl_contracts import codec
from noetl_contracts.events import execution_events, state_events
from noetl_contracts.events.execution_events import BusinessObjectChanged
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import ExecutionStatus
from noetl_replay import fold_deadlines, fold_states
from noetl_replay.state import ExecutionState, ObjectState, forget_oldest

GRANTED_REQUESTS_MAX = 256

ControlEvent = (
    execution_events.ExecutionPaused
    | execution_events.ExecutionResumed
    | execution_events.DeadlinePassed
    | execution_events.CustomEvent
    | execution_events.CtxPatched
    | execution_events.BusinessObjectChanged
    | execution_events.FilesChanged
    | state_events.StateRead
    | state_events.StateChanged
)


def apply_control(state: ExecutionState, at: Envelope, event: ControlEvent) -> None:
    """Apply an event that moves no token."""
    match event:
        case execution_events.ExecutionPaused():
            state.status, state.paused_at = ExecutionStatus.PAUSED, at.event_time
            _remember_request(state, event.request_id)
        case execution_events.ExecutionResumed():
            state.status, state.paused_at = ExecutionStatus.RUNNING, None
            state.held.clear()
            _remember_request(state, event.request_id)
        case execution_events.CtxPatched():
            fields = {key: value for key, value in state.ctx.items() if key not in event.removed}
            state.ctx = {**fields, **event.patch}
            if event.request_id is not None:
                _remember_request(state, event.request_id)
        case execution_events.BusinessObjectChanged():
            apply_object_change(state, at, event)
        case execution_events.FilesChanged():
            state.file_entries = max(state.file_entries, event.entries)
        case state_events.StateRead() | state_events.StateChanged():
            fold_states.apply_state(state, event)
        case execution_events.DeadlinePassed():
            fold_deadlines.pass_deadline(state, event)
        case execution_events.CustomEvent():
            pass
        case _:
            assert_never(event)


def _remember_request(state: ExecutionState, request_id: str) -> None:
    """Keep the identity of a request while its repetition is likely."""
    state.granted_requests[request_id] = None
    forget_oldest(state.granted_requests, GRANTED_REQUESTS_MAX)


# Payloads of which an object remembers that it came from them, the latest ones.
REFERENCES_MAX = 16


def apply_object_change(state: ExecutionState, at: Envelope, event: BusinessObjectChanged) -> None:
    """Bring an object about, change it, or mark it as removed."""
    object_state = state.objects.get(event.object_id) or ObjectState(
        object_id=event.object_id,
        object_type=event.object_type,
        first_event_id=at.event_id,
        created_at=at.event_time,
    )
    object_state.version += 1
    object_state.status = event.status or object_state.status
    object_state.attributes = {**object_state.attributes, **codec.to_builtins(event.attributes)}
    object_state.is_deleted = event.is_deleted
    object_state.last_event_id, object_state.updated_at = at.event_id, at.event_time
    if event.result_ref is not None:
        payload_refs = [
            ref for ref in object_state.payload_refs if ref.sha256 != event.result_ref.sha256
        ]
        object_state.payload_refs = [*payload_refs, event.result_ref][-REFERENCES_MAX:]
    state.objects[event.object_id] = state.changes.objects[event.object_id] = object_state
