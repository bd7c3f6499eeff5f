"""Converts envelopes to ledger columns and back, without changing the bytes under the checksum."""

import re
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.events import Event, get_event_type
from noetl_contracts.identity.actors import UNKNOWN, Actor
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import envelope, stored_event, upcasters
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import Request
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.payloads import PayloadRef
from noetl_storage.postgres.key_order import keeps_key_order

# jsonb writes 1e20 as an integer, drops the sign of -0.0, and refuses U+0000. An expression whose
# branches begin alike is searched in less than half the time.
_INEXACT = re.compile(r"[:,\[](?:-?\d[\d.]*[eE]|-0\.0[,}\]])")
_ESCAPED_NUL = "\\u0000"
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")

# Values of one row, in the order of the function that takes them.
Columns = tuple[Any, ...]


def build_request_columns(request: Request) -> Columns:
    """Split a request into the values that the functions which keep one take, in their order."""
    return (
        request.request_id,
        int(request.execution_id),
        request.tenant_id,
        request.organization_id,
        request.kind,
        request.subject,
        request.data,
        request.idempotency_key,
    )


def read_actor_column(column_value: Any) -> Actor | None:
    """Read who put a row; what this release does not understand is an unknown actor."""
    if column_value is None:
        return None
    try:
        return codec.convert_value(column_value, Actor)
    except msgspec.ValidationError:
        return UNKNOWN


def build_event_columns(row: Envelope) -> Columns:
    """Split an envelope into the values of a `noetl.new_event`."""
    event = row.event
    body, result, error = envelope.split_event_body(event)
    texts: list[str | None] = [
        codec.encode_text(body),
        _encode_text(result),
        _encode_text(error),
        _encode_text(row.payload_ref),
        _encode_text(row.meta),
    ]
    is_exact = _is_column_exact(row, texts) and keeps_key_order(body, result, error)
    if not is_exact:
        texts = [None if text is None else replace_nul(text) for text in texts]
    return (
        int(row.event_id),
        int(row.execution_id),
        row.stream_version,
        row.tenant_id,
        row.organization_id,
        row.stream_id,
        row.aggregate_type,
        row.aggregate_id,
        get_event_type(event),
        row.schema_name,
        row.schema_version,
        row.event_time,
        row.producer,
        row.causation_id,
        row.correlation_id,
        row.idempotency_key,
        body.get("step"),
        body.get("run_id"),
        _find_status(body, result),
        _to_integer(body.get("stage_id")),
        _to_integer(body.get("frame_id")),
        _to_integer(body.get("command_id")),
        *texts,
        row.envelope_checksum,
        None if is_exact else codec.encode_text(row),
    )


def build_envelope(record: asyncpg.Record) -> Envelope:
    """Rebuild an envelope; raises `UnknownEventType` or `MalformedMessage`."""
    if record["exact"] is not None:
        sealed = stored_event.read_envelope(stored_event.decode_stored_event(record["exact"]))
        return structs.replace(sealed, ingest_time=record["created_at"])
    reference = record["payload_ref"]
    return Envelope(
        event_id=EventId(str(record["event_id"])),
        tenant_id=TenantId(record["tenant_id"]),
        organization_id=OrganizationId(record["organization_id"]),
        execution_id=ExecutionId(str(record["execution_id"])),
        stream_id=record["stream_id"],
        stream_version=record["stream_version"],
        aggregate_id=record["aggregate_id"],
        aggregate_type=record["aggregate_type"],
        schema_name=record["schema_name"],
        schema_version=upcasters.get_current_version(record["schema_name"]),
        event_time=record["event_time"],
        producer=record["producer"],
        event=_join_event(record),
        ingest_time=record["created_at"],
        causation_id=record["causation_id"],
        correlation_id=record["correlation_id"],
        idempotency_key=record["idempotency_key"],
        payload_ref=None if reference is None else codec.convert_value(reference, PayloadRef),
        meta=record["meta"] or {},
        envelope_checksum=record["envelope_checksum"],
    )


