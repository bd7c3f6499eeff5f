"""Envelopes to ledger columns and back, without changing a byte of what was sealed."""

import re
from datetime import timedelta
from typing import Any

import asyncpg
from msgspec import structs

from noetl_contracts import codec, envelope
from noetl_contracts.envelope import Envelope
from noetl_contracts.events import event_type
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef

# jsonb writes 1e20 as an integer, drops the sign of -0.0, and refuses U+0000.
_INEXACT = re.compile(r"[:,\[]-?\d[\d.]*[eE]|[:,\[]-0\.0[,}\]]|\\u0000")
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")

# The columns of `noetl.append`'s events, in its order.
Columns = tuple[Any, ...]


def to_columns(row: Envelope) -> Columns:
    """Split an envelope into the values that `noetl.append` takes, in its order."""
    event = row.event
    body, result, error = envelope.split_body(event)
    texts: list[str | None] = [
        codec.text(body),
        _text(result),
        _text(error),
        _text(row.payload_ref),
        _text(row.meta),
    ]
    is_exact = _is_exact(row, texts)
    if not is_exact:
        texts = [None if text is None else without_nul(text) for text in texts]
    return (
        int(row.event_id),
        int(row.execution_id),
        row.stream_version,
        row.tenant_id,
        row.organization_id,
        row.stream_id,
        row.aggregate_type,
        row.aggregate_id,
        event_type(event),
        row.schema_name,
        row.schema_version,
        row.event_time,
        row.producer,
        row.causation_id,
        row.correlation_id,
        row.idempotency_key,
        body.get("step"),
        body.get("run_id"),
        _status(body, result),
        _number(body.get("stage_id")),
        _number(body.get("frame_id")),
        _number(body.get("command_id")),
        *texts,
        row.envelope_checksum,
        None if is_exact else codec.text(row),
    )


def from_record(record: asyncpg.Record) -> Envelope:
    """Rebuild an envelope; raises `UnknownEventType` or `MalformedMessage`."""
    if record["exact"] is not None:
        sealed = codec.decode_as(record["exact"], Envelope)
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
        schema_version=record["schema_version"],
        event_time=record["event_time"],
        producer=record["producer"],
        event=envelope.join_body(
            record["event_type"], record["context"], record["result"], record["error"]
        ),
        ingest_time=record["created_at"],
        causation_id=record["causation_id"],
        correlation_id=record["correlation_id"],
        idempotency_key=record["idempotency_key"],
        payload_ref=None if reference is None else codec.convert(reference, PayloadRef),
        meta=record["meta"] or {},
        envelope_checksum=record["envelope_checksum"],
    )


def without_nul(text: str) -> str:
    """Write U+FFFD for U+0000, which PostgreSQL cannot keep in a text."""
    return _NUL.sub(r"\1\\ufffd", text)


def _is_exact(row: Envelope, texts: list[str | None]) -> bool:
    return row.event_time.utcoffset() == timedelta(0) and not any(
        text is not None and _INEXACT.search(text) for text in texts
    )


def _text(value: Any) -> str | None:
    return None if value is None or value == {} else codec.text(value)


def _number(identity: Any) -> int | None:
    return None if identity is None else int(identity)


def _status(body: dict[str, Any], result: Any) -> str | None:
    """Return the status that the event states, its own before its result's."""
    own = body.get("status")
    if own is None and isinstance(result, dict):
        own = result.get("status")
    return own
