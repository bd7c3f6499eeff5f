"""Lines of JSON: digits stay, and what is wrong is refused soon."""

import io
import re
from decimal import Decimal
from typing import Any

import pytest

from noetl_worker.datasets import json_rows
from noetl_worker.datasets.problems import DatasetProblem


def read_rows(text: bytes) -> list[dict[str, Any]]:
    tables = json_rows.iterate_tables(io.BytesIO(text), "a.ndjson")
    return [row for table in tables for row in table.to_pylist()]


def test_a_whole_number_that_no_float_holds_stays_exact_beside_a_float() -> None:
    rows = read_rows(b'{"id": 9007199254740993}\n{"id": 1.5}\n')
    assert [row["id"] for row in rows] == [Decimal(9007199254740993), Decimal("1.5")]


@pytest.mark.parametrize("last", [b"", b"\\"])
def test_an_open_text_of_quotes_is_searched_once(last: bytes) -> None:
    text = b'"' + b'\\"' * 50 + last
    # Each quote that begins a search of its own makes the time quadratic.
    assert len(re.findall(json_rows._TEXT, text)) == 1


def test_brackets_of_open_texts_are_no_levels() -> None:
    deep = b"[" * 101 + b"]" * 101
    with pytest.raises(DatasetProblem, match="100 levels"):
        read_rows(b'{"id": ' + deep + b"}\n")
    with pytest.raises(DatasetProblem, match="JSON parse error"):
        read_rows(b'{"id": "' + deep + b"}\n")
