"""Checks of rows that pass by in batches, against a plain count of the same rows."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl_playbook.model.expectations import ExpectationInvalid, parse_expectations
from noetl_worker.datasets import column_types
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.domain.check_reports import CheckFindings, CheckReport, describe_failure
from noetl_worker.tools.tables.row_checks import CheckScope, open_checks

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("code", pa.string())])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(0, 5),
            "amount": st.none() | st.integers(-2, 2),
            "code": st.none() | st.sampled_from(["a", "b", "b\n", "", "'"]),
        }
    ),
    max_size=12,
)


def check_rows(
    expect: dict[str, Any],
    rows: Iterable[dict[str, Any]],
    *,
    size: int = 3,
    schema: pa.Schema = SCHEMA,
    keys: dict[str, list[Any]] | None = None,
) -> tuple[list[dict[str, Any]], CheckFindings]:
    """Pass rows through the checks, so many at a time; return those that stay."""

    def read_keys(name: str, column: str) -> list[pa.RecordBatch] | None:
        if keys is None or name not in keys:
            return None
        return [pa.RecordBatch.from_pydict({column: keys[name]})]

    scope = CheckScope(dataset="output", now=NOW, read_keys=read_keys)
    whole = pa.Table.from_pylist(list(rows), schema=schema)
    left: list[dict[str, Any]] = []
    with open_checks(parse_expectations(expect), scope) as checks:
        checks.check_columns(schema)
        for batch in whole.to_batches(max_chunksize=size):
            left += checks.filter_batch(batch).to_pylist()
        return left, checks.finish()


@settings(max_examples=30)
@given(rows=ROWS, size=st.integers(1, 5))
def test_every_check_counts_what_a_plain_loop_counts(rows: list[dict[str, Any]], size: int) -> None:
    expect = {
        "not_null": ["id"],
        "unique": [["id", "amount"]],
        "range": {"amount": {"min": -1, "max": 1}},
        "regex": {"code": "[ab]?"},
        "in": {"code": ["a", "'"]},
        "predicate": "amount > 0 OR id = 1 -- as agreed",
        "row_count": {"max": 6},
        "foreign_key": {"column": "id", "of": "known", "key": "k"},
        "on_fail": "warn",
    }
    left, findings = check_rows(expect, rows, size=size, keys={"known": [1, 2, 2]})
    pairs = Counter(
        (row["id"], row["amount"])
        for row in rows
        if row["id"] is not None and row["amount"] is not None
    )
    failed = {
        "not_null id": sum(row["id"] is None for row in rows),
        "unique id, amount": sum(count - 1 for count in pairs.values()),
        "range amount": sum(row["amount"] in {-2, 2} for row in rows),
        "regex code": sum(row["code"] in {"b\n", "'"} for row in rows),
        "in code": sum(row["code"] in {"b", "b\n", ""} for row in rows),
        "predicate amount > 0 OR id = 1 -- as agreed": sum(
            not ((row["amount"] or 0) > 0 or row["id"] == 1) for row in rows
        ),
        "foreign_key id": sum(row["id"] not in {None, 1, 2} for row in rows),
    }
    assert left == rows
    reports = {report.check: report for report in findings.reports}
    assert {name: reports[name].failed_rows for name in failed} == failed
    assert all(reports[name].is_met == (count == 0) for name, count in failed.items())
    assert (reports["row_count"].measured, reports["row_count"].is_met) == (
        len(rows),
        len(rows) <= 6,
    )


@settings(max_examples=30)
@given(rows=ROWS, size=st.integers(1, 5))
def test_diverted_rows_are_those_that_break_a_check(rows: list[dict[str, Any]], size: int) -> None:
    expect = {"not_null": ["id"], "range": {"amount": {"min": 0}}, "on_fail": "divert"}
    left, findings = check_rows(expect, rows, size=size)

    def is_right(row: dict[str, Any]) -> bool:
        return row["id"] is not None and (row["amount"] is None or row["amount"] >= 0)

    assert left == [row for row in rows if is_right(row)]
    assert findings.diverted == [row for row in rows if not is_right(row)]


def test_a_broken_check_names_its_rows() -> None:
    rows = [{"id": number, "amount": number - 7} for number in range(10)]
    with pytest.raises(DatasetProblem) as refused:
        check_rows({"range": {"amount": {"min": 0}}}, rows)
    assert refused.value.kind == "assertion"
    assert refused.value.message.startswith(
        "range amount does not hold in 7 of 10 rows, as {'id': 0, 'amount': -7, 'code': None}"
    )
    with pytest.raises(DatasetProblem, match=r"unique id .* 1 of 2 rows, as .*'id': 4"):
        check_rows({"unique": "id"}, [{"id": 4}, {"id": 4}])


def test_what_is_no_check_of_single_rows_fails_where_rows_are_diverted() -> None:
    expect = {"unique": "id", "not_null": "amount", "on_fail": "divert"}
    with pytest.raises(DatasetProblem, match="unique id does not hold"):
        check_rows(expect, [{"id": 1, "amount": None}, {"id": 1, "amount": 1}])


def test_only_the_first_diverted_rows_are_shown_and_all_are_left_out() -> None:
    expect = {"not_null": "id", "on_fail": "divert"}
    left, findings = check_rows(expect, [{"id": None}] * 250 + [{"id": 1}], size=40)
    assert (len(left), len(findings.diverted), findings.reports[0].failed_rows) == (1, 100, 250)


def test_an_error_shows_no_part_of_a_value() -> None:
    schema = pa.schema([("id", pa.int64()), ("code", pa.string()), ("token", pa.string())])
    row = {"id": None, "code": "x" * 560, "token": "s3cret-s3cret-s3cret"}
    with pytest.raises(DatasetProblem) as refused:
        check_rows({"not_null": "id"}, [row], schema=schema)
    assert refused.value.message.endswith(f"'code': '{'x' * 560}', …")
    long_row = {"token" * 200: "s3cret"}
    assert "too long to be shown" in describe_failure(
        CheckReport(dataset="a", check="b", is_met=False, failed_rows=1), 1, [long_row]
    )


def test_of_long_rows_fewer_are_shown() -> None:
    rows = [{"id": None, "code": "x" * 300_000} for _ in range(10)]
    left, findings = check_rows({"not_null": "id", "on_fail": "divert"}, rows)
    assert (left, len(findings.diverted), findings.reports[0].failed_rows) == ([], 3, 10)
    with pytest.raises(DatasetProblem) as refused:
        check_rows({"not_null": "id"}, rows)
    assert refused.value.message == "not_null id does not hold in 10 of 10 rows"


@pytest.mark.parametrize(
    ("kind", "values", "newest"),
    [
        (
            pa.timestamp("us", "UTC"),
            [datetime(2026, 1, 1, 23, 30, tzinfo=UTC), None],
            "2026-01-01T23:30",
        ),
        (pa.timestamp("ns"), [datetime(2026, 1, 1, 20, tzinfo=UTC)], "2026-01-01T20"),
        (pa.date32(), [date(2026, 1, 2)], "2026-01-02T00"),
        (pa.string(), ["2026-01-01 23:30:00", "2025-01-01"], "2026-01-01T23:30"),
        (pa.timestamp("s"), [None], None),
        (pa.timestamp("s"), [], None),
    ],
)
def test_the_newest_moment_counts_in_every_type(
    kind: pa.DataType, values: list[Any], newest: str | None
) -> None:
    expect = {"freshness": {"column": "at", "within": "1h"}, "on_fail": "warn"}
    rows = [{"at": value} for value in values]
    _, findings = check_rows(expect, rows, size=1, schema=pa.schema([("at", kind)]))
    (report,) = findings.reports
    assert str(report.measured).startswith(str(newest))
    assert report.is_met == (newest is not None and newest >= "2026-01-01T23")


@pytest.mark.parametrize(
    ("expect", "told"),
    [
        ({"not_null": "nope"}, "names 'nope', which is no column: it has id, amount, code"),
        ({"predicate": "(SELECT true)"}, "it holds a subquery"),
        ({"predicate": "count(*) > 0"}, "it holds an aggregate"),
        ({"predicate": "id > 0; DROP TABLE k0"}, "it must be one condition"),
        ({"predicate": "id > 0) OR (true"}, "cannot be parsed"),
        ({"predicate": "nope > 0"}, "nope"),
        ({"predicate": "getenv('HOME') = ''"}, "getenv"),
        ({"predicate": "entropy(id) >= 0"}, "aggregates"),
        ({"predicate": "unnest([true])"}, "UNNEST"),
        ({"predicate": "id"}, "is BIGINT, and no condition"),
        ({"predicate": "random() > 0.5"}, "differs from call to call"),
        ({"predicate": "sleep_ms(1) IS NULL"}, "differs from call to call"),
        ({"predicate": "NOT " * 5000 + "true"}, "nested too deeply"),
        ({"range": {"code": {"min": 1}}}, "compares 'code', which is text, with 1, which is none"),
        ({"range": {"code": {"min": "a", "max": 2.5}}}, "with 2.5, which is none"),
        ({"in": {"code": ["01", 1]}}, "give the column a type in the source's schema"),
        ({"regex": {"code": "("}}, "missing"),
        ({"regex": {"code": "\0"}}, "cannot hold NUL"),
        ({"foreign_key": {"column": "id", "of": "p", "key": "k"}}, "which is no input of the task"),
    ],
)
def test_what_cannot_be_checked_is_refused(expect: dict[str, Any], told: str) -> None:
    with pytest.raises(DatasetProblem) as refused:
        check_rows(expect, [{"id": 1, "code": "x"}])
    assert refused.value.kind == "validation"
    assert told in refused.value.message


def test_a_dataset_without_rows_is_checked() -> None:
    expect = {"unique": "id", "not_null": "id", "row_count": {"min": 1}}
    with pytest.raises(DatasetProblem, match="row_count does not hold: it is 0"):
        check_rows(expect, [])
    with pytest.raises(DatasetProblem, match="is no column"):
        check_rows({"unique": "nope"}, [])


def test_a_predicate_is_read_before_there_are_rows() -> None:
    with pytest.raises(DatasetProblem, match="nope"):
        check_rows({"predicate": "nope > 0"}, [])


def test_columns_that_differ_in_case_alone_are_not_checked_for_one_another() -> None:
    schema = pa.schema([("ID", pa.int64()), ("id", pa.int64())])
    with pytest.raises(DatasetProblem, match="cannot tell the columns 'ID' and 'id' apart"):
        check_rows({"not_null": "id"}, [{"ID": 1, "id": None}], schema=schema)
    twice = pa.schema([("id", pa.int64()), ("id", pa.int64())])
    with pytest.raises(DatasetProblem, match="cannot tell the columns 'id' and 'id' apart"):
        check_rows({"not_null": "id"}, [], schema=twice)


@pytest.mark.parametrize("newest", ["20000-01-01", "infinity", "0100-01-01 (BC)"])
def test_a_moment_that_no_calendar_has_is_refused(newest: str) -> None:
    schema = pa.schema([("at", pa.string())])
    expect = {"freshness": {"column": "at", "within": "1h"}, "on_fail": "warn"}
    with pytest.raises(DatasetProblem, match="'at' is not of the years 1 to 9999"):
        check_rows(expect, [{"at": newest}], schema=schema)


@pytest.mark.parametrize("kind", ["range", "in"])
def test_a_moment_with_an_offset_is_not_compared_with_one_without_a_zone(kind: str) -> None:
    moment = "2026-01-01T10:00:00+02:00"
    expect = {kind: {"at": {"max": moment} if kind == "range" else [moment]}}
    rows = [{"at": datetime(2026, 1, 1, 8, tzinfo=UTC)}]
    zoned = pa.schema([("at", pa.timestamp("us", "UTC"))])
    assert check_rows(expect, rows, schema=zoned)[1].reports[0].is_met
    bare = pa.schema([("at", pa.timestamp("us"))])
    with pytest.raises(DatasetProblem, match="write the moment without an offset"):
        check_rows(expect, [{"at": datetime(2026, 1, 1, 9)}], schema=bare)  # noqa: DTZ001 - the column has no zone


def test_null_is_no_pattern() -> None:
    with pytest.raises(ExpectationInvalid, match="regex of 'code' is a pattern"):
        parse_expectations({"regex": {"code": None}})


SAME_COLUMNS = "code STRING, id BIGINT, amount BIGINT"


@pytest.mark.parametrize(
    ("types", "drift", "told"),
    [
        ("id BIGINT, amount BIGINT", "fail", "column 'code' is new, and STRING"),
        (f"{SAME_COLUMNS}, at DATE", "evolve", "column 'at' is missing"),
        (
            "id INT, amount DECIMAL(10,2), code STRING",
            "evolve",
            "column 'id' is BIGINT, not INT, column 'amount' is BIGINT, not DECIMAL(10,2)",
        ),
    ],
)
@pytest.mark.parametrize("on_fail", ["fail", "warn", "divert"])
def test_other_columns_end_the_task_before_its_rows(
    types: str, drift: str, told: str, on_fail: str
) -> None:
    expect = {"schema": {"columns": types, "drift": drift}, "on_fail": on_fail}
    with pytest.raises(DatasetProblem) as failed:
        check_rows(expect, [])
    assert failed.value.message == f"expect.schema does not hold: {told}"
    assert [(report.check, report.measured) for report in failed.value.checks] == [("schema", told)]


def test_other_columns_are_told_where_they_may_be() -> None:
    rows = [{"id": 1, "amount": -5, "code": "a"}]
    expect = {
        "schema": {"columns": "id BIGINT", "drift": "warn"},
        "range": {"amount": {"min": 0}},
        "on_fail": "divert",
    }
    left, findings = check_rows(expect, rows)
    assert left == [], "the row breaks a check of rows"
    assert [report.is_met for report in findings.reports] == [False, False]
    assert "column 'amount' is new, and BIGINT" in findings.reports[0].measured
    grown = {"schema": {"columns": "id BIGINT", "drift": "evolve"}}
    assert [report.is_met for report in check_rows(grown, rows)[1].reports] == [True]


def test_types_that_hold_the_same_values_are_one() -> None:
    schema = pa.schema(
        [
            ("name", pa.dictionary(pa.int32(), pa.large_string())),
            ("at", pa.timestamp("ns", "Europe/Paris")),
            ("seen", pa.timestamp("s")),
            ("price", pa.decimal256(10, 2)),
            ("tags", pa.large_list(pa.string_view())),
            ("place", pa.struct([("x", pa.float64()), ("name", pa.large_string())])),
            ("data", pa.large_binary()),
        ]
    )
    types = (
        "name STRING, at TIMESTAMP, seen TIMESTAMP_NTZ, price DECIMAL(10,2), tags ARRAY<STRING>, "
        "place STRUCT<x: DOUBLE, name: STRING>, data BINARY"
    )
    assert column_types.describe_drift(types, schema, may_grow=False) == ""
    bare = types.replace("TIMESTAMP,", "TIMESTAMP_NTZ,", 1).replace("(10,2)", "(12,2)")
    told = column_types.describe_drift(bare, schema, may_grow=False)
    assert told == (
        "column 'at' is TIMESTAMP, not TIMESTAMP_NTZ, "
        "column 'price' is DECIMAL(10,2), not DECIMAL(12,2)"
    )


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("", "schema is 'id BIGINT, day DATE'"),
        ({"drift": "warn"}, "schema is 'id BIGINT, day DATE'"),
        ({"columns": "id BIGINT", "drift": "grow"}, "use fail, warn, evolve"),
        ({"columns": "id BIGINT", "types": "a"}, "schema is 'id BIGINT, day DATE'"),
    ],
)
def test_a_schema_that_cannot_be_expected_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(ExpectationInvalid, match=told):
        parse_expectations({"schema": schema})


@pytest.mark.parametrize(
    "types",
    [
        *("id", "id BIGINT NOT NULL", "id NUMBERS", "id INT, id INT", "id INT, PRIMARY KEY (id)"),
        "id INT) AS SELECT 1 --",
    ],
)
def test_columns_that_are_no_ddl_are_refused(types: str) -> None:
    with pytest.raises(DatasetProblem, match=r"^expect\.schema: "):
        check_rows({"schema": types}, [])
