"""CSV as a table: no digit of a number is lost, whichever block it stands in."""

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from noetl_worker.tools.tables import csv_table

MIB = 1024 * 1024


def column_of(*cells: str, bytes_max: int = 256 * MIB, **kinds: pa.DataType) -> Any:
    text = ("v,w\n" + "".join(f"{cell},x\n" for cell in cells)).encode()
    table = csv_table.read_csv(
        lambda: io.BytesIO(text), len(text), bytes_max=bytes_max, kinds=kinds
    )
    return table.column("v")


@pytest.mark.parametrize(
    ("cells", "type_", "values"),
    [
        (["1", "-2"], pa.int64(), [1, -2]),
        (["007", "8"], pa.string(), ["007", "8"]),
        (["1.5", "007"], pa.string(), ["1.5", "007"]),
        (["9223372036854775807", ""], pa.int64(), [2**63 - 1, None]),
        (["9223372036854775808", "1"], pa.decimal128(19, 0), [Decimal(2**63), Decimal(1)]),
        (["1" * 40], pa.string(), ["1" * 40]),
        (["0.30", "1.5"], pa.float64(), [0.3, 1.5]),
        (["1234567890123456.78"], pa.decimal128(18, 2), [Decimal("1234567890123456.78")]),
        (["1e3", "2.5"], pa.float64(), [1000.0, 2.5]),
        (["1e400", "2.5"], pa.string(), ["1e400", "2.5"]),
        (["1", "x"], pa.string(), ["1", "x"]),
        (["", "NA"], pa.null(), [None, None]),
    ],
)
def test_a_column_has_the_type_that_loses_nothing(
    cells: list[str], type_: pa.DataType, values: list[Any]
) -> None:
    found = column_of(*cells)
    assert found.type == type_
    assert found.to_pylist() == values


def test_not_a_number_is_no_absence() -> None:
    assert str(column_of("nan", "1.5", "").to_pylist()) == "[nan, 1.5, None]"


@pytest.mark.parametrize("last", ["x", "007", "9223372036854775808"])
def test_a_later_block_changes_the_whole_column(last: str) -> None:
    cells = [str(number) for number in range(300_000)]
    found = column_of(*cells, last, bytes_max=20 * MIB)
    assert [str(value) for value in found.slice(299_998).to_pylist()] == ["299998", "299999", last]
    assert len({str(chunk.type) for chunk in found.chunks}) == 1


def test_a_named_type_is_the_type() -> None:
    assert column_of("7", v=pa.string()).to_pylist() == ["7"]
    assert column_of("0.1", v=pa.decimal128(10, 2)).to_pylist() == [Decimal("0.10")]
