"""A backfill is cut into ranges that follow each other without a gap, of the type of its bounds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner.backfill_ranges import list_ranges


def bounds(since: str, until: str, every: str | None) -> list[tuple[int | str, int | str]]:
    return [(item.since, item.until) for item in list_ranges(since, until, every)]


def test_days_are_cut_into_days() -> None:
    assert bounds("2024-02-28", "2024-03-02", "1d") == [
        ("2024-02-28", "2024-02-29"),
        ("2024-02-29", "2024-03-01"),
        ("2024-03-01", "2024-03-02"),
    ]


def test_parts_of_a_day_are_bounded_by_moments_and_the_last_one_may_be_shorter() -> None:
    assert bounds("2024-01-01", "2024-01-02", "9h") == [
        ("2024-01-01T00:00:00", "2024-01-01T09:00:00"),
        ("2024-01-01T09:00:00", "2024-01-01T18:00:00"),
        ("2024-01-01T18:00:00", "2024-01-02T00:00:00"),
    ]


def test_moments_keep_their_offset_and_fraction() -> None:
    assert bounds("2024-01-01T00:00:00.5Z", "2024-01-01T02:00:00Z", "1h") == [
        ("2024-01-01T00:00:00.5+00:00", "2024-01-01T01:00:00.5+00:00"),
        ("2024-01-01T01:00:00.5+00:00", "2024-01-01T02:00:00+00:00"),
    ]


def test_numbers_are_cut_by_numbers_and_without_every_it_is_one_range() -> None:
    assert bounds("0", "25", "10") == [(0, 10), (10, 20), (20, 25)]
    assert bounds("-5", "25", None) == [(-5, 25)]


@given(st.integers(-1000, 1000), st.integers(1, 5000), st.integers(1, 900))
def test_ranges_follow_each_other_without_a_gap(since: int, length: int, every: int) -> None:
    found = bounds(str(since), str(since + length), str(every))
    assert found[0][0] == since
    assert found[-1][1] == since + length
    assert all(item[1] == other[0] for item, other in pairwise(found))
    assert all(0 < int(until) - int(first) <= every for first, until in found)


@pytest.mark.parametrize(
    ("since", "until", "every", "says"),
    [
        ("2024-01-02", "2024-01-01", "1d", "is empty"),
        ("2024-01-01", "2024-01-01", None, "is empty"),
        ("a", "b", None, "bound no range"),
        ("1", "2024-01-01", None, "bound no range"),
        ("2024-01-01", "2024-99-01", "1d", "--to: "),
        ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00", "1d", "has an offset"),
        ("2024-01-01", "2024-02-01", "often", "--every 'often' is no length of time"),
        ("2024-01-01", "2024-02-01", "500ms", "in whole seconds"),
        ("0", "9", "1d", "no whole number"),
        ("0", "9", "0", "no whole number"),
        ("0", "20000", "1", "more than 10,000 ranges"),
    ],
)
def test_what_makes_no_ranges_is_refused(
    since: str, until: str, every: str | None, says: str
) -> None:
    with pytest.raises(CliError, match=says) as error_info:
        list_ranges(since, until, every)
    assert error_info.value.exit_code is ExitCode.USAGE
