"""An event as the ledger stores it: plain fields, before an upcaster or decoder reads them.

The checksum chain covers these and not the event that they are read as, so that a field which a
later release adds, renames or drops leaves every older event provable.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.events import execution_events
from noetl_contracts.ledger import envelope, upcasters
from noetl_contracts.ledger.envelope import Envelope, EventBatch

_TAG = "event_type"
_UNCOVERED = {"envelope_checksum": "", "ingest_time": None}


class StoredEvent(Struct, frozen=True, kw_only=True):
    """An envelope whose event is a mapping with its tag under `event_type`.

    `altered` names columns that do not say what the sealed fields say. An event that is
    `concealed` lacks values that were hidden on the way here: only the ledger can prove it.
    Neither is sealed itself.
    """

    event_id: str
    tenant_id: str
    organization_id: str
    execution_id: str
    stream_id: str
    stream_version: int
    aggregate_id: str
    aggregate_type: str
    schema_name: str
    schema_version: int
    event_time: datetime
    producer: str
    event: dict[str, Any]
    ingest_time: datetime | None = None
    causation_id: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    payload_ref: dict[str, Any] | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    envelope_checksum: str = codec.CHECKSUM_NONE
    altered: tuple[str, ...] = ()
    concealed: bool = False


class StoredBatch(Struct, frozen=True, kw_only=True):
    """A message of `NOETL_EVENTS` whose events have not been read."""

    execution_id: str
    tenant_id: str
    organization_id: str
    first_version: int
    last_version: int
    events: list[StoredEvent]


# What the seal of every release covers, as it was when the first event was sealed.
_NOTES = ("altered", "concealed")
_COVERED = tuple(
    name for name in StoredEvent.__struct_fields__ if name not in {*_UNCOVERED, *_NOTES}
)


def get_event_tag(kind: str) -> str:
    """Return the tag under which an event type's body is written."""
    return execution_events.CUSTOM if kind.startswith(f"{execution_events.CUSTOM}.") else kind


def get_stored_type(event: StoredEvent) -> str:
    """Return an event's type, such as `frame.committed` or `custom.<name>`."""
    tag = str(event.event.get(_TAG))
    return f"{tag}.{event.event.get('name')}" if tag == execution_events.CUSTOM else tag


def to_stored_event(sealed: Envelope) -> StoredEvent:
    """Return the plain values of an envelope that this release has written."""
    return decode_stored_event(codec.encode_json(sealed))


def decode_stored_event(data: bytes | str) -> StoredEvent:
    """Decode an envelope's JSON without reading its event; raises `MalformedMessage`."""
    try:
        return codec.decode_as(data, StoredEvent)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise MalformedMessage(f"this is no event of a ledger: {failure}") from failure


def encode_stored_event(stored_event: StoredEvent) -> bytes:
    """Encode an event as it is stored, without notes on how it came here."""
    values = structs.asdict(stored_event)
    for note in _NOTES:
        del values[note]
    return codec.encode_json({name: value for name, value in values.items() if value is not None})


def encode_covered_fields(event: StoredEvent, *, version: int | None = None) -> bytes:
    """Return the bytes that an event's checksum covers, perhaps as if it stood at a version."""
    values = {name: getattr(event, name) for name in _COVERED} | _UNCOVERED
    if version is not None:
        values["stream_version"] = version
    return codec.encode_canonical(values)


def is_stored_event_sealed(
    event: StoredEvent, previous_checksum: str, *, version: int | None = None
) -> bool:
    """Tell whether an event is as it was sealed behind the one with `previous_checksum`."""
    expected = codec.chain_checksum(
        previous_checksum, encode_covered_fields(event, version=version)
    )
    return event.envelope_checksum == expected


def read_envelope(archived_event: StoredEvent) -> Envelope:
    """Convert a stored event of any release to the envelope of this release.

    Raises `UnknownEventType` or `MalformedMessage`.
    """
    kind = get_stored_type(archived_event)
    body = {name: value for name, value in archived_event.event.items() if name != _TAG}
    result, error = body.pop("result", None), body.pop("error", None)
    event = envelope.join_event_body(
        kind, body, result, error, version=archived_event.schema_version
    )
    values = structs.asdict(archived_event)
    for note in _NOTES:
        del values[note]
    values |= {
        "event": codec.to_builtins(event),
        "schema_version": upcasters.get_current_version(archived_event.schema_name),
    }
    return codec.convert_value(values, Envelope)


def decode_event_batch(data: bytes) -> EventBatch:
    """Decode a message of `NOETL_EVENTS` that any release wrote.

    Raises `UnknownEventType` or `MalformedMessage`.
    """
    try:
        batch = codec.decode_as(data, EventBatch)
    except msgspec.ValidationError:
        return _decode_older_batch(data)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(f"an event batch is not JSON: {failure}") from failure
    is_current = all(
        event.schema_version == upcasters.get_current_version(event.schema_name)
        for event in batch.events
    )
    return batch if is_current else _decode_older_batch(data)


def _decode_older_batch(data: bytes) -> EventBatch:
    try:
        plain = codec.decode_as(data, StoredBatch)
        values = structs.asdict(plain)
        values["events"] = [codec.to_builtins(read_envelope(event)) for event in plain.events]
        return codec.convert_value(values, EventBatch)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise MalformedMessage(f"an event batch does not fit its schema: {failure}") from failure
