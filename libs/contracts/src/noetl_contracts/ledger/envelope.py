"""The envelope of an event in today's form, also of events that earlier releases wrote.

What is stored stays as it was sealed, and what follows from other fields is not stored twice: only
what is shown is derived. A producer is stored without its owner, as `node/n7/worker/w1`; earlier
releases stored the bare name of a planner.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl_contracts import codec, locators
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.events import Event, find_event_class, get_event_type
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import upcasters
from noetl_contracts.payloads import PayloadRef

CORRELATION_CHARACTERS_MAX = 200
# What a producer that is stored without its owner begins with.
_SHORT_KINDS = frozenset({*locators.LOCALITY_KEYS, "planner", "worker"})
# Where the body of an event refers to stored content. No event has two of them.
REFERENCE_FIELDS = (
    "rows_ref",
    "collection_ref",
    "parts_ref",
    "workload_ref",
    "resume_ref",
    "result_ref",
)
_SCHEMA_PREFIX = "noetl."
_ID_BY_AGGREGATE = {
    "frame": "frame_id",
    "stage": "stage_id",
    "command": "command_id",
    "business_object": "object_id",
}


def shorten_producer(locator: str, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return a producer as events store it: without the owner, which the event has already."""
    return locator.removeprefix(_build_owner_prefix(tenant_id, organization_id))


def upcast_producer(producer: str, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return a producer as a locator; what earlier releases wrote is the name of a planner."""
    if producer.startswith(locators.SCHEME):
        return producer
    if producer.partition("/")[0] in _SHORT_KINDS:
        return _build_owner_prefix(tenant_id, organization_id) + producer
    return locators.build_process_locator("planner", producer, tenant_id, organization_id)


@lru_cache(maxsize=128)
def _build_owner_prefix(tenant_id: TenantId, organization_id: OrganizationId) -> str:
    return locators.build_locator("tenant", tenant_id, "org", organization_id) + "/"


def upcast_correlation(correlation_id: str | None, execution_id: ExecutionId) -> str:
    """Return the flow of an event; without one, an execution is a flow of its own."""
    return correlation_id or str(execution_id)


def is_correlation(text: str) -> bool:
    """Tell whether a text may name a flow: 1 to 200 printable characters."""
    return 0 < len(text) <= CORRELATION_CHARACTERS_MAX and text.isprintable()


def find_payload_ref(context: Mapping[str, Any], result: Any) -> dict[str, Any] | None:
    """Return the reference to the stored content that an event is about, None where none is.

    It is that of its result, else that of its chunk of a stream, else the one of its body.
    """
    if isinstance(result, Mapping) and result.get("reference") is not None:
        return dict(result["reference"])
    if isinstance(chunk := context.get("chunk"), Mapping):
        return dict(chunk["ref"])
    payload_ref = next((context[name] for name in REFERENCE_FIELDS if context.get(name)), None)
    return None if payload_ref is None else dict(payload_ref)


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


def build_schema_name(event: Event) -> str:
    """Name the schema of an event, such as `noetl.frame.committed`."""
    return _SCHEMA_PREFIX + get_event_type(event)


def get_schema_version(event: Event) -> int:
    """Return the version in which this release writes an event."""
    return upcasters.get_current_version(build_schema_name(event))


def find_aggregate(execution_id: ExecutionId, event: Event) -> tuple[str, str]:
    """Return the type and id of the innermost thing that the event happened to."""
    kind = get_event_type(event).partition(".")[0]
    field = _ID_BY_AGGREGATE.get(kind)
    if field is None:
        return "execution", f"execution/{execution_id}"
    return kind, f"{kind}/{getattr(event, field)}"


def seal_envelope(envelope: Envelope, previous_checksum: str) -> Envelope:
    """Link an envelope to its predecessor: its checksum covers the predecessor's."""
    return structs.replace(
        envelope,
        envelope_checksum=codec.chain_checksum(previous_checksum, _encode_sealed_fields(envelope)),
    )


def _encode_sealed_fields(envelope: Envelope) -> bytes:
    """Return the canonical bytes of everything but the checksum and the ledger's own clock."""
    return codec.encode_canonical(structs.replace(envelope, envelope_checksum="", ingest_time=None))


def split_event_body(event: Event) -> tuple[dict[str, Any], Any, Any]:
    """Split an event into the ledger's columns `context`, `result` and `error`."""
    body = codec.to_builtins(event)
    del body["event_type"]
    return body, body.pop("result", None), body.pop("error", None)


def join_event_body(
    kind: str, context: dict[str, Any], result: Any, error: Any, *, version: int | None = None
) -> Event:
    """Rebuild an event from its columns; `version` is the schema version that wrote them.

    Without a version it is of the current one. Raises `UnknownEventType` or `MalformedMessage`.
    """
    event_class = find_event_class(kind)
    if event_class is None:
        raise UnknownEventType(f"event type {kind!r} is not known to this release")
    body = dict(context)
    if result is not None:
        body["result"] = result
    if error is not None:
        body["error"] = error
    if version is not None:
        body = upcasters.upcast_body(_SCHEMA_PREFIX + kind, version, body)
    try:
        return codec.convert_value(
            {**body, "event_type": event_class.__struct_config__.tag}, event_class
        )  # type: ignore[return-value]  # `find_event_class` knows exactly the members of Event
    except msgspec.ValidationError as failure:
        raise MalformedMessage(f"event {kind!r} does not fit its schema: {failure}") from failure


class EventBatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A contiguous range of one execution's events, as one message of `NOETL_EVENTS`.

    `traceparent` names the span that decided on them, where spans are exported.
    """

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    first_version: int
    last_version: int
    events: list[Envelope]
    traceparent: str | None = None
