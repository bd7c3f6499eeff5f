"""Quiet hours: when a rule of notifications holds back what it would send."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from msgspec import Struct

from noetl_contracts.errors import Permanent
from noetl_contracts.requests import cron

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_END = "24:00"
_CLOCK_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")


class BadQuietHours(Permanent):
    """Quiet hours that no clock has."""


class QuietHours(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"start": "from", "end": "to"},
):
    """From `start` to `end`, two times of day in `zone`, on the days on which they begin.

    They span midnight when `end` is not after `start`; `24:00` is an end. No `days` are all.
    """

    start: str
    end: str
    zone: str = "UTC"
    days: tuple[str, ...] = ()


def check_quiet_hours(quiet: QuietHours) -> None:
    """Refuse what no clock or calendar has; raises `BadQuietHours`."""
    for name, text in (("from", quiet.start), ("to", quiet.end)):
        if not _CLOCK_TIME.fullmatch(text) and (name, text) != ("to", _DAY_END):
            raise BadQuietHours(f"quiet.{name}: {text[:32]!r} is no time of day: write 22:00")
    if quiet.start == quiet.end:
        raise BadQuietHours(
            "quiet.from and quiet.to are the same time: for a whole day write 00:00 and 24:00"
        )
    for day in quiet.days:
        if day not in DAYS:
            raise BadQuietHours(f"quiet.days: {day[:32]!r} is none of {', '.join(DAYS)}")
    try:
        cron.load_time_zone(quiet.zone)
    except cron.TimezoneRefused as error:
        raise BadQuietHours(f"quiet.zone: {error}") from error


def is_quiet(quiet: QuietHours, instant: datetime) -> bool:
    """Tell whether quiet hours cover an instant: their start is quiet, their end is not.

    Raises `TimezoneRefused` where the machine lacks the time zone.
    """
    return any(start <= instant < end for start, end in _list_spans(quiet, instant))


def _list_spans(quiet: QuietHours, instant: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Return the spans that began on the local day of an instant and on the one before."""
    zone = cron.load_time_zone(quiet.zone)
    today = instant.astimezone(zone).date()
    for day in (today - timedelta(days=1), today):
        if not quiet.days or DAYS[day.weekday()] in quiet.days:
            is_over_midnight = quiet.end <= quiet.start or quiet.end == _DAY_END
            last = day + timedelta(days=is_over_midnight)
            start, end = _read_clock(quiet.start), _read_clock(quiet.end)
            # Of an end that comes twice, or not at all, the later instant counts: it stays quiet.
            ends = [_find_instant(last, end, zone, fold=fold) for fold in (0, 1)]
            yield _find_instant(day, start, zone, fold=0), max(ends)


def _read_clock(text: str) -> time:
    return time(0) if text == _DAY_END else time.fromisoformat(text)


def _find_instant(day: date, clock: time, zone: ZoneInfo, *, fold: int) -> datetime:
    return datetime.combine(day, clock.replace(fold=fold), zone).astimezone(UTC)
