"""Folders of evidence on disk: written once, read whole, nothing followed out of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noetl_chassis.clock import Clock
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import folded_answer
from noetl_cli.planner.client import PlannerClient
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay.audit import evidence
from noetl_replay.audit.evidence import (
    FILE_BY_ROLE,
    EvidenceScope,
    EvidenceStep,
    ExportedRows,
    PayloadCheck,
)

FILE_BYTES_MAX = 4 * 1024 * 1024 * 1024
FILES_MAX = 1000


def write_evidence(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new or empty folder; raises a `CliError` for any other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CliError(
                f"{folder} is not empty.",
                way_out="Name a new folder with --output: evidence is never written over.",
                exit_code=ExitCode.USAGE,
            )
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as failure:
        raise CliError(
            f"The evidence cannot be written to {folder}: {failure.strerror}.",
            way_out="Name another folder with --output.",
        ) from failure


def read_evidence(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder; links and folders in it stand as what they are: no files."""
    if not folder.is_dir():
        raise CliError(
            f"{folder} is no folder.",
            way_out="Name the folder that `noetl replay verify` has written.",
            exit_code=ExitCode.USAGE,
        )
    evidence: dict[str, bytes] = {}
    try:
        for place, path in enumerate(sorted(folder.iterdir())):
            if place >= FILES_MAX:
                raise CliError(f"{folder} holds more than {FILES_MAX} files: it is no evidence.")
            if path.is_symlink() or not path.is_file():
                evidence[f"{path.name}/"] = b""
                continue
            _check_file_size(path)
            evidence[path.name] = path.read_bytes()
    except OSError as failure:
        raise CliError(f"{folder} cannot be read: {failure.strerror}.") from failure
    return evidence


def _check_file_size(path: Path) -> None:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise CliError(f"{path} is larger than {FILE_BYTES_MAX} bytes: it is no evidence.")


PRODUCER = "noetl replay verify"
PAGE_EVENTS = 1000


class EvidenceCollector:
    """The files so far, and how each came to be."""

    def __init__(self, planner: PlannerClient, scope: EvidenceScope, clock: Clock) -> None:
        self._planner = planner
        self._query = codec.to_builtins(scope)
        self._scope = scope
        self._clock = clock
        self._steps: list[EvidenceStep] = []
        self._outcome, self._detail = evidence.PASSED, ""
        self._files: dict[str, bytes] = {}

    def collect_files(self) -> dict[str, bytes]:
        """Return every file of the folder; a contradiction is evidence too, and is written down.

        The live rows decide about the position: what they hold is compared with a replay up to it.
        """
        value = codec.convert_value(
            dict(self._planner.get("/api/replay/live", **self._query)), ExportedRows
        )
        if value.version == 0:
            raise CliError(
                f"Execution {value.execution_id} has no live rows yet.",
                way_out="Ask again once a projector has seen it: noetl status",
            )
        with self._record_step("events"):
            events = self._fetch_events(value.version)
            self._add_file("events", evidence.encode_event_lines(events))
        with self._record_step("replay"):
            replayed = folded_answer.fetch_folded(
                self._planner,
                "/api/replay/state",
                show_progress=folded_answer.ignore_progress,
                **self._query,
                as_of_position=value.version,
            )
            self._add_file("replay", codec.encode_json(dict(replayed)))
        with self._record_step("live_rows"):
            self._add_file("live_rows", codec.encode_json(value))
        with self._record_step("checksums"):
            sums = evidence.build_surface_checksums(value, replayed)
            self._add_file("checksums", codec.encode_json(sums))
            if not sums.is_equal:
                self._fail_step("the live rows are not what the history folds to")
        with self._record_step("payloads"):
            report = evidence.build_payload_report(self._fetch_payload_checks(value.version))
            self._add_file("payloads", codec.encode_json(report))
            if not report.summary.all_resolved:
                self._fail_step(f"{report.summary.unresolved} payloads are missing or damaged")
        with self._record_step("artifact_index"):
            last = events[-1]
        return self._pack_files(
            HistoryHead(
                execution_id=ExecutionId(value.execution_id),
                version=value.version,
                checksum=last.envelope_checksum,
            )
        )

    def _pack_files(self, head: HistoryHead) -> dict[str, bytes]:
        manifest = evidence.build_manifest(
            scope=self._scope,
            head=head,
            producer=PRODUCER,
            created_at=self._clock.now(),
            steps=self._steps,
        )
        self._add_file("manifest", codec.encode_json(manifest))
        return {
            **self._files,
            evidence.INDEX: codec.encode_json(evidence.build_artifact_index(self._files)),
        }

    def _fetch_events(self, until: int) -> list[StoredEvent]:
        stored_events: list[StoredEvent] = []
        for page in self._fetch_pages("/api/replay/events", until):
            stored_events += [codec.convert_value(event, StoredEvent) for event in page["events"]]
        if not stored_events:
            raise CliError("The ledger has no event of this execution.")
        return stored_events

    def _fetch_payload_checks(self, until: int) -> list[PayloadCheck]:
        payload_checks: dict[str, PayloadCheck] = {}
        for page in self._fetch_pages("/api/replay/payloads", until):
            for payload in page["payloads"]:
                payload_checks[payload["sha256"]] = codec.convert_value(payload, PayloadCheck)
        return list(payload_checks.values())

    def _fetch_pages(self, path: str, until: int) -> Iterator[Any]:
        after = 0
        while after < until:
            limit = min(PAGE_EVENTS, until - after)
            page = self._planner.get(path, **self._query, after=after, limit=limit)
            yield page
            if page["next_after"] <= after:
                return
            after = page["next_after"]

    def _add_file(self, role: str, data: bytes) -> None:
        self._files[FILE_BY_ROLE[role]] = data

    def _fail_step(self, detail: str) -> None:
        self._outcome, self._detail = evidence.FAILED, detail

    @contextmanager
    def _record_step(self, name: str) -> Iterator[None]:
        started_at = self._clock.now()
        self._outcome, self._detail = evidence.PASSED, ""
        yield
        self._steps.append(
            EvidenceStep(
                name=name,
                started_at=started_at,
                ended_at=max(self._clock.now(), started_at),
                outcome=self._outcome,
                detail=self._detail,
            )
        )
