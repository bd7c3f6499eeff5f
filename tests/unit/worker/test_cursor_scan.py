"""The greatest cursor of rows is found exactly, by rows and by columns alike."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import StateType, StateValue
from noetl_worker.domain.cursor_values import CursorReading, join_readings
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.tables.cursor_scan import CursorScan

TIMESTAMP, DATE = StateType.TIMESTAMP, StateType.DATE
INTEGER, TEXT = StateType.INTEGER, StateType.TEXT


def of_rows(values: list[Any], type_: StateType) -> CursorReading:
    scan = CursorScan("at", type_)
    scan.scan_rows([{"id": 1, "at": value} for value in values])
    return scan.reading


def of_column(column: pa.Array, type_: StateType) -> CursorReading:
    scan = CursorScan("at", type_)
    scan.scan_batch(pa.RecordBatch.from_arrays([column], ["at"]))
    return scan.reading


def value_of(reading: CursorReading) -> Any:
    return None if reading.value is None else reading.value.value


MOMENTS = st.builds(
    lambda moment, form: moment.strftime(form).rjust(len(moment.strftime(form)), "0"),
    st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001 - the form has it
    st.sampled_from(
        [
            "%Y-%m-%dT%H:%M:%S.%fZ",
            "%Y-%m-%dT%H:%M:%S+00:00",
            "%Y-%m-%d %H:%M:%S.%f+05:30",
            "%Y-%m-%d %H:%M:%S-08",
            "%Y-%m-%d",
        ]
    ),
)


@given(st.lists(MOMENTS, min_size=1))
def test_moments_of_several_forms_compare_by_the_instant(texts: list[str]) -> None:
    parsed = [state_values.parse_state_value(text, TIMESTAMP) for text in texts]
    found = of_rows(texts, TIMESTAMP).value
    assert found is not None
    greatest = max(state_values.build_order_key(value) for value in parsed)
    assert state_values.build_order_key(found) == greatest
    by_column = of_column(pa.array(texts), TIMESTAMP).value
    assert by_column is not None
    assert state_values.build_order_key(by_column) == greatest


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([1, 3, None, 2], INTEGER, 3),
        (["-12", "7", "-13"], INTEGER, 7),
        (["-12", "-13"], INTEGER, -12),
        (["2024-01-31", "2024-02-01"], DATE, "2024-02-01"),
        (["a", "B", "é"], TEXT, "é"),
        ([None, None], TIMESTAMP, None),
        ([], TIMESTAMP, None),
    ],
)
def test_rows_have_a_greatest_cursor(values: list[Any], type_: StateType, expected: Any) -> None:
    reading = of_rows(values, type_)
    assert (value_of(reading), reading.rows) == (expected, len(values))


@pytest.mark.parametrize(
    ("column", "type_", "expected"),
    [
        (pa.array([1, None, 3]), INTEGER, 3),
        (pa.array([Decimal(12), Decimal(7)], pa.decimal128(20, 0)), INTEGER, 12),
        (pa.array([date(2024, 2, 1), None]), DATE, "2024-02-01"),
        (pa.array([date(2024, 2, 1)]), TIMESTAMP, "2024-02-01T00:00:00"),
        (
            pa.array([1, 1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")),
            TIMESTAMP,
            "2023-11-14T22:13:20.123456789+00:00",
        ),
        (pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us")), TIMESTAMP,
         "2024-01-01T00:00:00"),
        (pa.array(["b", None, "a"]).dictionary_encode(), TEXT, "b"),
        (pa.array([None, None], pa.timestamp("us")), TIMESTAMP, None),
        (pa.nulls(2), INTEGER, None),
    ],
)  # fmt: skip
def test_columns_have_a_greatest_cursor(column: pa.Array, type_: StateType, expected: Any) -> None:
    assert value_of(of_column(column, type_)) == expected


@pytest.mark.parametrize(
    "values", [["infinity"], [1.5], [True], [{"a": 1}], ["2024-01-01", "2024-99-01"]]
)
def test_a_value_of_another_type_names_the_cursor_and_the_way_out(values: list[Any]) -> None:
    with pytest.raises(ToolFailure, match="is not of type timestamp: write") as error_info:
        of_rows(values, TIMESTAMP)
    assert error_info.value.error.kind == "validation"


@pytest.mark.parametrize("column", [pa.array([1.5]), pa.array([True]), pa.array([[1]])])
def test_a_column_of_another_type_is_refused(column: pa.Array) -> None:
    with pytest.raises(ToolFailure, match="cursor 'at': "):
        of_column(column, INTEGER)


def test_a_cursor_that_no_row_has_is_named_with_the_columns_that_are_there() -> None:
    scan = CursorScan("updated", INTEGER)
    with pytest.raises(ToolFailure, match="'updated' is no column of the rows, which have at, id"):
        scan.scan_rows([{"id": 1, "at": 2}])
    with pytest.raises(ToolFailure, match="which have at"):
        scan.scan_batch(pa.RecordBatch.from_pydict({"at": [1]}))


def test_rows_that_are_no_mappings_are_refused() -> None:
    with pytest.raises(ToolFailure, match="mappings"):
        CursorScan("at", INTEGER).scan_rows([[1, 2]])


def test_readings_add_up() -> None:
    two, five = (StateValue(type=INTEGER, value=number) for number in (2, 5))
    joined = join_readings(CursorReading(value=five, rows=3), CursorReading(value=two, rows=1))
    assert joined == CursorReading(value=five, rows=4)
    assert join_readings(CursorReading(rows=2), joined).value == five
