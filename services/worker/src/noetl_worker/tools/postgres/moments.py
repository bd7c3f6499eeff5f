"""Dates, times and timestamps between PostgreSQL's binary form and JSON, without a limit of years.

PostgreSQL counts days, or microseconds, from 2000-01-01. Its calendar reaches from 4713 BC to the
year 5874897, and it has `infinity`, `-infinity` and `24:00:00`. Python's types hold none of these,
so no value becomes one of Python's.

The JSON form is ISO 8601 for the years 1 to 9999. Outside of them it is PostgreSQL's own text:
`infinity`, `0044-03-15 BC`, `10000-01-01 00:00:00+00`. Every form that is read can be bound again.
"""

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

DAY_US = 86_400_000_000
SECOND_US = 1_000_000
# What `date.toordinal` says of 2000-01-01, and the seconds from 1970-01-01 until then.
_EPOCH_ORDINAL = date(2000, 1, 1).toordinal()
_EPOCH_S = 946_684_800
_ERA_YEARS, _ERA_DAYS = 400, 146_097
_DATE_INFINITIES = {2**31 - 1: "infinity", -(2**31): "-infinity"}
_TIMESTAMP_INFINITIES = {2**63 - 1: "infinity", -(2**63): "-infinity"}
# From 4714-11-24 BC until before the years 5874898 and 294277.
_DAYS_MIN, _DAYS_END = -2_451_545, 2_145_031_949
_US_MIN, _US_END = -211_813_488_000_000_000, 9_223_371_331_200_000_000
_NAIVE_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 - a timestamp without a zone
_UTC_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?"
_ZONE = r"(?P<zone>Z|z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)"
_MOMENT = re.compile(
    rf"(?P<year>\d{{4,7}})-(?P<month>\d\d)-(?P<day>\d\d)(?:[Tt ]{_CLOCK}\s*{_ZONE}?)?"
    r"(?:\s+(?P<era>AD|BC|ad|bc))?"
)
_TIME = re.compile(rf"[Tt]?{_CLOCK}\s*{_ZONE}?")
_INFINITY = re.compile(r"(?P<sign>[+-]?)(?:infinity|inf)", re.IGNORECASE)
_HOURS_MAX, _MINUTES_END, _OFFSET_END_S = 24, 60, 16 * 3600
_FRACTION_DIGITS = 6


def read_date(parts: tuple[int]) -> str:
    """Show days since 2000-01-01."""
    try:
        return date.fromordinal(parts[0] + _EPOCH_ORDINAL).isoformat()
    except (ValueError, OverflowError):
        days = parts[0]
    infinity = _DATE_INFINITIES.get(days)
    return infinity if infinity is not None else "".join(_format_far_date(days))


def read_timestamp(parts: tuple[int]) -> str:
    """Show microseconds since 2000-01-01, without a zone."""
    try:
        return (_NAIVE_EPOCH + timedelta(0, 0, parts[0])).isoformat()
    except OverflowError:
        return _format_far_timestamp(parts[0], "")


def read_timestamptz(parts: tuple[int]) -> str:
    """Show microseconds since 2000-01-01 in UTC."""
    try:
        return (_UTC_EPOCH + timedelta(0, 0, parts[0])).isoformat()
    except OverflowError:
        return _format_far_timestamp(parts[0], "+00")


def read_time(parts: tuple[int]) -> str:
    """Show microseconds since midnight; the day ends at 24:00:00."""
    seconds, fraction = divmod(parts[0], SECOND_US)
    clock_text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{clock_text}.{fraction:06d}" if fraction else clock_text


def read_timetz(parts: tuple[int, int]) -> str:
    """Show microseconds since midnight and the seconds that the zone lies west of UTC."""
    zone = timezone(timedelta(seconds=-parts[1]))
    return read_time((parts[0],)) + time(0, tzinfo=zone).isoformat()[len("00:00:00") :]


def write_date(value: Any) -> tuple[int]:
    """Read a date, or the date of a moment; raises `ValueError`."""
    if isinstance(value, tuple):
        return value
    text = str(value).strip()
    if infinity := _find_infinity(text, _DATE_INFINITIES):
        return (infinity,)
    match = _MOMENT.fullmatch(text)
    if match is None:
        # Python reads more forms of ISO 8601, as 20260102 and 2026-W01-5.
        return (date.fromisoformat(text).toordinal() - _EPOCH_ORDINAL,)
    if match["hour"] is not None:
        _parse_clock_us(match)
    days = _count_days(match)
    if not _DAYS_MIN <= days < _DAYS_END:
        raise ValueError("PostgreSQL has no such date")
    return (days,)


def write_timestamp(value: Any) -> tuple[int]:
    """Read a moment, in UTC where it has a zone; a number is seconds since 1970.

    Raises `ValueError`.
    """
    if isinstance(value, tuple):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        found_us = to_microseconds(value) - _EPOCH_S * SECOND_US
    else:
        text = str(value).strip()
        if infinity := _find_infinity(text, _TIMESTAMP_INFINITIES):
            return (infinity,)
        found_us = _parse_moment_us(text)
    if not _US_MIN <= found_us < _US_END:
        raise ValueError("PostgreSQL has no such timestamp")
    return (found_us,)


