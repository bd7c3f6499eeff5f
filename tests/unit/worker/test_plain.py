import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from noetl_contracts.json_values import to_json_result, to_json_value
from noetl_worker.domain.auth import parse_auth
from noetl_worker.domain.failures import ToolFailure


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    lines: tuple[Any, ...]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (1.5, 1.5),
        (True, True),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(minutes=1), 60.0),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.5"), 1.5),
        (Decimal(7), 7),
        (Decimal("0.1"), 0.1),
        (Decimal("1.00000000000000000001"), "1.00000000000000000001"),
        (Decimal("NaN"), "NaN"),
        (b"\x00\x01", "AAE="),
        ((1, {2}), [1, [2]]),
        ({1: {"a": (2,)}}, {"1": {"a": [2]}}),
        (Colour.RED, "red"),
        (iter([1, 2]), [1, 2]),
        ([Order(1, (Decimal("0.5"),))], [{"number": 1, "lines": [0.5]}]),
        (OrderedDict([("b", (1,)), (2, None)]), {"b": [1], "2": None}),
    ],
)
def test_results_become_json(value: Any, expected: Any) -> None:
    assert to_json_value(value) == expected


def test_a_result_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper"):
        to_json_value(endless)


def test_a_result_that_json_cannot_hold_is_refused_by_its_type() -> None:
    with pytest.raises(ValueError, match="of type object"):
        to_json_value({"a": object()})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"rows": [{"x": 1}, {"x": 1j}]},
            r"of type complex cannot .* JSON: return .* \(in result\['rows'\]\[1\]\['x'\]\)",
        ),
        (1j, "lists or mappings that say the same$"),
        ([{"q": {1: "a", "1": "b"}}], r"the keys 1 and '1' .*: give .* \(in result\[0\]\['q'\]\)"),
        (OrderedDict([(None, 1), ("None", 2)]), "the keys None and 'None' of a result"),
    ],
)
def test_a_refused_result_says_where_it_is_and_what_to_do(value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        to_json_result(value)


def test_a_whole_number_that_python_does_not_write_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"more than 4,300 digits: return hex\(number\)"):
        to_json_value([10**5000])


@pytest.mark.parametrize("auth", [None, "", 5, [], {}])
def test_an_auth_that_names_nothing_says_what_to_write(auth: Any) -> None:
    with pytest.raises(ToolFailure, match=r"names no credential: write a name"):
        parse_auth(auth)


def test_whole_numbers_that_json_libraries_cannot_hold_become_text() -> None:
    assert to_json_value([2**63, 2**64, -(2**63) - 1]) == [2**63, str(2**64), str(-(2**63) - 1)]


class Columnar:
    """What tables of one family of libraries look like."""

    columns = ("a",)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [{"a": math.nan}, {"a": NoMoment(2026, 1, 1)}]


class NoMoment(datetime):
    """The moment that is none, as libraries of tables have it."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = datetime.__hash__


def test_tables_become_columns_and_rows() -> None:
    assert to_json_value(Columnar()) == {
        "columns": ["a"],
        "rows": [{"a": "NaN"}, {"a": None}],
        "row_count": 2,
    }


def test_what_is_plain_is_not_copied() -> None:
    rows = [{"n": 1, "x": [1.5, None, "t", {"a": True}]}]
    assert to_json_value(rows) is rows
    mixed = [rows[0], {"n": (1,)}, rows[0]]
    json_value = to_json_value(mixed)
    assert json_value == [rows[0], {"n": [1]}, rows[0]]
    assert json_value[0] is rows[0]
    assert mixed[1] == {"n": (1,)}
    assert to_json_value({"a": 1, 2: iter([{"b": iter([3])}]), "c": 4}) == {
        "a": 1,
        "2": [{"b": [3]}],
        "c": 4,
    }
