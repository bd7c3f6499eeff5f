"""Cron expressions at the changes of the clocks, and what is no expression."""

from datetime import UTC, datetime

import pytest

from noetl_contracts.requests import cron
from noetl_contracts.requests.cron import CronRefused

BERLIN = "Europe/Berlin"


def due(expression: str, day: tuple[int, int], count: int, hour: int = 0) -> list[str]:
    start = datetime(2026, *day, hour, tzinfo=UTC)
    times = cron.list_due_times(expression, BERLIN, start, times_max=count)
    return [time.strftime("%d %H:%M") for time in times]


def test_a_time_in_the_spring_gap_is_due_right_after_it() -> None:
    assert due("30 2 * * *", (3, 28), 3) == ["28 01:30", "29 01:00", "30 00:30"]


def test_two_times_in_the_spring_gap_are_due_once() -> None:
    assert due("0,30 2 * * *", (3, 29), 2) == ["29 01:00", "30 00:00"]


def test_a_time_that_comes_twice_in_autumn_is_due_at_the_first() -> None:
    assert due("30 2 * * *", (10, 24), 3, hour=12) == ["25 00:30", "26 01:30", "27 01:30"]


def test_between_both_comings_of_a_time_it_is_not_due_again() -> None:
    start = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)
    (following,) = cron.list_due_times("30 2 * * *", BERLIN, start, times_max=1)
    assert following == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_every_half_hour_goes_by_real_time_through_the_autumn() -> None:
    assert due("*/30 * * * *", (10, 25), 5) == [
        "25 00:30",
        "25 01:00",
        "25 01:30",
        "25 02:00",
        "25 02:30",
    ]


@pytest.mark.parametrize(
    ("expression", "zone", "says"),
    [
        ("* * * *", "UTC", "five fields"),
        ("* * * * * *", "UTC", "five fields"),
        ("61 * * * *", "UTC", "bad minute"),
        ("0 0 30 2 *", "UTC", "bad day"),
        ("0 0 31 4,6 *", "UTC", "bad day"),
        ("* " * 200, "UTC", "five fields"),
        ("* * * * *", "Mars/Olympus", "time zone"),
        ("* * * * *", "../../etc/passwd", "time zone"),
        ("* * * * *", "", "time zone"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str, zone: str, says: str) -> None:
    with pytest.raises(CronRefused, match=says):
        cron.check_cron(expression, zone)