def build_event(record: asyncpg.Record) -> Event:
    """Rebuild an event without its envelope; raises `UnknownEventType` or `MalformedMessage`."""
    if record["exact"] is not None:
        return stored_event.read_envelope(stored_event.decode_stored_event(record["exact"])).event
    return _join_event(record)


def _join_event(record: asyncpg.Record) -> Event:
    return envelope.join_event_body(
        record["event_type"],
        record["context"],
        record["result"],
        record["error"],
        version=record["schema_version"],
    )


def build_stored_event(record: asyncpg.Record) -> StoredEvent:
    """Return a row's plain values; raises `MalformedMessage`.

    Where the sealed text is kept beside the columns, the columns are what queries read: those that
    say something else than the sealed fields are named as altered.
    """
    event = _build_shown_event(record)
    if record["exact"] is None:
        return structs.replace(event, altered=tuple(_list_stray_columns(record, event)))
    sealed = stored_event.decode_stored_event(record["exact"])
    strays = [
        name
        for name in event.__struct_fields__
        if name not in {"ingest_time", "altered", "concealed"}
        and getattr(event, name) != _to_storable(getattr(sealed, name))
    ]
    return structs.replace(
        sealed,
        ingest_time=record["created_at"],
        altered=(*strays, *_list_stray_columns(record, event)),
    )


def _build_shown_event(record: asyncpg.Record) -> StoredEvent:
    """Return what the columns say; the ledger's audit compares it with the text beside them."""
    event = {"event_type": stored_event.get_event_tag(record["event_type"]), **record["context"]}
    event |= {name: record[name] for name in ("result", "error") if record[name] is not None}
    return StoredEvent(
        event_id=str(record["event_id"]),
        tenant_id=record["tenant_id"],
        organization_id=record["organization_id"],
        execution_id=str(record["execution_id"]),
        stream_id=record["stream_id"],
        stream_version=record["stream_version"],
        aggregate_id=record["aggregate_id"],
        aggregate_type=record["aggregate_type"],
        schema_name=record["schema_name"],
        schema_version=record["schema_version"],
        event_time=record["event_time"],
        producer=record["producer"],
        event=event,
        ingest_time=record["created_at"],
        causation_id=record["causation_id"],
        correlation_id=record["correlation_id"],
        idempotency_key=record["idempotency_key"],
        payload_ref=record["payload_ref"],
        meta=record["meta"] or {},
        envelope_checksum=record["envelope_checksum"],
    )


def _list_stray_columns(record: asyncpg.Record, column_event: StoredEvent) -> list[str]:
    """Name the columns for queries that differ from the sealed fields they were taken from."""
    body = column_event.event
    expected = {
        "event_type": stored_event.get_stored_type(column_event),
        "node_name": body.get("step"),
        "node_id": body.get("run_id"),
        "status": _find_status(body, body.get("result")),
        "stage_id": _to_integer(body.get("stage_id")),
        "frame_id": _to_integer(body.get("frame_id")),
        "command_id": _to_integer(body.get("command_id")),
    }
    return [name for name, value in expected.items() if record[name] != value]


def _to_storable(value: Any) -> Any:
    """Convert a sealed value to what a column can hold; numbers compare equal in every form."""
    return (
        codec.decode_json(replace_nul(codec.encode_text(value)))
        if isinstance(value, dict)
        else value
    )


def replace_nul(text: str) -> str:
    """Write U+FFFD for U+0000, which PostgreSQL cannot keep in a text."""
    return _NUL.sub(r"\1\\ufffd", text)


def _is_column_exact(row: Envelope, texts: list[str | None]) -> bool:
    return row.event_time.utcoffset() == timedelta(0) and not any(
        text is not None and (_ESCAPED_NUL in text or _INEXACT.search(text)) for text in texts
    )


def _encode_text(value: Any) -> str | None:
    return None if value is None or value == {} else codec.encode_text(value)


def _to_integer(identity: Any) -> int | None:
    return None if identity is None else int(identity)


def _find_status(body: dict[str, Any], result: Any) -> str | None:
    """Return the status that the event states, its own before its result's."""
    status = body.get("status")
    if status is None and isinstance(result, dict):
        status = result.get("status")
    return status
