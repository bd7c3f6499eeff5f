"""Quiet hours of rules: over midnight, by the day they begin, and when clocks change."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from noetl_contracts.requests import quiet_hours
from noetl_contracts.requests.quiet_hours import BadQuietHours, QuietHours

BERLIN = "Europe/Berlin"
NIGHT = QuietHours(start="22:00", end="07:00", zone=BERLIN)


def is_quiet(quiet: QuietHours, text: str) -> bool:
    """Ask about a local time of the zone of the quiet hours, or of an offset."""
    local = datetime.fromisoformat(text)
    if local.tzinfo is None:
        local = local.replace(tzinfo=ZoneInfo(quiet.zone))
    return quiet_hours.is_quiet(quiet, local.astimezone(UTC))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-06-10T21:59", False),
        ("2026-06-10T22:00", True),
        ("2026-06-11T00:00", True),
        ("2026-06-11T06:59", True),
        ("2026-06-11T07:00", False),
        # 21:30 in London is 22:30 in Berlin.
        ("2026-06-10T21:30+01:00", True),
    ],
)
def test_a_night_spans_midnight_in_its_zone(text: str, *, expected: bool) -> None:
    assert is_quiet(NIGHT, text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Friday's night ends on Saturday; Saturday's own is not quiet.
        ("2026-06-12T23:00", True),
        ("2026-06-13T06:00", True),
        ("2026-06-13T23:00", False),
        ("2026-06-12T06:00", False),
    ],
)
def test_a_day_is_the_one_on_which_the_night_begins(text: str, *, expected: bool) -> None:
    quiet = QuietHours(start="22:00", end="07:00", zone=BERLIN, days=("fri",))
    assert is_quiet(quiet, text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-06-12T23:59", False),
        ("2026-06-13T00:00", True),
        ("2026-06-14T00:00", True),
        ("2026-06-14T23:59", True),
        ("2026-06-15T00:00", False),
    ],
)
def test_whole_days_join(text: str, *, expected: bool) -> None:
    quiet = QuietHours(start="00:00", end="24:00", zone=BERLIN, days=("sat", "sun"))
    assert is_quiet(quiet, text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Autumn, 2026-10-25: 02:00 to 03:00 comes twice; it stays quiet until the second 02:30.
        ("2026-10-25T02:15+02:00", True),
        ("2026-10-25T02:45+02:00", True),
        ("2026-10-25T02:29+01:00", True),
        ("2026-10-25T02:30+01:00", False),
        # Spring, 2026-03-29: there is no 02:30; what would be it is 03:30.
        ("2026-03-29T01:59+01:00", True),
        ("2026-03-29T03:29+02:00", True),
        ("2026-03-29T03:30+02:00", False),
    ],
)
def test_quiet_hours_that_end_while_clocks_change(text: str, *, expected: bool) -> None:
    quiet = QuietHours(start="22:00", end="02:30", zone=BERLIN)
    assert is_quiet(quiet, text) is expected


def test_a_night_in_which_clocks_change_ends_by_the_new_clock() -> None:
    assert is_quiet(NIGHT, "2026-03-29T06:59+02:00")
    assert not is_quiet(NIGHT, "2026-03-29T07:00+02:00")
    assert is_quiet(NIGHT, "2026-10-25T06:59+01:00")
    assert not is_quiet(NIGHT, "2026-10-25T07:00+01:00")


@pytest.mark.parametrize(
    ("quiet", "says"),
    [
        (QuietHours(start="24:00", end="07:00"), "quiet.from"),
        (QuietHours(start="22:00", end="7:00"), "quiet.to"),
        (QuietHours(start="22:60", end="07:00"), "quiet.from"),
        (QuietHours(start="22:00", end="22:00"), "00:00 and 24:00"),
        (QuietHours(start="22:00", end="07:00", days=("friday",)), "quiet.days"),
        (QuietHours(start="22:00", end="07:00", zone="Mars/Base"), "quiet.zone"),
        (QuietHours(start="22:00", end="07:00", zone="../etc/passwd"), "quiet.zone"),
        (QuietHours(start="22:00", end="07:00", zone=""), "quiet.zone"),
    ],
)
def test_what_no_clock_has_is_refused(quiet: QuietHours, says: str) -> None:
    with pytest.raises(BadQuietHours, match=says):
        quiet_hours.check_quiet_hours(quiet)
