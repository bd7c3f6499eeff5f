"""Holds the rows of a frame to what is expected of them, in one job for all checks of a frame."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from noetl_contracts import codec
from noetl_contracts.commands.data_checks import CheckReport
from noetl_playbook.model.expectations import Check, Expectations
from noetl_storage.arrow import arrow_values
from noetl_storage.arrow.arrow_values import ValueWithoutJson
from noetl_worker.datasets import column_types
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.domain.check_reports import (
    DIVERTED_BYTES,
    DIVERTED_ROWS,
    EXAMPLE_ROWS,
    Measures,
    build_reports,
    build_schema_report,
    describe_drift_failure,
    describe_failure,
    describe_missing_column,
    describe_text_as_number,
    find_refused,
    take_first_rows,
)
from noetl_worker.spark.checks import sql_checks
from noetl_worker.spark.tables import named_tables
from noetl_worker.spark.tables.store_access import SparkRefusal


class CheckedFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that are left, what the checks have found, and the first rows that were left out."""

    frame: Any
    reports: list[CheckReport]
    diverted: list[dict[str, Any]] = []


class CheckScope(msgspec.Struct, frozen=True, kw_only=True):
    """Where checks run: beside the other frames, at the moment of the task.

    Predicates of a task that is not trusted are checked as its SQL is.
    """

    frames: Mapping[str, Any]
    now: datetime
    is_trusted: bool


def check_frame(
    dataset: str, frame: DataFrame, expected: Expectations, scope: CheckScope
) -> CheckedFrame:
    """Check a frame; raises `SparkRefusal` for what breaks what must hold."""
    drift = _check_schema(dataset, frame, expected)
    text_columns = [name for name, type_ in frame.dtypes if type_ == "string"]
    for check in expected.checks:
        if (text := describe_missing_column(check, frame.columns)) is not None:
            raise SparkRefusal("validation", f"{dataset}: {text}")
        if (text := describe_text_as_number(check, text_columns)) is not None:
            raise SparkRefusal("validation", f"{dataset}: {text}")
    conditions = {
        index: _build_condition(frame, check, scope)
        for index, check in enumerate(expected.checks)
        if check.kind in _CONDITIONS
    }
    measures = _measure(frame, expected, conditions, scope)
    measures = msgspec.structs.replace(measures, drift=drift)
    reports = build_reports(dataset, expected.checks, measures)
    place = find_refused(expected, reports, conditions)
    if place is not None:
        condition = conditions.get(place)
        examples = [] if condition is None else _read_rows(frame.where(~condition), EXAMPLE_ROWS)
        text = describe_failure(reports[place], measures.row_count, examples)
        checks = codec.to_builtins(reports)
        raise SparkRefusal("assertion", f"{dataset}: {text}", checks=checks)
    broken_checks = [index for index in conditions if not reports[index].is_met]
    if broken_checks and expected.on_fail == "divert":
        rows_hold = _join_conditions([conditions[index] for index in broken_checks])
        rows = take_first_rows(_read_rows(frame.where(~rows_hold), DIVERTED_ROWS), DIVERTED_BYTES)
        return CheckedFrame(frame=frame.where(rows_hold), reports=reports, diverted=rows)
    return CheckedFrame(frame=frame, reports=reports)


def _check_schema(dataset: str, frame: DataFrame, expected: Expectations) -> str:
    """Return which columns are not those that are expected, where they do not end the task."""
    check = expected.schema
    if check is None:
        return ""
    try:
        drift = column_types.describe_drift(
            check.types,
            named_tables.build_arrow_schema(frame.schema),
            may_grow=check.drift == "evolve",
        )
    except DatasetProblem as problem:
        raise SparkRefusal(problem.kind, f"{dataset}: {problem.message}") from problem
    if (text := describe_drift_failure(check, drift)) is not None:
        checks = codec.to_builtins([build_schema_report(dataset, check, drift)])
        raise SparkRefusal("assertion", f"{dataset}: {text}", checks=checks)
    return drift


def _build_condition(frame: DataFrame, check: Check, scope: CheckScope) -> Any:
    """Return what holds for each row, false where it is not known."""
    column = sql.col(_quote(check.columns[0])) if check.columns else None
    condition = _CONDITIONS[check.kind](frame, column, check, scope)
    return sql.coalesce(condition, sql.lit(False))  # noqa: FBT003 - a value of Spark


