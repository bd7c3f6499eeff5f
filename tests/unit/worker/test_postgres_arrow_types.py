"""The Arrow type of a PostgreSQL column, from its type, its modifier and its values."""

from decimal import Decimal

import asyncpg
import pyarrow as pa
import pytest

from noetl_worker.domain.numeric_digits import parse_digits
from noetl_worker.tools.postgres.arrow_types import (
    choose_decimal_type,
    get_arrow_type,
    has_open_digits,
)


def modifier_of(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("bool", pa.bool_()),
        ("int2", pa.int16()),
        ("int4", pa.int32()),
        ("int8", pa.int64()),
        ("float4", pa.float32()),
        ("float8", pa.float64()),
        ("text", pa.string()),
        ("varchar", pa.string()),
        ("timetz", pa.string()),
        ("inet", pa.string()),
        ("date", pa.date32()),
        ("time", pa.time64("us")),
        ("timestamp", pa.timestamp("us")),
        ("timestamptz", pa.timestamp("us", "UTC")),
        ("interval", pa.month_day_nano_interval()),
        ("uuid", pa.uuid()),
        ("json", pa.json_()),
        ("jsonb", pa.json_()),
        ("bytea", pa.binary()),
        ("int4[]", pa.list_(pa.int32())),
        ("mood", pa.string()),
    ],
)
def test_a_type_name_has_one_arrow_type(type_name: str, expected: pa.DataType) -> None:
    assert get_arrow_type(type_name) == expected
    oid = 1
    attribute = asyncpg.Attribute("n", asyncpg.Type(oid, type_name, "scalar", "pg_catalog"))
    assert get_arrow_type(attribute) == expected


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (10, 2, pa.decimal128(10, 2)),
        (38, 0, pa.decimal128(38, 0)),
        (39, 1, pa.decimal256(39, 1)),
        (76, 76, pa.decimal256(76, 76)),
        (77, 1, pa.string()),
        (3, -2, pa.decimal128(5, 0)),
        (2, 5, pa.decimal128(5, 5)),
    ],
)
def test_declared_digits_are_the_decimal_type(
    precision: int, scale: int, expected: pa.DataType
) -> None:
    modifier = modifier_of(precision, scale)
    assert parse_digits(modifier) == (precision, scale)
    assert not has_open_digits("numeric", modifier)
    assert get_arrow_type("numeric", modifier) == expected
    assert get_arrow_type("numeric[]", modifier) == pa.list_(expected)


@pytest.mark.parametrize("modifier", [None, -1])
def test_digits_that_nobody_declared_are_open(modifier: int | None) -> None:
    assert has_open_digits("numeric", modifier)
    assert has_open_digits("numeric[]", modifier)
    assert not has_open_digits("int4", modifier)
    assert get_arrow_type("numeric", modifier) == pa.string()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], pa.decimal128(1, 0)),
        ([None, Decimal(0)], pa.decimal128(1, 0)),
        ([Decimal("1.50"), 12345], pa.decimal128(7, 2)),
        (["1e3", "0.001"], pa.decimal128(7, 3)),
        ([Decimal("0.000")], pa.decimal128(4, 3)),
        ([10**38 - 1], pa.decimal128(38, 0)),
        ([10**38], pa.decimal256(39, 0)),
        # Together they have 77 digits.
        ([10**75, "0.1"], pa.string()),
        ([10**76], pa.string()),
        (["NaN"], pa.string()),
        ([1, "-Infinity"], pa.string()),
    ],
)
def test_open_digits_come_from_the_values(values: list[object], expected: pa.DataType) -> None:
    decimal_type = choose_decimal_type(values)
    assert decimal_type == expected
    if pa.types.is_decimal(decimal_type):
        exact = [None if value is None else Decimal(str(value)) for value in values]
        assert pa.array(exact, decimal_type).to_pylist() == exact
