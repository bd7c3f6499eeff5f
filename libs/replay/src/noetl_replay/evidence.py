"""The evidence of one execution: a folder of files that prove each other, wherever they are.

It holds the events as they are stored, what they fold to, the rows that were live, the checksums
of both sides, and what became of the payloads. `evidence_checks` proves a folder again.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, structs

from noetl_contracts import codec, upcast
from noetl_contracts.ledger import Head
from noetl_contracts.stored import StoredEvent
from noetl_replay import rows
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.replaying import ALGORITHM, ALL

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


class Step(Struct, frozen=True, kw_only=True):
    """One step of gathering the evidence: when it began and ended, and what came of it."""

    name: str
    started_at: datetime
    ended_at: datetime
    outcome: str = PASSED
    detail: str = ""


class Scope(Struct, frozen=True, kw_only=True):
    """Whose evidence it is."""

    execution_id: str
    tenant_id: str
    organization_id: str


class Manifest(Struct, frozen=True, kw_only=True):
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
    steps: list[Step]


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


class LiveRows(Struct, frozen=True, kw_only=True):
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


class Checksums(Struct, frozen=True, kw_only=True):
    """The six surfaces of both sides."""

    algorithm: str
    live: dict[str, str]
    replayed: dict[str, str]
    is_equal: bool


class Entry(Struct, frozen=True, kw_only=True):
    """A file of the folder, by its part in the evidence."""

    role: str
    path: str
    sha256: str
    bytes: int


class Index(Struct, frozen=True, kw_only=True):
    """Every file of the folder but itself; paths are relative to it."""

    format: str
    format_version: int
    path_base: str
    manifest: str
    entries: list[Entry]


def summarize(payloads: Sequence[PayloadCheck]) -> PayloadReport:
    """Order what was found of payloads, and count it."""
    ordered = sorted(payloads, key=lambda one: one.sha256)
    resolved = sum(one.status == RESOLVED for one in ordered)
    return PayloadReport(
        payloads=ordered,
        summary=PayloadSummary(
            payloads=len(ordered),
            resolved=resolved,
            unresolved=len(ordered) - resolved,
            all_resolved=resolved == len(ordered),
            checksum=codec.checksum(ordered),
        ),
    )


def live_rows(
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    scope: Scope,
    adapter: str,
    version: int,
    exported_at: datetime,
) -> LiveRows:
    """Write down what read models hold; a surface without rows is written as an empty one."""
    complete = {
        surface: [rows.summed_row(surface, row) for row in found.get(surface, ())]
        for surface in rows.SURFACES
    }
    plain: dict[str, list[dict[str, Any]]] = codec.decode(codec.encode(complete))
    return LiveRows(
        format_version=FORMAT_VERSION,
        adapter=adapter,
        **structs.asdict(scope),
        projection=ALL,
        version=version,
        exported_at=exported_at,
        rows=plain,
        row_counts={surface: len(kept) for surface, kept in plain.items()},
        rows_checksum=codec.checksum(plain),
    )


def keyed(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Index plain rows by surface and key."""
    return {
        surface: {str(row[rows.KEY_BY_SURFACE[surface]]): row for row in kept}
        for surface, kept in found.items()
    }


def checksums(live: LiveRows, replay: Mapping[str, Any]) -> Checksums:
    """Compare both sides, surface by surface."""
    ours = {surface: codec.checksum(found) for surface, found in keyed(live.rows).items()}
    theirs = dict(replay["projection_checksums"])
    return Checksums(algorithm=ALGORITHM, live=ours, replayed=theirs, is_equal=ours == theirs)


def manifest(
    *, scope: Scope, head: Head, producer: str, created_at: datetime, steps: Sequence[Step]
) -> Manifest:
    """Write down how the evidence was gathered."""
    is_good = all(step.outcome == PASSED for step in steps)
    return Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        **structs.asdict(scope),
        version=head.version,
        envelope_checksum=head.checksum,
        created_at=created_at,
        producer=producer,
        fold_version=FOLD_VERSION,
        upcaster_digest=upcast.digest(),
        outcome=PASSED if is_good else FAILED,
        artifact_index=INDEX,
        steps=list(steps),
    )


def lines(events: Iterable[StoredEvent]) -> bytes:
    """Write events one a line."""
    return b"".join(codec.encode(one) + b"\n" for one in events)


def index(files: Mapping[str, bytes]) -> Index:
    """List the files of a folder by role; raises `KeyError` when one is missing."""
    return Index(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        path_base=PATH_BASE,
        manifest=FILE_BY_ROLE["manifest"],
        entries=[
            Entry(role=role, path=path, sha256=codec.digest(files[path]), bytes=len(files[path]))
            for role, path in FILE_BY_ROLE.items()
        ],
    )
