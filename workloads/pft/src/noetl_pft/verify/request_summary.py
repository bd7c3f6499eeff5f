"""Second witness: the fixture's request ledger."""

import json
import struct
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noetl_pft.verify.checks import WitnessError

_COUNTS = struct.Struct("<QQ")
_BATCHES = "/api/v1/pft/"


@dataclass(slots=True)
class UnitTally:
    """What happened to one unit."""

    requests: int = 0
    complete: int = 0
    excused: int = 0
    key: str | None = None
    has_other_keys: bool = False


@dataclass(slots=True)
class RequestSummary:
    """The ledger of one run, summed up while it is read."""

    units: dict[str, UnitTally] = field(default_factory=lambda: defaultdict(UnitTally))
    batches_of_unit: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    executions: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    units_of_frame: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    key_owners: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shared_keys: list[str] = field(default_factory=list)
    without_units: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    faults_in_numbers: list[str] = field(default_factory=list)
    first_time: float = 0.0
    last_time: float = 0.0


def read_request_ledger(folder: Path) -> RequestSummary:
    """Read every process's file of a ledger."""
    paths = sorted(folder.glob("*.ndjson"))
    if not paths:
        raise WitnessError(f"there is no request ledger of this nonce: {folder}")
    request_summary = RequestSummary()
    for path in paths:
        _read_file(path, request_summary)
    if not request_summary.requests:
        raise WitnessError(f"the request ledger is empty: {folder}")
    return request_summary


def _read_file(path: Path, request_summary: RequestSummary) -> None:
    pending: dict[int, dict[str, Any]] = {}
    numbers: set[int] = set()
    asked_count = ended_count = 0
    with path.open("rb") as file:
        for line in file:
            entry = _parse_line(path, line)
            number = entry["number"]
            if entry["at"] == "asked":
                asked_count += 1
                if number in numbers:
                    request_summary.faults_in_numbers.append(f"{path.name}: number {number} twice")
                numbers.add(number)
                pending[number] = entry
                _note_asked(entry, request_summary)
            else:
                ended_count += 1
                request = pending.pop(number, None)
                if request is None:
                    request_summary.faults_in_numbers.append(
                        f"{path.name}: {number} ended, never asked"
                    )
                    continue
                _note_end(request, entry["outcome"], request_summary)
    for request in pending.values():
        _note_end(request, "aborted", request_summary)
    _check_numbers(path, request_summary, numbers, (asked_count, ended_count))


def _check_numbers(
    path: Path, request_summary: RequestSummary, numbers: set[int], line_counts: tuple[int, int]
) -> None:
    gaps = sorted(set(range(1, max(numbers, default=0) + 1)) - numbers)
    request_summary.faults_in_numbers += [
        f"{path.name}: number {number} is missing" for number in gaps
    ]
    try:
        promised_counts = _COUNTS.unpack(path.with_suffix(".count").read_bytes())
    except (OSError, struct.error) as problem:
        raise WitnessError(f"the counts of {path} are unreadable: {problem}") from problem
    for name, line_count, promised_count in zip(
        ("asked", "ended"), line_counts, promised_counts, strict=True
    ):
        if line_count != promised_count:
            request_summary.faults_in_numbers.append(
                f"{path.name}: {line_count} {name} lines, {promised_count} were written"
            )


def _parse_line(path: Path, line: bytes) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError as problem:
        raise WitnessError(f"{path} has a line that is no record: {problem}") from problem
    if not line.endswith(b"\n"):
        raise WitnessError(f"{path} ends in the middle of a line")
    return entry


def _note_asked(entry: dict[str, Any], request_summary: RequestSummary) -> None:
    request_summary.requests += 1
    request_summary.first_time = request_summary.first_time or entry["time"]
    request_summary.last_time = max(request_summary.last_time, entry["time"])
    headers = entry["headers"]
    request_summary.runs[headers.get("X-PFT-Run", "")] += 1
    request_summary.executions[headers.get("X-PFT-Execution", "")] += 1
    request_summary.attempts[headers.get("X-PFT-Attempt", "")] += 1
    units = [sys.intern(unit) for unit in entry["units"]]
    if not units:
        request_summary.without_units.append(entry["path"])
        return
    frame, key = headers.get("X-PFT-Frame", ""), headers.get("Idempotency-Key", "")
    request_summary.units_of_frame[frame].update(units)
    if _BATCHES in entry["path"]:
        request_summary.batches_of_unit.update(units)
    owner = tuple(units)
    if request_summary.key_owners.setdefault(key, owner) != owner:
        request_summary.shared_keys.append(
            f"{key!r} by {_describe_units(request_summary.key_owners[key])} "
            f"and {_describe_units(owner)}"
        )
    for unit in units:
        tally = request_summary.units[unit]
        tally.requests += 1
        if tally.key is None:
            tally.key = key
        elif tally.key != key:
            tally.has_other_keys = True


def _describe_units(units: tuple[str, ...]) -> str:
    return units[0] if len(units) == 1 else f"{units[0]} to {units[-1]} ({len(units)} units)"


def _note_end(request: dict[str, Any], outcome: str, request_summary: RequestSummary) -> None:
    request_summary.outcomes[outcome] += 1
    if outcome == "refused_input":
        request_summary.refused.append(request["path"])
    for unit in request["units"]:
        tally = request_summary.units[unit]
        if outcome == "complete":
            tally.complete += 1
        elif outcome != "refused_input":
            tally.excused += 1