def write_time(value: Any) -> tuple[int]:
    """Read a time of day; its zone is left out, as PostgreSQL does. Raises `ValueError`."""
    return value if isinstance(value, tuple) else (_parse_time_parts(value)[0],)


def write_timetz(value: Any) -> tuple[int, int]:
    """Read a time of day with its zone, UTC where it has none; raises `ValueError`."""
    return value if isinstance(value, tuple) else _parse_time_parts(value)


def to_microseconds(seconds: Any) -> int:
    """Turn a number of seconds, or its text, into microseconds, rounded to the nearest.

    Raises `ValueError`.
    """
    if isinstance(seconds, int):
        return seconds * SECOND_US
    exact = Decimal(repr(seconds) if isinstance(seconds, float) else seconds)
    if not exact.is_finite():
        raise ValueError("it is no finite number of seconds")
    return int((exact * SECOND_US).to_integral_value(ROUND_HALF_EVEN))


def _parse_time_parts(value: Any) -> tuple[int, int]:
    text = str(value).strip()
    match = _TIME.fullmatch(text)
    if match is not None:
        return _parse_clock_us(match), -_parse_offset_s(match["zone"])
    # Python reads more forms of ISO 8601, as 030405.
    parsed_time = time.fromisoformat(text)
    offset = parsed_time.utcoffset()
    seconds = parsed_time.hour * 3600 + parsed_time.minute * 60 + parsed_time.second
    west = 0 if offset is None else -int(offset.total_seconds())
    return seconds * SECOND_US + parsed_time.microsecond, west


def _parse_moment_us(text: str) -> int:
    # Python cuts off what stands behind six digits of a second.
    is_usual = text[4:5] == text[7:8] == "-" and text[13:14] == ":" and not text[26:27].isdigit()
    match = None if is_usual else _MOMENT.fullmatch(text)
    if match is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            match = _MOMENT.fullmatch(text)
            if match is None:
                raise
        else:
            delta = moment - (_NAIVE_EPOCH if moment.tzinfo is None else _UTC_EPOCH)
            return delta.days * DAY_US + delta.seconds * SECOND_US + delta.microseconds
    clock_us = 0 if match["hour"] is None else _parse_clock_us(match)
    return _count_days(match) * DAY_US + clock_us - _parse_offset_s(match["zone"]) * SECOND_US


def _count_days(match: re.Match[str]) -> int:
    """Count the days of a date from 2000-01-01; raises `ValueError` for one that is none."""
    year = int(match["year"])
    if year == 0:
        raise ValueError("there is no year 0: the year before 1 is 1 BC")
    if (match["era"] or "").upper() == "BC":
        year = 1 - year
    # The calendar repeats itself every 400 years.
    eras, era_year = divmod(year - 1, _ERA_YEARS)
    ordinal = date(era_year + 1, int(match["month"]), int(match["day"])).toordinal()
    return ordinal + eras * _ERA_DAYS - _EPOCH_ORDINAL


def _parse_clock_us(match: re.Match[str]) -> int:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    fraction_us = _parse_fraction_us(match["fraction"] or "")
    total_us = (hour * 3600 + minute * 60 + second) * SECOND_US + fraction_us
    if hour > _HOURS_MAX or minute >= _MINUTES_END or second >= _MINUTES_END or total_us > DAY_US:
        raise ValueError("there is no such time of day")
    return total_us


def _parse_fraction_us(digits: str) -> int:
    """Round as PostgreSQL does, which keeps six digits."""
    return (
        int(digits.ljust(_FRACTION_DIGITS, "0"))
        if len(digits) <= _FRACTION_DIGITS
        else round(Decimal(f"0.{digits}") * SECOND_US)
    )


def _parse_offset_s(zone: str | None) -> int:
    """Return how many seconds a zone is before UTC."""
    if zone is None or zone in "Zz":
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    total = hours * 3600 + minutes * 60 + seconds
    if minutes >= _MINUTES_END or seconds >= _MINUTES_END or total >= _OFFSET_END_S:
        raise ValueError(f"there is no zone {zone!r}")
    return -total if zone[0] == "-" else total


def _find_infinity(text: str, infinities: dict[int, str]) -> int | None:
    match = _INFINITY.fullmatch(text)
    if match is None:
        return None
    largest, smallest = infinities
    return smallest if match["sign"] == "-" else largest


def _format_far_timestamp(us: int, zone: str) -> str:
    infinity = _TIMESTAMP_INFINITIES.get(us)
    if infinity is not None:
        return infinity
    days, clock_us = divmod(us, DAY_US)
    date_text, era = _format_far_date(days)
    clock = read_time((clock_us,))
    if "." in clock:
        clock = clock.rstrip("0")
    return f"{date_text} {clock}{zone}{era}"


def _format_far_date(days: int) -> tuple[str, str]:
    """Show a date outside of Python's years, and the era that stands behind it."""
    eras, era_day = divmod(days + _EPOCH_ORDINAL - 1, _ERA_DAYS)
    day_in_era = date.fromordinal(era_day + 1)
    year = day_in_era.year + eras * _ERA_YEARS
    shown_year, era = (year, "") if year > 0 else (1 - year, " BC")
    return f"{shown_year:04d}-{day_in_era.month:02d}-{day_in_era.day:02d}", era
