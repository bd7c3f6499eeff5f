"""Arrow's texts of a column equal those that are written value by value, or there are none."""

import struct
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
from noetl_worker.spark.postgres.table_copy import CopyColumn, format_column
from noetl_worker.spark.tables.arrow_columns import find_column_texts
from noetl_worker.spark.tables.store_access import SparkRefusal

WIDE = pa.decimal128(38, 18)
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
    column_texts = find_column_texts(values)
    assert column_texts is not None
    assert column_texts.to_pylist() == one_by_one(values)


@given(
    digits=st.lists(st.none() | st.integers(-(10**15) + 1, 10**15 - 1), max_size=30),
    scale=st.integers(0, 4),
)
def test_decimals_that_are_exact_as_floats(digits: list[int | None], scale: int) -> None:
    values = [None if digit is None else Decimal(digit).scaleb(-scale) for digit in digits]
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


def formatted(values: pa.Array, type_: str, category: str) -> list[str | None]:
    column = CopyColumn(name="c", type=type_, category=category)
    texts: list[str | None] = format_column(values, column).to_pylist()
    return texts


@given(digits=st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), max_size=20))
def test_decimals_of_any_digits_go_into_numbers(digits: list[int | None]) -> None:
    values = pa.array(
        [None if digit is None else Decimal(f"{digit}e-18") for digit in digits], WIDE
    )
    texts = formatted(values, "numeric", "N")
    assert [None if text is None else Decimal(text) for text in texts] == values.to_pylist()


@given(values=st.lists(st.none() | st.floats(), max_size=20))
def test_floats_go_into_numbers(values: list[float | None]) -> None:
    texts = formatted(pa.array(values, pa.float64()), "double precision", "N")
    for text, value in zip(texts, values, strict=True):
        assert (text is None) == (value is None)
        assert (
            text is None
            or struct.pack(">d", float(text)) == struct.pack(">d", value)
            or (
                value != value and float(text) != float(text)  # noqa: PLR0124 - not a number
            )
        )


@given(values=st.lists(st.none() | st.binary(max_size=9), max_size=20), skipped=st.integers(0, 3))
def test_bytes_go_into_bytea_in_hexadecimal_digits(
    values: list[bytes | None], skipped: int
) -> None:
    array = pa.array(values, pa.binary()).slice(skipped)
    expected = [None if item is None else "\\x" + item.hex() for item in values[skipped:]]
    assert formatted(array, "bytea", "U") == expected


@given(
    values=st.lists(st.none() | st.lists(st.none() | st.text(max_size=5), max_size=4), max_size=9),
    skipped=st.integers(0, 3),
)
def test_lists_of_texts_become_arrays(values: list[list[str | None] | None], skipped: int) -> None:
    array = pa.array(values, pa.list_(pa.string())).slice(skipped)
    expected = [
        None if item is None else text_values.format_array_literal(item)
        for item in values[skipped:]
    ]
    assert formatted(array, "text[]", "A") == expected


def test_lists_of_other_values_become_arrays() -> None:
    for kind, values, type_, expected in (
        (pa.int32(), [1, None], "integer[]", "{1,NULL}"),
        (pa.bool_(), [True, False], "boolean[]", '{"true","false"}'),
        (WIDE, [Decimal("1.5")], "numeric[]", "{1.500000000000000000}"),
        (pa.binary(), [b"\0a"], "bytea[]", '{"\\\\x0061"}'),
        (pa.binary(), [b"\0a"], "text[]", '{"AGE="}'),
        (pa.date32(), [date(2024, 1, 2)], "date[]", '{"2024-01-02"}'),
        (pa.list_(pa.int32()), [[1], [2]], "integer[]", "{{1},{2}}"),
        (pa.struct({"a": pa.int32()}), [{"a": 1}], "jsonb[]", '{"{\\"a\\":1}"}'),
    ):
        array = pa.array([values, [], None], pa.list_(kind))
        assert formatted(array, type_, "A") == [expected, "{}", None], kind


def test_values_of_other_columns_keep_their_forms() -> None:
    assert formatted(pa.array([[1, 2]]), "jsonb", "U") == ["[1,2]"]
    assert formatted(pa.array([1.0, None]), "text", "S") == ["1.0", None]
    assert formatted(pa.array(["AAH/", None]), "bytea", "U") == ["\\x0001ff", None]
    assert formatted(pa.array([b"\x00"]), "text", "S") == ["AA=="]
    late = pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    assert formatted(late, "timestamp with time zone", "D") == ["10000-01-01 00:00:00+00"]


def test_a_text_that_is_no_base64_is_refused_by_its_column() -> None:
    with pytest.raises(SparkRefusal, match="column 'c' of the target is bytea"):
        formatted(pa.array(["a"]), "bytea", "U")
