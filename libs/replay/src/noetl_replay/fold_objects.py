"""What events mean for the objects of a playbook's domain."""

from noetl_contracts import codec
from noetl_contracts.envelope import Envelope
from noetl_contracts.events.business import BusinessObjectChanged
from noetl_replay.state import ExecutionState, ObjectState

# Payloads of which an object remembers that it came from them, the latest ones.
REFERENCES_MAX = 16


def apply(state: ExecutionState, at: Envelope, event: BusinessObjectChanged) -> None:
    """Bring an object about, change it, or mark it as removed."""
    known = state.objects.get(event.object_id) or ObjectState(
        object_id=event.object_id,
        object_type=event.object_type,
        first_event_id=at.event_id,
        created_at=at.event_time,
    )
    known.version += 1
    known.status = event.status or known.status
    known.attributes = {**known.attributes, **codec.builtins(event.attributes)}
    known.is_deleted = event.is_deleted
    known.last_event_id, known.updated_at = at.event_id, at.event_time
    if event.result_ref is not None:
        others = [one for one in known.payload_refs if one.sha256 != event.result_ref.sha256]
        known.payload_refs = [*others, event.result_ref][-REFERENCES_MAX:]
    state.objects[event.object_id] = state.changes.objects[event.object_id] = known
