"""An event with its place in the ledger, its lineage and its link in the checksum chain."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl_contracts import codec, upcast
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.events import Event, event_type, find_class
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef

_SCHEMA_PREFIX = "noetl."
_ID_BY_AGGREGATE = {
    "frame": "frame_id",
    "stage": "stage_id",
    "command": "command_id",
    "business_object": "object_id",
}


class Envelope(Struct, frozen=True, kw_only=True):
    """One row of the ledger; `ingest_time` is set by the ledger and not part of the checksum."""

    event_id: EventId
    tenant_id: TenantId
    organization_id: OrganizationId
    execution_id: ExecutionId
    stream_id: str
    stream_version: int
    aggregate_id: str
    aggregate_type: str
    schema_name: str
    schema_version: int
    event_time: datetime
    producer: str
    event: Event
    ingest_time: datetime | None = None
    causation_id: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    payload_ref: PayloadRef | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    envelope_checksum: str = codec.CHECKSUM_NONE


def schema_name(event: Event) -> str:
    """Name the schema of an event, such as `noetl.frame.committed`."""
    return _SCHEMA_PREFIX + event_type(event)


def schema_version(event: Event) -> int:
    """Return the version in which this release writes an event."""
    return upcast.current_version(schema_name(event))


def aggregate_of(execution_id: ExecutionId, event: Event) -> tuple[str, str]:
    """Return the type and id of the innermost thing that the event happened to."""
    kind = event_type(event).partition(".")[0]
    field = _ID_BY_AGGREGATE.get(kind)
    if field is None:
        return "execution", f"execution/{execution_id}"
    return kind, f"{kind}/{getattr(event, field)}"


def seal(envelope: Envelope, previous_checksum: str) -> Envelope:
    """Link an envelope to its predecessor: its checksum covers the predecessor's."""
    return structs.replace(
        envelope, envelope_checksum=codec.chained(previous_checksum, _covered(envelope))
    )


def is_sealed(envelope: Envelope, previous_checksum: str) -> bool:
    """Tell whether an envelope is unchanged and follows the one with `previous_checksum`."""
    expected = codec.chained(previous_checksum, _covered(envelope))
    return envelope.envelope_checksum == expected


def _covered(envelope: Envelope) -> bytes:
    """Return the canonical bytes of everything but the checksum and the ledger's own clock."""
    return codec.canonical(structs.replace(envelope, envelope_checksum="", ingest_time=None))


def split_body(event: Event) -> tuple[dict[str, Any], Any, Any]:
    """Split an event into the ledger's columns `context`, `result` and `error`."""
    body = codec.builtins(event)
    del body["event_type"]
    return body, body.pop("result", None), body.pop("error", None)


def join_body(
    kind: str, context: dict[str, Any], result: Any, error: Any, *, version: int | None = None
) -> Event:
    """Rebuild an event from its columns, whatever the schema `version` it was written in.

    Without a version it is of the current one. Raises `UnknownEventType` or `MalformedMessage`.
    """
    known = find_class(kind)
    if known is None:
        raise UnknownEventType(f"event type {kind!r} is not known to this release")
    body = dict(context)
    if result is not None:
        body["result"] = result
    if error is not None:
        body["error"] = error
    if version is not None:
        body = upcast.upcast(_SCHEMA_PREFIX + kind, version, body)
    try:
        return msgspec.convert({**body, "event_type": known.__struct_config__.tag}, known)  # type: ignore[return-value]  # `find_class` knows exactly the members of Event
    except msgspec.ValidationError as failure:
        raise MalformedMessage(f"event {kind!r} does not fit its schema: {failure}") from failure


class EventBatch(Struct, frozen=True, kw_only=True):
    """A contiguous range of one execution's events, as one message of `NOETL_EVENTS`."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    first_version: int
    last_version: int
    events: list[Envelope]
