"""The evidence of one execution: a folder of files that prove each other, wherever they are.

It holds the events as they are stored, what they fold to, the rows that were live, the checksums
of both sides, and what became of the payloads. `evidence_checks` proves a folder again.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage, Permanent
from noetl_contracts.ledger import stored_event, upcasters
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay import rows
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.history_replay import ALGORITHM

FORMAT = "noetl.evidence"
FORMAT_VERSION = 1
INDEX = "artifact-index.json"
PATH_BASE = "bundle"
PASSED, FAILED = "passed", "failed"
RESOLVED = "resolved"
# What stands where a sealed value was.
MASK = "***"

FILE_BY_ROLE = {
    "manifest": "manifest.json",
    "events": "events.jsonl",
    "replay": "replay.json",
    "live_rows": "live-rows.json",
    "checksums": "checksums.json",
    "payloads": "payloads.json",
}
STEPS = ("events", "replay", "live_rows", "checksums", "payloads", "artifact_index")


class EvidenceStep(Struct, frozen=True, kw_only=True):
    """One step of gathering the evidence: when it began and ended, and what came of it."""

    name: str
    started_at: datetime
    ended_at: datetime
    outcome: str = PASSED
    detail: str = ""


class EvidenceScope(Struct, frozen=True, kw_only=True):
    """Whose evidence it is."""

    execution_id: str
    tenant_id: str
    organization_id: str


class EvidenceManifest(Struct, frozen=True, kw_only=True):
    """What was gathered, by whom, when, at which position, and with which outcome."""

    format: str
    format_version: int
    execution_id: str
    tenant_id: str
    organization_id: str
    version: int
    envelope_checksum: str
    created_at: datetime
    producer: str
    fold_version: int
    upcaster_digest: str
    outcome: str
    artifact_index: str
    steps: list[EvidenceStep]


class PayloadCheck(Struct, frozen=True, kw_only=True):
    """What became of a payload that events refer to: resolved, missing or corrupt."""

    sha256: str
    uri: str
    status: str
    payload_bytes: int = 0
    row_count: int | None = None
    detail: str = ""


class PayloadSummary(Struct, frozen=True, kw_only=True):
    """How many payloads there are and how many are whole; `checksum` covers the report."""

    payloads: int
    resolved: int
    unresolved: int
    all_resolved: bool
    checksum: str


class PayloadReport(Struct, frozen=True, kw_only=True):
    """Every payload that the events refer to, by digest."""

    payloads: list[PayloadCheck]
    summary: PayloadSummary


class ExportedRows(Struct, frozen=True, kw_only=True):
    """Rows of read models as any store can export them, with counts and a checksum."""

    format_version: int
    adapter: str
    execution_id: str
    tenant_id: str
    organization_id: str
    projection: str
    version: int
    exported_at: datetime
    rows: dict[str, list[dict[str, Any]]]
    row_counts: dict[str, int]
    rows_checksum: str


class SurfaceChecksums(Struct, frozen=True, kw_only=True):
    """The six surfaces of both sides."""

    algorithm: str
    live: dict[str, str]
    replayed: dict[str, str]
    is_equal: bool


class IndexEntry(Struct, frozen=True, kw_only=True):
    """A file of the folder, by its part in the evidence."""

    role: str
    path: str
    sha256: str
    bytes: int


class ArtifactIndex(Struct, frozen=True, kw_only=True):
    """Every file of the folder but itself; paths are relative to it."""

    format: str
    format_version: int
    path_base: str
    manifest: str
    entries: list[IndexEntry]


def build_payload_report(payloads: Sequence[PayloadCheck]) -> PayloadReport:
    """Order what was found of payloads, and count it."""
    ordered = sorted(payloads, key=lambda payload_check: payload_check.sha256)
    resolved_count = sum(item.status == RESOLVED for item in ordered)
    return PayloadReport(
        payloads=ordered,
        summary=PayloadSummary(
            payloads=len(ordered),
            resolved=resolved_count,
            unresolved=len(ordered) - resolved_count,
            all_resolved=resolved_count == len(ordered),
            checksum=codec.compute_checksum(ordered),
        ),
    )


def index_rows_by_key(
    rows_by_surface: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Any]]:
    """Index plain rows by surface and key."""
    return {
        surface: {str(row[rows.KEY_BY_SURFACE[surface]]): row for row in surface_rows}
        for surface, surface_rows in rows_by_surface.items()
    }


def build_surface_checksums(
    exported_rows: ExportedRows, replay: Mapping[str, Any]
) -> SurfaceChecksums:
    """Compare both sides, surface by surface."""
    live_checksums = {
        surface: codec.compute_checksum(row_by_key)
        for surface, row_by_key in index_rows_by_key(exported_rows.rows).items()
    }
    replayed_checksums = dict(replay["projection_checksums"])
    return SurfaceChecksums(
        algorithm=ALGORITHM,
        live=live_checksums,
        replayed=replayed_checksums,
        is_equal=live_checksums == replayed_checksums,
    )


def build_manifest(
    *,
    scope: EvidenceScope,
    head: HistoryHead,
    producer: str,
    created_at: datetime,
    steps: Sequence[EvidenceStep],
) -> EvidenceManifest:
    """Write down how the evidence was gathered."""
    is_good = all(step.outcome == PASSED for step in steps)
    return EvidenceManifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        **structs.asdict(scope),
        version=head.version,
        envelope_checksum=head.checksum,
        created_at=created_at,
        producer=producer,
        fold_version=FOLD_VERSION,
        upcaster_digest=upcasters.digest_registry(),
        outcome=PASSED if is_good else FAILED,
        artifact_index=INDEX,
        steps=list(steps),
    )


def encode_event_lines(events: Iterable[StoredEvent]) -> bytes:
    """Write events one a line."""
    return b"".join(codec.encode_json(event) + b"\n" for event in events)


def build_artifact_index(files: Mapping[str, bytes]) -> ArtifactIndex:
    """List the files of a folder by role; raises `KeyError` when one is missing."""
    return ArtifactIndex(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        path_base=PATH_BASE,
        manifest=FILE_BY_ROLE["manifest"],
        entries=[
            IndexEntry(
                role=role, path=path, sha256=codec.digest_hex(files[path]), bytes=len(files[path])
            )
            for role, path in FILE_BY_ROLE.items()
        ],
    )


class EvidenceProblem(Struct, frozen=True, kw_only=True):
    """A thing that is wrong with a folder: which kind, in which file, in one sentence."""

    code: str
    artifact: str
    message: str


class EvidenceUnreadable(Permanent):
    """A part of the evidence cannot be read at all."""

    def __init__(self, code: str, artifact: str, message: str) -> None:
        super().__init__(message)
        self.problem = EvidenceProblem(code=code, artifact=artifact, message=message)


class ReplayReport(Struct, frozen=True, kw_only=True):
    """What the history came to when the evidence was gathered."""

    execution_id: str
    tenant_id: str
    organization_id: str
    version: int
    event_id: str | None
    envelope_checksum: str
    checksum_algorithm: str
    fold_version: int
    upcaster_digest: str
    status: str
    projection: str
    state: dict[str, Any]
    state_checksum: str
    surfaces: dict[str, dict[str, dict[str, Any]]]
    projection_checksums: dict[str, str]


class EvidenceParts(Struct, frozen=True, kw_only=True):
    """Every part, read."""

    manifest: EvidenceManifest
    events: list[StoredEvent]
    replay: ReplayReport
    live_rows: ExportedRows
    checksums: SurfaceChecksums
    payloads: PayloadReport


_KIND_BY_ROLE: dict[str, type[Struct]] = {
    "manifest": EvidenceManifest,
    "replay": ReplayReport,
    "live_rows": ExportedRows,
    "checksums": SurfaceChecksums,
    "payloads": PayloadReport,
}


def read_part(role: str, data: bytes) -> Any:
    """Read one part; raises `EvidenceUnreadable`."""
    if role == "events":
        return _read_events(data)
    path = FILE_BY_ROLE[role]
    try:
        return codec.decode_as(data, _KIND_BY_ROLE[role])
    except msgspec.ValidationError as failure:
        raise EvidenceUnreadable(
            f"{role}_shape", path, f"{path} does not have the shape of its part: {failure}"
        ) from failure
    except (msgspec.DecodeError, RecursionError) as failure:
        raise EvidenceUnreadable(
            f"{role}_not_json", path, f"{path} is not JSON: {failure}"
        ) from failure


def _read_events(data: bytes) -> list[StoredEvent]:
    path, stored_events = FILE_BY_ROLE["events"], []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            stored_events.append(stored_event.decode_stored_event(line))
        except MalformedMessage as failure:
            raise EvidenceUnreadable(
                "events_line", path, f"line {number} of {path} is no event: {failure}"
            ) from failure
    if not stored_events:
        raise EvidenceUnreadable("events_empty", path, f"{path} holds no event")
    return stored_events
