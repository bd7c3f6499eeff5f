"""Holds the rows of a dataset to what is expected of them, while they pass by.

A database of DuckDB that no task can reach evaluates the conditions of each batch, and keeps the
values that are compared with those of other rows: where they are many, on disk.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from noetl_chassis.blocking_work import WorkStopped
from noetl_playbook.model.expectations import Check, Expectations
from noetl_playbook.templates.output_forms import sql_ident, sql_literal
from noetl_storage.process.scratch import hold_scratch_folder
from noetl_worker.datasets import column_types
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.domain.check_reports import (
    EXAMPLE_ROWS,
    CheckFindings,
    Measures,
    build_reports,
    build_schema_report,
    describe_drift_failure,
    describe_failure,
    describe_missing_column,
    describe_text_as_number,
    find_refused,
)
from noetl_worker.domain.failures import format_problem
from noetl_worker.sql import queries
from noetl_worker.sql.row_predicates import PredicateRefused, check_predicate
from noetl_worker.tools.tables import duckdb_settings, duckdb_types, shown_rows
from noetl_worker.tools.tables.shown_rows import ShownRows

# The values of a column of another input, by the name of both: None where there is no such input.
KeyReader = Callable[[str, str], Iterable[pa.RecordBatch] | None]
# Holds what ends the checks, for who calls the task off, while a block runs.
StopHolder = Callable[[Callable[[], None]], AbstractContextManager[None]]


def find_no_keys(_input: str, _column: str) -> None:
    """Say that a task has no inputs whose keys could be compared with."""


def hold_no_stop(_stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Hold nothing, where somebody else ends the checks."""
    return nullcontext()


# Parts of statements are quoted names, literals, and predicates that were parsed.
_QUERIES = queries.load_queries(__package__, "row_checks")
_BATCH = "rows_of_batch"
_OFFSET = re.compile(r":\d\d(\.\d+)? ?[+-]\d\d")
_SETTINGS = {
    **duckdb_settings.SETTINGS,
    "memory_limit": "256MB",
    # Conditions are read in the order of the rows.
    "threads": "1",
}


class CheckScope(Struct, frozen=True, kw_only=True):
    """What a dataset is called, the moment of its freshness, other inputs, and who ends checks."""

    dataset: str
    now: datetime
    read_keys: KeyReader = find_no_keys
    hold_stop: StopHolder = hold_no_stop


