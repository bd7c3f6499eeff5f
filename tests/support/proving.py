"""Folders of evidence made of a history, for tests to damage."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, structs
from tests.support.builders import NOON, History, a_cursor_loop

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import HistoryHead
from noetl_replay import history_replay, payload_references, rows
from noetl_replay.audit import evidence
from noetl_replay.audit.evidence import (
    FILE_BY_ROLE,
    EvidenceScope,
    EvidenceStep,
    ExportedRows,
    PayloadCheck,
)
from noetl_replay.history_replay import ALL, HistoryReplay
from noetl_replay.state import build_empty_state

Files = dict[str, bytes]


def replayed(history: History) -> dict[str, Any]:
    """What a history comes to, as plain values."""
    first = history.envelopes[0]
    replay = HistoryReplay(
        build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    )
    replay.feed_events(history.envelopes)
    report: dict[str, Any] = codec.decode_json(
        codec.encode_json(history_replay.build_replay_report(replay))
    )
    return report


def export_rows(
    live_rows: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    scope: EvidenceScope,
    version: int,
    exported_at: datetime,
) -> ExportedRows:
    """What read models hold, as the planner exports it: a surface without rows is empty."""
    checksum_rows = {
        surface: [rows.select_checksum_columns(surface, row) for row in live_rows.get(surface, ())]
        for surface in rows.SURFACES
    }
    plain: dict[str, list[dict[str, Any]]] = codec.decode_json(codec.encode_json(checksum_rows))
    return ExportedRows(
        format_version=evidence.FORMAT_VERSION,
        adapter="memory",
        **structs.asdict(scope),
        projection=ALL,
        version=version,
        exported_at=exported_at,
        rows=plain,
        row_counts={surface: len(surface_rows) for surface, surface_rows in plain.items()},
        rows_checksum=codec.compute_checksum(plain),
    )


def a_folder(history: History | None = None) -> Files:
    """The evidence of a history whose live rows are what they should be."""
    history = history or a_cursor_loop()
    events = [stored_event.to_stored_event(envelope) for envelope in history.envelopes]
    last, report = events[-1], replayed(history)
    scope = EvidenceScope(
        execution_id=last.execution_id,
        tenant_id=last.tenant_id,
        organization_id=last.organization_id,
    )
    exported_rows = export_rows(
        {surface: list(found.values()) for surface, found in report["surfaces"].items()},
        scope=scope,
        version=last.stream_version,
        exported_at=NOON,
    )
    references = payload_references.collect_references([event.event for event in events])
    payloads = evidence.build_payload_report(
        [
            PayloadCheck(sha256=digest, uri=item["uri"], status=evidence.RESOLVED)
            for digest, item in references.items()
        ]
    )
    steps = [
        EvidenceStep(name=name, started_at=NOON, ended_at=NOON + timedelta(seconds=1))
        for name in evidence.STEPS
    ]
    head = HistoryHead(
        execution_id=ExecutionId(last.execution_id),
        version=last.stream_version,
        checksum=last.envelope_checksum,
    )
    files = {
        "events": evidence.encode_event_lines(events),
        "replay": codec.encode_json(report),
        "live_rows": codec.encode_json(exported_rows),
        "checksums": codec.encode_json(evidence.build_surface_checksums(exported_rows, report)),
        "payloads": codec.encode_json(payloads),
        "manifest": codec.encode_json(
            evidence.build_manifest(
                scope=scope, head=head, producer="test", created_at=NOON, steps=steps
            )
        ),
    }
    return indexed({FILE_BY_ROLE[role]: data for role, data in files.items()})


def indexed(files: Files) -> Files:
    """The folder with an index that fits its files."""
    kept = {path: data for path, data in files.items() if path != evidence.INDEX}
    return {**kept, evidence.INDEX: codec.encode_json(evidence.build_artifact_index(kept))}


def edited(role: str, change: Callable[[Any], Any]) -> Callable[[Files], Files]:
    """Change the JSON of one part and hide it from the index."""

    def damage(files: Files) -> Files:
        path = FILE_BY_ROLE[role]
        body = codec.decode_json(files[path])
        changed = change(body)
        return indexed(
            {**files, path: codec.encode_json(changed if isinstance(changed, Struct) else body)}
        )

    return damage


def reindexed(change: Callable[[Any], Any]) -> Callable[[Files], Files]:
    """Change the index itself."""

    def damage(files: Files) -> Files:
        body = codec.decode_json(files[evidence.INDEX])
        change(body)
        return {**files, evidence.INDEX: codec.encode_json(body)}

    return damage


def relined(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Files], Files]:
    """Change the events and hide it from the index."""

    def damage(files: Files) -> Files:
        path = FILE_BY_ROLE["events"]
        body = [codec.decode_json(line) for line in files[path].splitlines()]
        change(body)
        lines = b"".join(codec.encode_json(line) + b"\n" for line in body)
        return indexed({**files, path: lines})

    return damage


def replaced(path: str, data: bytes) -> Callable[[Files], Files]:
    """Put other bytes in the place of a file, and hide it from the index."""
    return lambda files: indexed({**files, path: data})
