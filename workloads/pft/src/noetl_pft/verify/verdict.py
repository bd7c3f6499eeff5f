"""Reads the witnesses, runs the checks, and says which passed."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noetl_pft.model import Scale
from noetl_pft.verify import event_checks, request_checks, table_checks, tie_checks
from noetl_pft.verify.events import Events, read_events
from noetl_pft.verify.expected import Expected, expect
from noetl_pft.verify.outcome import Check, Terms
from noetl_pft.verify.requests import Requests, read_requests
from noetl_pft.verify.target import Target, read_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All checks of one run, and what they were about."""

    terms: Terms
    expected: Expected
    requests: Requests
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


async def judge(terms: Terms, *, dsn: str, event_dsn: str, ledger: Path) -> Verdict:
    """Read all witnesses and run the checks of this variant."""
    requests = read_requests(ledger)
    events = Events([], {}) if terms.is_floor else await read_events(event_dsn, terms.execution)
    target = await read_target(dsn, is_floor=terms.is_floor)
    scale = Scale(terms.facilities, terms.patients)
    expected = expect(scale, with_details=terms.fans_out)
    checks = _floor_checks(terms, target, requests, expected)
    if not terms.is_floor:
        checks = _all_checks(terms, target, requests, events, expected)
    return Verdict(
        terms=terms,
        expected=expected,
        requests=requests,
        frames=sum(frame.has_rows for frame in events.frames.values()),
        events=len(events.events),
        checks=checks,
    )


def _floor_checks(
    terms: Terms, target: Target, requests: Requests, expected: Expected
) -> list[Check]:
    checks = [
        table_checks.check_pages(target, expected),
        table_checks.check_payloads(target, expected),
        table_checks.check_last_pages(target, expected),
    ]
    if terms.fans_out:
        checks.append(table_checks.check_people(target, expected))
        checks.append(table_checks.check_details(target, expected))
    return [
        *checks,
        table_checks.check_digest(target, expected),
        request_checks.check_complete(requests, expected),
        request_checks.check_foreign(requests, expected),
        request_checks.check_once(requests, expected),
        request_checks.check_repeats(requests, terms, {}),
        request_checks.check_whole(requests),
    ]


def _all_checks(
    terms: Terms, target: Target, requests: Requests, events: Events, expected: Expected
) -> list[Check]:
    frame_of_unit = target.frame_of_unit()
    by_root = events.repeats_by_root()
    repeats = {unit: by_root.get(events.root(f), 0) for unit, f in frame_of_unit.items()}
    checks = [
        table_checks.check_pages(target, expected),
        table_checks.check_payloads(target, expected),
        table_checks.check_last_pages(target, expected),
        table_checks.check_queue(target, expected, terms),
        table_checks.check_provenance(target, terms),
        table_checks.check_save_counts(target, terms, repeats),
        table_checks.check_digest(target, expected),
        request_checks.check_complete(requests, expected),
        request_checks.check_foreign(requests, expected),
        request_checks.check_repeats(requests, terms, repeats),
        request_checks.check_marks(requests, terms, events),
        request_checks.check_keys(requests),
        request_checks.check_whole(requests),
        event_checks.check_stream(events),
        event_checks.check_entries(events, terms),
        event_checks.check_stages(events, terms),
        event_checks.check_frames(events, terms),
        event_checks.check_rows(events, expected, terms),
        event_checks.check_cost(events, expected, terms),
        tie_checks.check_stamps(target, events),
        tie_checks.check_frames_asked(requests, events, frame_of_unit),
    ]
    if terms.fans_out:
        checks.append(table_checks.check_people(target, expected))
        checks.append(table_checks.check_mds_work(target, expected))
        checks.append(table_checks.check_details(target, expected))
    if terms.variant == "c":
        checks.append(tie_checks.check_successors(target, expected))
    else:
        checks.append(table_checks.check_log(target, expected, terms))
    if terms.is_fault_free:
        checks.append(request_checks.check_once(requests, expected))
        checks.append(request_checks.check_number(requests, expected, terms))
    return sorted(checks, key=lambda check: ("DLEX".index(check.name[0]), int(check.name[1:])))