class RowChecks:
    """The checks of one dataset; every method blocks and raises `DatasetProblem`."""

    def __init__(self, expected: Expectations, scope: CheckScope, folder: str) -> None:
        self._expected = expected
        self._scope = scope
        self._conditions = {
            place: _write_condition(check)
            for place, check in enumerate(expected.checks)
            if check.kind in _CONDITIONS
        }
        self._drift = ""
        self._row_count = 0
        self._failed_rows = dict.fromkeys(self._conditions, 0)
        self._newest: dict[int, datetime | None] = {}
        self._examples: dict[int, ShownRows] = {}
        self._diverted = shown_rows.prepare_diverted()
        self._is_stopped = threading.Event()
        self._connection = duckdb.connect(
            ":memory:", config={**_SETTINGS, "temp_directory": folder}
        )
        duckdb_settings.lock_settings(self._connection)

    def stop(self) -> None:
        """End what runs, from another thread; nothing is begun after it.

        An interrupt between two statements is lost on DuckDB: call it until the work has ended.
        """
        self._is_stopped.set()
        # Who has closed the connection has ended.
        with suppress(duckdb.ConnectionException):
            self._connection.interrupt()

    def close(self) -> None:
        """Forget the values that were kept."""
        self._connection.close()

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise `DatasetProblem` for a check that the columns do not allow."""
        _check_distinct(schema)
        self._check_schema(schema)
        text_columns = column_types.list_text_columns(schema)
        for check in self._expected.checks:
            if (text := describe_missing_column(check, schema.names)) is not None:
                raise DatasetProblem("validation", text)
            if (text := describe_text_as_number(check, text_columns)) is not None:
                raise DatasetProblem("validation", text)
            _check_zones(check, schema)
        with _translate_errors():
            self._bind_conditions(schema)

    def _check_schema(self, schema: pa.Schema) -> None:
        check = self._expected.schema
        if check is None:
            return
        may_grow = check.drift == "evolve"
        self._drift = column_types.describe_drift(check.types, schema, may_grow=may_grow)
        if (text := describe_drift_failure(check, self._drift)) is not None:
            report = build_schema_report(self._scope.dataset, check, self._drift)
            raise DatasetProblem("assertion", text, [report])

    def filter_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Measure some rows, and return those that stay."""
        if not batch.num_rows:
            return batch
        self._check_stop()
        with _translate_errors():
            table = duckdb_types.fit_input(self._scope.dataset, pa.Table.from_batches([batch]))
            self._connection.register(_BATCH, table)
            is_first = not self._row_count
            self._row_count += batch.num_rows
            for place, check in enumerate(self._expected.checks):
                if check.kind in ("unique", "foreign_key"):
                    self._keep_values(place, check, is_first=is_first)
                elif check.kind == "freshness":
                    self._note_newest(place, check)
            return self._apply_conditions(batch)

    def finish(self) -> CheckFindings:
        """Judge all rows; raises `DatasetProblem` for rows that break what must hold."""
        checks = self._expected.checks
        self._check_stop()
        with _translate_errors():
            for place, check in enumerate(checks):
                if check.kind == "unique":
                    self._count_repeated(place, check)
                elif check.kind == "foreign_key":
                    self._count_orphans(place, check)
        measures = Measures(
            row_count=self._row_count,
            now=self._scope.now,
            failed_rows=self._failed_rows,
            newest=self._newest,
            drift=self._drift,
        )
        reports = build_reports(self._scope.dataset, checks, measures)
        refused = find_refused(self._expected, reports, self._conditions)
        if refused is not None:
            examples = self._examples.get(refused)
            rows = [] if examples is None else examples.rows
            text = describe_failure(reports[refused], self._row_count, rows)
            raise DatasetProblem("assertion", text, reports)
        return CheckFindings(reports=reports, diverted=self._diverted.rows)

    def _check_stop(self) -> None:
        if self._is_stopped.is_set():
            raise WorkStopped

    @property
    def _is_diverting(self) -> bool:
        return self._expected.on_fail == "divert"

    def _bind_conditions(self, schema: pa.Schema) -> None:
        """Let DuckDB read each condition before it has rows: there may be none."""
        table = duckdb_types.fit_input(self._scope.dataset, schema.empty_table())
        self._connection.register(_BATCH, table)
        for place, condition in self._conditions.items():
            query = _QUERIES["bind_condition"].format(condition=condition, batch=_BATCH)
            (kind,) = self._connection.sql(query).types
            if str(kind) != "BOOLEAN":
                label = self._expected.checks[place].label
                text = f"expect.{label} is {kind}, and no condition, as amount > 0 would be"
                raise DatasetProblem("validation", text)

    def _apply_conditions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._conditions:
            return batch
        conditions = ", ".join(
            f"{condition} as c{place}" for place, condition in self._conditions.items()
        )
        flags = self._read_table(_QUERIES["judge_rows"].format(conditions=conditions, batch=_BATCH))
        keep = None
        for place in self._conditions:
            is_met = flags.column(f"c{place}").combine_chunks()
            failed = is_met.false_count
            if failed:
                self._failed_rows[place] += failed
                self._add_examples(place, batch, is_met)
            keep = is_met if keep is None else pc.and_(keep, is_met)
        assert keep is not None, "there is a condition"
        if not self._is_diverting or not keep.false_count:
            return batch
        self._diverted.add_rows(batch.filter(pc.invert(keep)))
        return batch.filter(keep)

    def _add_examples(self, place: int, batch: pa.RecordBatch, is_met: pa.BooleanArray) -> None:
        examples = self._examples.setdefault(place, shown_rows.prepare_examples())
        examples.add_rows(batch.filter(pc.invert(is_met)))

    def _keep_values(self, place: int, check: Check, *, is_first: bool) -> None:
        """Keep the values that are compared with those of other rows; null is like none."""
        names = [sql_ident(name) for name in check.columns]
        query = _QUERIES["begin_values" if is_first else "add_values"].format(
            kept=f"k{place}",
            values=", ".join(f"{name} as v{number}" for number, name in enumerate(names)),
            batch=_BATCH,
            is_whole=" and ".join(f"{name} is not null" for name in names),
        )
        self._connection.execute(query)

    def _note_newest(self, place: int, check: Check) -> None:
        column = sql_ident(check.columns[0])
        seconds = self._read_value("find_newest", column=column, batch=_BATCH)
        newest_before = self._newest.get(place)
        newest = None if seconds is None else _read_moment(check.columns[0], seconds)
        moments = [moment for moment in (newest_before, newest) if moment is not None]
        self._newest[place] = max(moments, default=None)

    def _count_repeated(self, place: int, check: Check) -> None:
        if not self._row_count:
            return
        values = ", ".join(f"v{number}" for number in range(len(check.columns)))
        repeated = self._read_value("count_repeated", kept=f"k{place}", values=values)
        self._failed_rows[place] = repeated
        if repeated:
            self._read_examples(place, check, "list_repeated", values=values)

    def _count_orphans(self, place: int, check: Check) -> None:
        batches = self._scope.read_keys(str(check.other), str(check.other_key))
        if batches is None:
            text = f"expect.foreign_key is of '{check.other}', which is no input of the task"
            raise DatasetProblem("validation", text)
        if not self._row_count:
            return
        tables = {"kept": f"k{place}", "others": f"o{place}"}
        name = "begin_others"
        for batch in batches:
            self._check_stop()
            other_values = pa.Table.from_batches([batch.rename_columns(["other"])])
            self._connection.register(_BATCH, other_values)
            self._connection.execute(_QUERIES[name].format(batch=_BATCH, **tables))
            name = "add_others"
        if name == "begin_others":
            self._connection.execute(_QUERIES["begin_no_others"].format(**tables))
        orphans = self._read_value("count_orphans", **tables)
        self._failed_rows[place] = orphans
        if orphans:
            self._read_examples(place, check, "list_orphans", others=f"o{place}")

    def _read_value(self, name: str, **parts: str) -> Any:
        (value,) = self._connection.execute(_QUERIES[name].format(**parts)).fetchall()[0]
        return value

    def _read_table(self, query: str) -> pa.Table:
        table: pa.Table = self._connection.sql(query).to_arrow_table()
        return table

    def _read_examples(self, place: int, check: Check, name: str, **parts: str) -> None:
        columns = ", ".join(
            f"v{number} as {sql_ident(column)}" for number, column in enumerate(check.columns)
        )
        query = _QUERIES[name].format(
            kept=f"k{place}", columns=columns, rows_max=EXAMPLE_ROWS, **parts
        )
        self._examples[place] = examples = shown_rows.prepare_examples()
        for batch in self._read_table(query).to_batches():
            examples.add_rows(batch)


