"""What `expect` of a dataset has found: workers report it; results, events and the API show it."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

# An event has room for these, and a person reads no more.
REPORTED_CHARACTERS_MAX = 300


class CheckReport(Struct, frozen=True, kw_only=True):
    """What a check has found: how many rows break it, or what it has measured."""

    dataset: str
    check: str
    is_met: bool
    failed_rows: int | None = None
    measured: Any = None


def add_reports(
    earlier: Sequence[CheckReport], later: Sequence[CheckReport]
) -> tuple[CheckReport, ...]:
    """Add what the same checks have found in other rows: of another item, frame or command."""
    if not earlier or not later:
        return tuple(earlier or later)
    total = {(report.dataset, report.check): report for report in earlier}
    for report in later:
        key = (report.dataset, report.check)
        before = total.get(key)
        total[key] = report if before is None else _add_report(before, report)
    return tuple(total.values())


def _add_report(earlier: CheckReport, later: CheckReport) -> CheckReport:
    """Add two reports of one check; of what was measured, one that breaks the check is told."""
    failed_rows = (
        None
        if earlier.failed_rows is None and later.failed_rows is None
        else (earlier.failed_rows or 0) + (later.failed_rows or 0)
    )
    reported = later if earlier.is_met else earlier
    return structs.replace(
        reported, is_met=earlier.is_met and later.is_met, failed_rows=failed_rows
    )
