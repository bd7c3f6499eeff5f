"""Values of `state` have one spelling each, and compare exactly by their type."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_contracts.commands.state_values import (
    StateType,
    StateValue,
    StateValueError,
    build_order_key,
    guess_state_type,
    is_later,
    is_state_name,
    parse_state_value,
    subtract_lag,
)

TIMESTAMP, DATE = StateType.TIMESTAMP, StateType.DATE
INTEGER, TEXT = StateType.INTEGER, StateType.TEXT


@pytest.mark.parametrize(
    ("written", "type_", "value"),
    [
        ("2024-01-01", TIMESTAMP, "2024-01-01T00:00:00"),
        ("2024-01-01 10:00", TIMESTAMP, "2024-01-01T10:00:00"),
        ("2024-01-01T10:00:00Z", TIMESTAMP, "2024-01-01T10:00:00+00:00"),
        ("2024-01-01 10:00:00.500+02", TIMESTAMP, "2024-01-01T08:00:00.5+00:00"),
        ("2024-01-01T10:00:00.123456789-05:30", TIMESTAMP, "2024-01-01T15:30:00.123456789+00:00"),
        ("2024-02-29", DATE, "2024-02-29"),
        ("007", INTEGER, 7),
        (-(2**63), INTEGER, -(2**63)),
        ("a'b", TEXT, "a'b"),
    ],
)
def test_a_value_has_one_spelling(written: Any, type_: StateType, value: Any) -> None:
    assert parse_state_value(written, type_).value == value
    assert parse_state_value(value, type_).value == value


@pytest.mark.parametrize(
    ("written", "type_"),
    [
        ("2024-02-30", TIMESTAMP),
        ("yesterday", TIMESTAMP),
        ("infinity", TIMESTAMP),
        (20240101, TIMESTAMP),
        ("2024-01-01T10:00:00", DATE),
        ("2023-02-29", DATE),
        (1.0, INTEGER),
        (True, INTEGER),
        ("1e3", INTEGER),
        (2**63, INTEGER),
        (7, TEXT),
        ("a\0b", TEXT),
        ("x" * 1001, TEXT),
        (None, TEXT),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_accepted(
    written: Any, type_: StateType
) -> None:
    with pytest.raises(StateValueError, match=rf"is not of type {type_}: write "):
        parse_state_value(written, type_)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_compare_exactly(one: int, other: int) -> None:
    parsed = [parse_state_value(number, INTEGER) for number in (one, other)]
    assert is_later(*parsed) is (one > other)


@given(st.datetimes(), st.integers(0, 999), st.integers(0, 86_400 * 400))
def test_a_moment_less_a_lag_is_that_much_before(moment: Any, nanoseconds: int, lag: int) -> None:
    text = moment.isoformat("T", "microseconds")
    value = parse_state_value(f"{text}{nanoseconds:03d}", TIMESTAMP)
    try:
        before = subtract_lag(value, lag)
    except StateValueError:
        assert moment.year <= 2
        return
    assert int(build_order_key(value)) - int(build_order_key(before)) == lag * 1_000_000_000
    assert parse_state_value(before.value, TIMESTAMP) == before


def test_moments_compare_by_the_instant_and_to_the_nanosecond() -> None:
    noon = parse_state_value("2024-01-01T12:00:00Z", TIMESTAMP)
    assert not is_later(parse_state_value("2024-01-01T13:00:00+01:00", TIMESTAMP), noon)
    assert is_later(parse_state_value("2024-01-01T12:00:00.000000001Z", TIMESTAMP), noon)


def test_text_compares_by_code_points() -> None:
    small, large = (parse_state_value(text, TEXT) for text in ("a", "B"))
    assert is_later(small, large)


def test_values_of_two_types_do_not_compare() -> None:
    with pytest.raises(StateValueError, match="does not compare with the date"):
        is_later(StateValue(type=TEXT, value="a"), StateValue(type=DATE, value="2024-01-01"))


@pytest.mark.parametrize(
    ("value", "lag", "expected"),
    [
        (StateValue(type=TIMESTAMP, value="2024-01-01T01:00:00"), 7200, "2023-12-31T23:00:00"),
        (StateValue(type=DATE, value="2024-03-01"), 2 * 86_400, "2024-02-28"),
        (StateValue(type=INTEGER, value=5), 10, -5),
        (StateValue(type=TEXT, value="x"), 0, "x"),
    ],
)
def test_a_lag_is_of_the_type_of_its_value(value: StateValue, lag: float, expected: Any) -> None:
    assert subtract_lag(value, lag).value == expected


@pytest.mark.parametrize(
    ("value", "lag", "reason"),
    [
        (StateValue(type=DATE, value="2024-03-01"), 3600, "whole days"),
        (StateValue(type=INTEGER, value=5), 0.5, "a whole number"),
        (StateValue(type=TEXT, value="x"), 1, "text has no lag"),
        (StateValue(type=INTEGER, value=5), -1, "must not be negative"),
        (StateValue(type=INTEGER, value=-(2**63)), 1, "at most 64 bits"),
    ],
)
def test_a_lag_that_does_not_fit_is_refused(value: StateValue, lag: float, reason: str) -> None:
    with pytest.raises(StateValueError, match=reason):
        subtract_lag(value, lag)


@pytest.mark.parametrize(
    ("value", "type_"),
    [(7, INTEGER), ("2024-01-01", TIMESTAMP), ("2024-01-01T00:00:00Z", TIMESTAMP), ("a7", TEXT)],
)
def test_a_type_is_guessed_from_the_value(value: Any, type_: StateType) -> None:
    assert guess_state_type(value) is type_


def test_a_state_is_named_like_a_variable() -> None:
    names = ["orders_2", "2x", "a.b", ""]
    assert [name for name in names if is_state_name(name)] == ["orders_2"]