class NoChecks:
    """The checks of a dataset of which nothing is expected."""

    def stop(self) -> None:
        """End nothing."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Allow all columns."""

    def filter_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return all rows."""
        return batch

    def finish(self) -> CheckFindings:
        """Find nothing."""
        return CheckFindings()


Checks = RowChecks | NoChecks


@contextmanager
def open_checks(expected: Expectations | None, scope: CheckScope) -> Iterator[Checks]:
    """Hold the checks of a dataset, and the disk that they may need, while the block runs."""
    if expected is None:
        yield NoChecks()
        return
    with ExitStack() as stack:
        folder = stack.enter_context(hold_scratch_folder("checks"))
        with _translate_errors():
            checks = RowChecks(expected, scope, str(folder))
        stack.callback(checks.close)
        stack.enter_context(scope.hold_stop(checks.stop))
        yield checks


def write_conditions(expected: Expectations) -> str:
    """Write in SQL what all checks of single rows demand; raises `DatasetProblem`."""
    checks = [check for check in expected.checks if check.kind in _CONDITIONS]
    return " AND ".join(map(_write_condition, checks))


def _write_condition(check: Check) -> str:
    """Write what holds for each row, false where it is not known."""
    return f"coalesce(({_CONDITIONS[check.kind](check)}), false)"


def _write_not_null(check: Check) -> str:
    return f"{sql_ident(check.columns[0])} IS NOT NULL"


def _write_range(check: Check) -> str:
    column = sql_ident(check.columns[0])
    bounds = []
    if check.least is not None:
        bounds.append(f"{column} >= {sql_literal(check.least)}")
    if check.most is not None:
        bounds.append(f"{column} <= {sql_literal(check.most)}")
    return f"{column} IS NULL OR ({' AND '.join(bounds)})"


def _write_regex(check: Check) -> str:
    column = sql_ident(check.columns[0])
    pattern = sql_literal(check.pattern)
    return f"{column} IS NULL OR regexp_full_match(CAST({column} AS VARCHAR), {pattern})"


def _write_in(check: Check) -> str:
    column = sql_ident(check.columns[0])
    values = ", ".join(map(sql_literal, check.values))
    return f"{column} IS NULL OR {column} IN ({values})"


def _write_predicate(check: Check) -> str:
    text = str(check.predicate)
    try:
        check_predicate(text, "duckdb")
    except PredicateRefused as problem:
        raise DatasetProblem(
            "validation", f"expect.predicate '{text[:80]}': {problem}"
        ) from problem
    # A comment at its end ends with the line.
    return f"{text}\n"


_CONDITIONS: dict[str, Callable[[Check], str]] = {
    "not_null": _write_not_null,
    "range": _write_range,
    "regex": _write_regex,
    "in": _write_in,
    "predicate": _write_predicate,
}


def _check_distinct(schema: pa.Schema) -> None:
    """Raise `DatasetProblem` for names that are one to DuckDB: it would check either column."""
    names_by_key: dict[bytes, str] = {}
    for name in schema.names:
        # Bytes have lower forms of ASCII alone, as DuckDB compares names.
        key = name.encode().lower()
        if key in names_by_key:
            text = (
                f"expect cannot tell the columns '{names_by_key[key]}' and '{name}' apart, whose "
                "names differ in case at most: rename one"
            )
            raise DatasetProblem("validation", text)
        names_by_key[key] = name


def _check_zones(check: Check, schema: pa.Schema) -> None:
    """Raise `DatasetProblem` for a moment with an offset, which DuckDB drops where none fits."""
    for name in check.columns:
        kind = schema.field(name).type
        for value in (check.least, check.most, *check.values):
            has_offset = isinstance(value, str) and _OFFSET.search(value)
            if has_offset and pa.types.is_timestamp(kind) and kind.tz is None:
                text = (
                    f"expect.{check.kind} compares '{name}', whose moments have no time zone, "
                    f"with '{value}': write the moment without an offset"
                )
                raise DatasetProblem("validation", text)


def _read_moment(column: str, seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as problem:
        text = f"expect.freshness: the newest moment of '{column}' is not of the years 1 to 9999"
        raise DatasetProblem("schema", text) from problem


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn what DuckDB says of a condition into a problem of the dataset."""
    try:
        yield
    except duckdb.OutOfMemoryException as problem:
        text = (
            f"expect: the values to compare exceed the space for them: {format_problem(problem)}: "
            "check fewer columns, or check in a task of kind spark"
        )
        raise DatasetProblem("payload_too_large", text) from problem
    except (duckdb.Error, ValueError) as problem:
        # A ValueError is of a name or a literal that no statement can hold.
        raise DatasetProblem("validation", f"expect: {format_problem(problem)}") from problem
