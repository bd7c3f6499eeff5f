"""Reads the witnesses, runs the checks, and says which passed."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noetl_pft.verify import cross_checks, event_checks, request_checks, table_checks
from noetl_pft.verify.checks import Check, RunTerms
from noetl_pft.verify.event_log import EventLog, read_events
from noetl_pft.verify.expected_run import ExpectedRun, build_expected_run
from noetl_pft.verify.request_summary import RequestSummary, read_request_ledger
from noetl_pft.verify.target_tables import TargetTables, read_target_tables
from noetl_pft.workload.model import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """All checks of one run, and what they were about."""

    terms: RunTerms
    expected: ExpectedRun
    requests: RequestSummary
    frames: int
    events: int
    checks: list[Check]

    @property
    def has_passed(self) -> bool:
        """Whether every check passed."""
        return bool(self.checks) and all(check.has_passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        seconds = self.requests.last_time - self.requests.first_time
        return {
            "passed": self.has_passed,
            "variant": self.terms.variant,
            "facilities": self.terms.facilities,
            "patients": self.terms.patients,
            "execution": self.terms.execution,
            "nonce": self.terms.nonce,
            "fault_free": self.terms.is_fault_free,
            "expected_units": len(self.expected.names),
            "requests": self.requests.requests,
            "request_seconds": round(seconds, 3),
            "outcomes": dict(Counter(self.requests.outcomes)),
            "frames": self.frames,
            "events": self.events,
            "digest": self.expected.digest,
            "checks": [check.as_json() for check in self.checks],
        }


async def judge_run(terms: RunTerms, *, dsn: str, event_dsn: str, ledger: Path) -> RunVerdict:
    """Read all witnesses and run the checks of this variant."""
    requests = read_request_ledger(ledger)
    events = EventLog([], {}) if terms.is_floor else await read_events(event_dsn, terms.execution)
    target = await read_target_tables(dsn, is_floor=terms.is_floor)
    scale = Scale(terms.facilities, terms.patients)
    expected = build_expected_run(scale, with_details=terms.fans_out)
    checks = _run_floor_checks(terms, target, requests, expected)
    if not terms.is_floor:
        checks = _run_all_checks(terms, target, requests, events, expected)
    return RunVerdict(
        terms=terms,
        expected=expected,
        requests=requests,
        frames=sum(frame.has_rows for frame in events.frames.values()),
        events=len(events.events),
        checks=checks,
    )


def _run_floor_checks(
    terms: RunTerms, target: TargetTables, requests: RequestSummary, expected: ExpectedRun
) -> list[Check]:
    checks = [
        table_checks.check_saved_pages(target, expected),
        table_checks.check_page_payloads(target, expected),
        table_checks.check_last_pages(target, expected),
    ]
    if terms.fans_out:
        checks.append(table_checks.check_demographics(target, expected))
        checks.append(table_checks.check_details(target, expected))
    return [
        *checks,
        table_checks.check_set_digest(target, expected),
        request_checks.check_complete_units(requests, expected),
        request_checks.check_foreign_requests(requests, expected),
        request_checks.check_asked_once(requests, expected),
        request_checks.check_repeated_requests(requests, terms, {}),
        request_checks.check_ledger_whole(requests),
    ]


def _run_all_checks(
    terms: RunTerms,
    target: TargetTables,
    requests: RequestSummary,
    events: EventLog,
    expected: ExpectedRun,
) -> list[Check]:
    frame_of_unit = target.map_frames_by_unit()
    by_root = events.count_repeats_by_root()
    repeats = {unit: by_root.get(events.get_root_frame(f), 0) for unit, f in frame_of_unit.items()}
    checks = [
        table_checks.check_saved_pages(target, expected),
        table_checks.check_page_payloads(target, expected),
        table_checks.check_last_pages(target, expected),
        table_checks.check_queue_rows(target, expected, terms),
        table_checks.check_provenance(target, terms),
        table_checks.check_save_counts(target, terms, repeats),
        table_checks.check_set_digest(target, expected),
        request_checks.check_complete_units(requests, expected),
        request_checks.check_foreign_requests(requests, expected),
        request_checks.check_repeated_requests(requests, terms, repeats),
        request_checks.check_request_marks(requests, terms, events),
        request_checks.check_idempotency_keys(requests),
        request_checks.check_ledger_whole(requests),
        event_checks.check_event_stream(events),
        event_checks.check_step_entries(events, terms),
        event_checks.check_stages(events, terms),
        event_checks.check_frames(events, terms),
        event_checks.check_committed_rows(events, expected, terms),
        event_checks.check_event_cost(events, expected, terms),
        cross_checks.check_stamped_rows(target, events),
        cross_checks.check_frames_asked(requests, events, frame_of_unit),
    ]
    if terms.fans_out:
        checks.append(table_checks.check_demographics(target, expected))
        checks.append(table_checks.check_mds_work(target, expected))
        checks.append(table_checks.check_details(target, expected))
    if terms.variant == "c":
        checks.append(cross_checks.check_successors(target, expected))
    else:
        checks.append(table_checks.check_playbook_records(target, expected, terms))
    if terms.is_fault_free:
        checks.append(request_checks.check_asked_once(requests, expected))
        checks.append(request_checks.check_request_count(requests, expected, terms))
    return sorted(checks, key=lambda check: ("DLEX".index(check.name[0]), int(check.name[1:])))