def _expect_not_null(_: Any, column: Any, __: Check, ___: Any) -> Any:
    return column.isNotNull()


def _expect_range(_: Any, column: Any, check: Check, __: Any) -> Any:
    bounds = []
    if check.least is not None:
        bounds.append(column >= sql.lit(check.least))
    if check.most is not None:
        bounds.append(column <= sql.lit(check.most))
    return column.isNull() | _join_conditions(bounds)


def _expect_regex(_: Any, column: Any, check: Check, __: Any) -> Any:
    return column.isNull() | column.cast("string").rlike(f"^(?:{check.pattern})$")


def _expect_in(_: Any, column: Any, check: Check, __: Any) -> Any:
    return column.isNull() | column.isin(*check.values)


def _expect_predicate(frame: DataFrame, _: Any, check: Check, scope: CheckScope) -> Any:
    if not scope.is_trusted:
        sql_checks.check_analysed(frame.where(str(check.predicate)))
    return sql.expr(str(check.predicate))


_CONDITIONS: dict[str, Callable[[Any, Any, Check, CheckScope], Any]] = {
    "not_null": _expect_not_null,
    "range": _expect_range,
    "regex": _expect_regex,
    "in": _expect_in,
    "predicate": _expect_predicate,
}


def _measure(
    frame: DataFrame, expected: Expectations, conditions: Mapping[int, Any], scope: CheckScope
) -> Measures:
    """Run one job for all checks of a frame, and one more for each foreign key."""
    aggregates = [sql.count(sql.lit(1)).alias("rows")]
    for index, check in enumerate(expected.checks):
        name = f"c{index}"
        if index in conditions:
            aggregates.append(sql.count_if(~conditions[index]).alias(name))
        elif check.kind == "unique":
            columns = [sql.col(_quote(column)) for column in check.columns]
            has_whole_key = _join_conditions([column.isNotNull() for column in columns])
            key = sql.when(has_whole_key, sql.struct(*columns))
            aggregates.append((sql.count(key) - sql.count_distinct(key)).alias(name))
        elif check.kind == "freshness":
            # Seconds since 1970: a moment would come back in the zone of this machine.
            moment = sql.col(_quote(check.columns[0])).cast("timestamp").cast("double")
            aggregates.append(sql.max(moment).alias(name))
    value_by_name: dict[str, Any] = frame.agg(*aggregates).collect()[0].asDict()
    failed_rows: dict[int, int] = {}
    newest: dict[int, datetime | None] = {}
    for index, check in enumerate(expected.checks):
        value = value_by_name.get(f"c{index}")
        if check.kind == "foreign_key":
            failed_rows[index] = _count_orphans(frame, check, scope)
        elif check.kind == "freshness":
            newest[index] = None if value is None else datetime.fromtimestamp(value, UTC)
        elif value is not None:
            failed_rows[index] = int(value)
    return Measures(
        row_count=value_by_name["rows"], now=scope.now, failed_rows=failed_rows, newest=newest
    )


def _count_orphans(frame: DataFrame, check: Check, scope: CheckScope) -> int:
    other = scope.frames.get(str(check.other))
    if other is None:
        text = f"expect.foreign_key is of '{check.other}', which is no input of the task"
        raise SparkRefusal("validation", text)
    if check.other_key not in other.columns:
        text = f"expect.foreign_key: input '{check.other}' has no column '{check.other_key}'"
        raise SparkRefusal("validation", text)
    own_keys = frame.select(sql.col(_quote(check.columns[0])).alias("k")).where("k IS NOT NULL")
    other_keys = other.select(sql.col(_quote(str(check.other_key))).alias("k"))
    return int(own_keys.join(other_keys, "k", "left_anti").count())


def _read_rows(frame: DataFrame, rows_max: int) -> list[dict[str, Any]]:
    """Return the first rows of a frame as JSON values; raises `SparkRefusal`."""
    table = frame.limit(rows_max).toArrow()
    kinds = [""] * table.num_columns
    try:
        row_lists = [arrow_values.batch_to_rows(batch, kinds) for batch in table.to_batches()]
    except ValueWithoutJson as problem:
        raise SparkRefusal("schema", str(problem)) from problem
    return [row for rows in row_lists for row in rows]


def _join_conditions(conditions: list[Any]) -> Any:
    joined_condition = conditions[0]
    for condition in conditions[1:]:
        joined_condition = joined_condition & condition
    return joined_condition


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
