"""What the checks of a dataset have found: the same words for every engine that makes them."""

from collections.abc import Container, Sequence
from datetime import datetime
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.commands.data_checks import CheckReport
from noetl_playbook.model.expectations import Check, Expectations

EXAMPLE_ROWS = 5
DIVERTED_ROWS = 100
# A row of CSV may have 16 MB: of long rows fewer are shown.
EXAMPLE_BYTES = 64 * 1024
DIVERTED_BYTES = 1024 * 1024
_EXAMPLE_CHARACTERS = 600
_COLUMNS_SHOWN = 20


class CheckFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What all checks of a dataset have found, and the first rows that were left out."""

    reports: list[CheckReport] = []
    diverted: list[dict[str, Any]] = []

    @property
    def are_all_met(self) -> bool:
        """Tell whether no row breaks a check."""
        return all(report.is_met for report in self.reports)


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine has measured of a dataset.

    `failed_rows` are those that break each check of rows, by its place, and `newest` the latest
    moment of each column whose freshness counts, by the same. `drift` says which columns are not
    those that are expected.
    """

    row_count: int
    now: datetime
    failed_rows: dict[int, int] = {}
    newest: dict[int, datetime | None] = {}
    drift: str = ""


def describe_missing_column(check: Check, columns: Sequence[str]) -> str | None:
    """Say which column of a check is not there; None where all are."""
    missing = [name for name in check.columns if name not in columns]
    if not missing:
        return None
    return (
        f"expect.{check.kind} names '{missing[0]}', which is no column: it has "
        f"{', '.join(columns[:_COLUMNS_SHOWN])}"
    )


def describe_text_as_number(check: Check, text_columns: Container[str]) -> str | None:
    """Say which column of text is compared with numbers; None where none is.

    An engine would read the text as a number: '01' is 1, and '1.5' may become 2.
    """
    if check.kind not in {"in", "range"} or check.columns[0] not in text_columns:
        return None
    bounds = (bound for bound in (check.least, check.most) if bound is not None)
    values = check.values if check.kind == "in" else tuple(bounds)
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return None
    return (
        f"expect.{check.kind} compares '{check.columns[0]}', which is text, with "
        f"{codec.encode_json(numbers[0]).decode()}, which is none: write it in quotes, or give the "
        "column a type in the source's schema"
    )


def build_schema_report(dataset: str, check: Check, drift: str) -> CheckReport:
    """Judge the columns of a dataset: `drift` says what is wrong with them, and may be empty."""
    return CheckReport(dataset=dataset, check=check.label, is_met=not drift, measured=drift or None)


def describe_drift_failure(check: Check, drift: str) -> str | None:
    """Say why other columns end the task; None where they do not."""
    if not drift or check.drift == "warn":
        return None
    return f"expect.schema does not hold: {drift}"


def build_reports(dataset: str, checks: Sequence[Check], measures: Measures) -> list[CheckReport]:
    """Judge what was measured, one report a check, in their order."""
    return [_build_report(dataset, place, check, measures) for place, check in enumerate(checks)]


def find_refused(
    expected: Expectations, reports: Sequence[CheckReport], row_checks: Container[int]
) -> int | None:
    """Return the place of the check that ends the task, None where none does.

    `row_checks` are the places of checks of single rows, whose rows can be diverted.
    """
    # Columns that end the task have ended it before its rows were looked at.
    broken = [
        place
        for place, (check, report) in enumerate(zip(expected.checks, reports, strict=True))
        if not report.is_met and check.kind != "schema"
    ]
    if expected.on_fail == "warn":
        return None
    if expected.on_fail == "divert":
        broken = [place for place in broken if place not in row_checks]
    return broken[0] if broken else None


def take_first_rows(rows: Sequence[dict[str, Any]], bytes_max: int) -> list[dict[str, Any]]:
    """Return the first rows, as many as have room as JSON."""
    shown_rows: list[dict[str, Any]] = []
    for row in rows:
        bytes_max -= len(codec.encode_json(row))
        if bytes_max < 0:
            break
        shown_rows.append(row)
    return shown_rows


def describe_failure(
    report: CheckReport, row_count: int, examples: Sequence[dict[str, Any]] = ()
) -> str:
    """Say how a check is broken, without the name of the dataset."""
    if report.failed_rows is None:
        return f"{report.check} does not hold: it is {report.measured}"
    text = f"{report.check} does not hold in {report.failed_rows} of {row_count} rows"
    if not examples:
        return text
    return f"{text}, as {_join_examples(examples)}"


def _join_examples(examples: Sequence[dict[str, Any]]) -> str:
    """Write examples, and no part of a value: a part of a secret would not be masked later."""
    text = "; ".join(map(str, examples))
    if len(text) <= _EXAMPLE_CHARACTERS:
        return text
    whole_values = text[: _EXAMPLE_CHARACTERS + 1].rpartition(", ")[0]
    return f"{whole_values}, …" if whole_values else "a row too long to be shown"


def _build_report(dataset: str, place: int, check: Check, measures: Measures) -> CheckReport:
    if check.kind == "schema":
        return build_schema_report(dataset, check, measures.drift)
    if check.kind == "row_count":
        rows = measures.row_count
        is_met = (check.least is None or rows >= check.least) and (
            check.most is None or rows <= check.most
        )
        return CheckReport(dataset=dataset, check=check.label, is_met=is_met, measured=rows)
    if check.kind == "freshness":
        newest = measures.newest.get(place)
        age_s = None if newest is None else (measures.now - newest).total_seconds()
        is_met = age_s is not None and age_s <= (check.within_s or 0)
        moment = None if newest is None else newest.isoformat()
        return CheckReport(dataset=dataset, check=check.label, is_met=is_met, measured=moment)
    failed_rows = measures.failed_rows.get(place, 0)
    return CheckReport(
        dataset=dataset, check=check.label, is_met=failed_rows == 0, failed_rows=failed_rows
    )
