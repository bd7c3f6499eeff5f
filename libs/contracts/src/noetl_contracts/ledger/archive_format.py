"""Format of the archive: manifests, names of parts, and the columns of an event.

A part is a Parquet file with one row an event, by execution and version. `envelope` holds the event
as it is stored, so that the fold and the chain read an archived event like one of the ledger; the
columns beside it are for people and their SQL and are never read back.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.stored_event import StoredEvent

FORMAT = "noetl.archive"
FORMAT_VERSION = 1
ROOT = "archive/v1"
# What begins with an underscore is no data to Spark, nor to a glob of `*.parquet`.
MANIFESTS = f"{ROOT}/_manifests/"
MENTIONS = f"{ROOT}/_mentions/"

_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_SNOWFLAKE_SHIFT = 22
_INT_MAX = 2**63
# Every payload reference in an event, in a field of any name.
_DIGEST = re.compile(r'"sha256":"([0-9a-f]{64})"')


class ArchivedHistory(Struct, frozen=True, kw_only=True):
    """One history, or what of it was not archived before, and the parts that hold it.

    `previous` is the checksum that the first event follows, `checksum` that of the last one.
    """

    execution_id: ExecutionId
    first_version: int
    last_version: int
    previous: str
    checksum: str
    began_at: datetime
    ended_at: datetime
    parts: list[int]

    @property
    def event_count(self) -> int:
        """Count its events."""
        return self.last_version - self.first_version + 1


class ArchivePart(Struct, frozen=True, kw_only=True):
    """One Parquet file; `sha256` is that of its bytes before they are sealed."""

    number: int
    name: str
    sha256: str
    part_bytes: int
    events: int


class ManifestUnit(Struct, frozen=True, kw_only=True):
    """What is archived at once: histories of one owner that began in one month.

    `fold_version` is the version of the fold in the release that archived them.
    """

    manifest_id: str
    tenant_id: TenantId
    organization_id: OrganizationId
    month: str
    planned_at: datetime
    fold_version: int
    upcaster_digest: str


class ArchiveManifest(Struct, frozen=True, kw_only=True):
    """What one unit holds; written once, after its parts, and never changed.

    `mentions` names the object that lists the payloads which the events mention. Where the events
    were dropped the manifest is all that is kept of them: it has no parts.
    """

    unit: ManifestUnit
    events: int
    histories: list[ArchivedHistory]
    parts: list[ArchivePart]
    mentions: ArchivePart | None = None
    is_dropped: bool = False
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    def find_history(self, execution_id: ExecutionId) -> ArchivedHistory | None:
        """Return what it holds of an execution, or None."""
        return next(
            (history for history in self.histories if history.execution_id == execution_id), None
        )


def decode_manifest(data: bytes) -> ArchiveManifest:
    """Read a manifest; raises `MalformedMessage` for another format or a later version."""
    try:
        manifest = codec.decode_as(data, ArchiveManifest)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(f"this is no manifest of an archive: {failure}") from failure
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        raise MalformedMessage(
            f"a manifest says {manifest.format} {manifest.format_version}; this release reads "
            f"{FORMAT} "
            f"{FORMAT_VERSION}"
        )
    return manifest


def build_manifest_name(manifest_id: str) -> str:
    """Return the name of a unit's manifest."""
    return f"{MANIFESTS}{manifest_id}.json"


def build_mentions_name(manifest_id: str) -> str:
    """Return the name of the list of payloads that a unit's events mention."""
    return f"{MENTIONS}{manifest_id}.txt"


def build_part_name(unit: ManifestUnit, number: int) -> str:
    """Return the name of a part; readers prune by the folders of its path."""
    return (
        f"{ROOT}/tenant={unit.tenant_id}/organization={unit.organization_id}/month={unit.month}/"
        f"{unit.manifest_id}-{number}.parquet"
    )


def find_start_month(execution_id: ExecutionId) -> str:
    """Return the month in which an execution began, as `2026-01`: its identity tells."""
    began = _EPOCH + timedelta(milliseconds=int(execution_id) >> _SNOWFLAKE_SHIFT)
    return f"{began:%Y-%m}"


def build_event_row(event: StoredEvent) -> dict[str, Any]:
    """Return an event as a row of a part."""
    body = event.event
    result, reference = _as_mapping(body.get("result")), _as_mapping(event.payload_ref)
    reference = _as_mapping(result.get("reference")) or reference
    error = _as_mapping(body.get("error"))
    return {
        "tenant_id": event.tenant_id,
        "organization_id": event.organization_id,
        "execution_id": int(event.execution_id),
        "stream_version": event.stream_version,
        "event_id": int(event.event_id),
        "event_type": stored_event.get_stored_type(event),
        "event_time": event.event_time,
        "ingest_time": event.ingest_time,
        "producer": event.producer,
        "node_name": _as_text_or_none(body.get("step")),
        "run_id": _as_text_or_none(body.get("run_id")),
        "stage_id": _as_int64_or_none(body.get("stage_id")),
        "frame_id": _as_int64_or_none(body.get("frame_id")),
        "command_id": _as_int64_or_none(body.get("command_id")),
        "worker_id": _as_text_or_none(body.get("worker_id")),
        "attempt": _as_int64_or_none(body.get("attempt")),
        "status": _as_text_or_none(body.get("status")) or _as_text_or_none(result.get("status")),
        "error_kind": _as_text_or_none(error.get("kind")),
        "error_message": _as_text_or_none(error.get("message")),
        "row_count": _as_int64_or_none(body.get("row_count", reference.get("row_count"))),
        "path": _as_text_or_none(body.get("path")),
        "payload_sha256": _as_text_or_none(reference.get("sha256")),
        "payloads": sorted(set(_DIGEST.findall(codec.encode_text([body, event.payload_ref])))),
        "payload_bytes": _as_int64_or_none(reference.get("payload_bytes")),
        "idempotency_key": event.idempotency_key,
        "causation_id": event.causation_id,
        "schema_name": event.schema_name,
        "schema_version": event.schema_version,
        "checksum": event.envelope_checksum,
        "envelope": stored_event.encode_stored_event(event),
    }


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _as_int64_or_none(value: Any) -> int | None:
    """Read a count or an identity; any other value is None here and stays in the envelope."""
    if isinstance(value, str) and value.isdecimal() and value.isascii():
        value = int(value) if len(value) <= len(str(_INT_MAX)) else None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -_INT_MAX <= value < _INT_MAX else None
