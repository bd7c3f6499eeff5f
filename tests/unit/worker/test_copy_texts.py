"""Arrow's texts of a column equal those that are written value by value, or there are none."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_contracts.json_values import to_json_value
from noetl_storage.arrow import arrow_values
from noetl_worker.domain import text_values
from noetl_worker.spark.tables.arrow_columns import find_column_texts

MOMENTS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


def one_by_one(values: pa.Array) -> list[str | None]:
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    return [
        None
        if row["value"] is None
        else text_values.format_optional_text(to_json_value(row["value"]))
        for row in arrow_values.batch_to_rows(batch, [""])
    ]


def check(values: pa.Array) -> None:
    found = find_column_texts(values)
    assert found is not None
    assert found.to_pylist() == one_by_one(values)


@given(
    digits=st.lists(st.none() | st.integers(-(10**15) + 1, 10**15 - 1), max_size=30),
    scale=st.integers(0, 4),
)
def test_decimals_that_are_exact_as_floats(digits: list[int | None], scale: int) -> None:
    values = [None if one is None else Decimal(one).scaleb(-scale) for one in digits]
    check(pa.array(values, pa.decimal128(15, scale)))


@given(moments=st.lists(st.none() | MOMENTS, max_size=30), zone=st.sampled_from([None, "UTC"]))
def test_moments_of_years_1_to_9999(moments: list[int | None], zone: str | None) -> None:
    check(pa.array(moments, pa.timestamp("us", zone)))


def test_whole_seconds_have_no_fraction() -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    check(pa.array([start, start + timedelta(microseconds=10)], pa.timestamp("us", "UTC")))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False, None]),
        pa.array(["a", "", None]),
        pa.array([1, -(2**63), None], pa.int64()),
        pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
    ],
    ids=lambda values: str(values.type),
)
def test_what_arrow_writes_as_it_stands(values: pa.Array) -> None:
    check(values)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5]),
        pa.array([b"a"]),
        pa.array([Decimal("1.5")], pa.decimal128(16, 2)),
        pa.array([Decimal("0.00001")], pa.decimal128(10, 5)),
        pa.array([253_402_300_800_000_000], pa.timestamp("us")),
        pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC")),
        pa.array([1], pa.timestamp("ns", "UTC")),
        pa.array([1], pa.timestamp("us", "Europe/Berlin")),
        pa.array([[1]]),
    ],
    ids=lambda values: str(values.type),
)
def test_other_values_are_looked_at_one_by_one(values: Any) -> None:
    assert find_column_texts(values) is None
