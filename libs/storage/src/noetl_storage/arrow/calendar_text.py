"""Dates, times of day and moments as text, also where Python's own types end.

A year after 9999 has more digits, and one before the year 1 ends with `BC`, as PostgreSQL writes
both. What databases call infinity is the last number of its type, in Arrow as in DuckDB.
"""

import re
from datetime import UTC, date, datetime, timedelta

DAY_S = 86_400
UNIT_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DATE_INFINITY = 2**31 - 1
MOMENT_INFINITY = 2**63 - 1

_EPOCH = date(1970, 1, 1).toordinal()
_ISO_DATE_CHARACTERS = 10
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_INFINITIES = {"infinity": 1, "+infinity": 1, "-infinity": -1}
_DATE = r"(?P<year>[+-]?\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
_ZONE = r"(?P<zone>Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)"
_ERA = r"(?:\s*\(?(?P<era>BC)\)?)?"
_DATES = re.compile(_DATE + _ERA)
_TIMES = re.compile(_TIME)
_MOMENTS = re.compile(rf"{_DATE}(?:[T ]{_TIME})?\s*{_ZONE}?{_ERA}")
_TIME_SPAN = re.compile(
    r"(?P<sign>-)?P(?:(?P<years>-?\d+)Y)?(?:(?P<months>-?\d+)M)?(?:(?P<weeks>-?\d+)W)?"
    r"(?:(?P<days>-?\d+)D)?(?:T(?:(?P<hours>-?\d+)H)?(?:(?P<minutes>-?\d+)M)?"
    r"(?:(?P<second_sign>-)?(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,9}))?S)?)?"
)


def format_date(days: int) -> str:
    """Write the day that is so many days after 1970-01-01."""
    if abs(days) == DATE_INFINITY:
        return "infinity" if days > 0 else "-infinity"
    cycles, cycle_day = divmod(days + _EPOCH - 1, _CYCLE_DAYS)
    day = date.fromordinal(cycle_day + 1)
    year = day.year + cycles * _CYCLE_YEARS
    day_text = f"{year if year > 0 else 1 - year:04d}-{day.month:02d}-{day.day:02d}"
    return day_text if year > 0 else f"{day_text} BC"


def parse_date(text: str) -> int:
    """Read a date as days after 1970-01-01; raises `ValueError`."""
    sign = _INFINITIES.get(text.strip().lower())
    if sign is not None:
        return sign * DATE_INFINITY
    match = _DATES.fullmatch(text.strip())
    if match is None:
        raise ValueError("it is no date like 2026-01-31")
    return _parse_days(match)


def format_time(value: int, unit: str) -> str:
    """Write a time of day, counted in a unit; the end of the day is 24:00:00."""
    seconds, fraction_units = divmod(value, UNIT_PER_S[unit])
    minutes, second = divmod(seconds, 60)
    clock_text = f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return clock_text + _format_fraction(fraction_units, unit)


def parse_time(text: str, unit: str) -> int:
    """Read a time of day in a unit; raises `ValueError`."""
    match = _TIMES.fullmatch(text.strip())
    if match is None:
        raise ValueError("it is no time like 23:59:59.5")
    value = _parse_time_of_day(match, unit)
    if value > DAY_S * UNIT_PER_S[unit]:
        raise ValueError("a day ends at 24:00:00")
    return value


def format_moment(value: int, unit: str, *, has_zone: bool) -> str:
    """Write a moment, counted in a unit after 1970; one with a zone is shown in UTC.

    Outside of the years 1 to 9999, where ISO 8601 has no form, it is the text of PostgreSQL.
    """
    if abs(value) == MOMENT_INFINITY:
        return "infinity" if value > 0 else "-infinity"
    days, time_of_day = divmod(value, DAY_S * UNIT_PER_S[unit])
    day, _, era = format_date(days).partition(" ")
    clock = format_time(time_of_day, unit)
    if not era and len(day) == _ISO_DATE_CHARACTERS:
        return f"{day}T{clock}{'+00:00' if has_zone else ''}"
    # PostgreSQL ends a fraction where its zeros begin.
    clock = clock.rstrip("0") if "." in clock else clock
    return f"{day} {clock}{'+00' if has_zone else ''}{f' {era}' if era else ''}"


def parse_moment(text: str, unit: str, *, has_zone: bool) -> int:
    """Read a moment in a unit after 1970; raises `ValueError`, also for a zone too many or few."""
    sign = _INFINITIES.get(text.strip().lower())
    if sign is not None:
        return sign * MOMENT_INFINITY
    match = _MOMENTS.fullmatch(text.strip())
    if match is None:
        raise ValueError("it is no moment like 2026-01-31T23:59:59.5")
    if has_zone != (match["zone"] is not None):
        raise ValueError("it needs a zone, as in +00:00" if has_zone else "it may have no zone")
    value = _parse_days(match) * DAY_S * UNIT_PER_S[unit] + _parse_time_of_day(match, unit)
    value -= _parse_offset_s(match["zone"]) * UNIT_PER_S[unit]
    if abs(value) >= MOMENT_INFINITY:
        raise ValueError(f"a moment counted in {unit} does not reach so far")
    return value


def format_interval(months: int, days: int, nanoseconds: int) -> str:
    """Write an interval as ISO 8601 does, its months, days and seconds apart."""
    years, months_left = (abs(months) // 12, abs(months) % 12)
    sign = "-" if months < 0 else ""
    date_text = f"{sign}{years}Y" if years else ""
    date_text += f"{sign}{months_left}M" if months_left else ""
    date_text += f"{days}D" if days else ""
    return f"P{date_text}{_format_clock_part(nanoseconds)}" if date_text or nanoseconds else "PT0S"


def parse_interval(text: str) -> tuple[int, int, int]:
    """Read an interval as months, days and nanoseconds; raises `ValueError`."""
    match = _TIME_SPAN.fullmatch(text.strip())
    if match is None or text.strip().lstrip("-") in {"P", "PT"} or text.strip().endswith("T"):
        raise ValueError("it is no interval like P1Y2M3DT4H5M6.7S")
    part = {name: int(match[name] or 0) for name in _SPAN_UNITS}
    months = 12 * part["years"] + part["months"]
    days = 7 * part["weeks"] + part["days"]
    fraction_ns = int((match["fraction"] or "").ljust(9, "0") or 0)
    clock = part["seconds"] * UNIT_PER_S["ns"] + fraction_ns
    clock = -clock if match["second_sign"] else clock
    clock += (part["hours"] * 3_600 + part["minutes"] * 60) * UNIT_PER_S["ns"]
    sign = -1 if match["sign"] else 1
    return sign * months, sign * days, sign * clock


_SPAN_UNITS = ("years", "months", "weeks", "days", "hours", "minutes", "seconds")


def _format_clock_part(nanoseconds: int) -> str:
    if not nanoseconds:
        return ""
    sign = "-" if nanoseconds < 0 else ""
    seconds, fraction_ns = divmod(abs(nanoseconds), UNIT_PER_S["ns"])
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    clock_text = f"{sign}{hours}H" if hours else ""
    clock_text += f"{sign}{minute}M" if minute else ""
    fraction = f".{fraction_ns:09d}".rstrip("0") if fraction_ns else ""
    return f"T{clock_text}" + (f"{sign}{second}{fraction}S" if second or fraction_ns else "")


def _format_fraction(fraction_units: int, unit: str) -> str:
    """Write what is left of a second: six digits as Python does, nine where that is not all."""
    nanoseconds = fraction_units * (UNIT_PER_S["ns"] // UNIT_PER_S[unit])
    if not nanoseconds:
        return ""
    return f".{nanoseconds:09d}" if nanoseconds % 1_000 else f".{nanoseconds // 1_000:06d}"


def _parse_days(match: re.Match[str]) -> int:
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if match["era"]:
        year = 1 - year
    cycles, cycle_year = divmod(year - 1, _CYCLE_YEARS)
    return date(cycle_year + 1, month, day).toordinal() - _EPOCH + cycles * _CYCLE_DAYS


def _parse_time_of_day(match: re.Match[str], unit: str) -> int:
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if minute >= 60 or second >= 60:  # noqa: PLR2004 - an hour and a minute
        raise ValueError("minutes and seconds end at 59")
    nanoseconds = int((match["fraction"] or "").ljust(9, "0") or 0)
    value, lost_ns = divmod(nanoseconds, UNIT_PER_S["ns"] // UNIT_PER_S[unit])
    if lost_ns:
        raise ValueError(f"it has more digits than {unit}")
    return (hour * 3_600 + minute * 60 + second) * UNIT_PER_S[unit] + value


def _parse_offset_s(zone: str | None) -> int:
    if zone in (None, "Z"):
        return 0
    digits = str(zone)[1:].replace(":", "").ljust(6, "0")
    value = int(digits[:2]) * 3_600 + int(digits[2:4]) * 60 + int(digits[4:])
    return -value if str(zone)[0] == "-" else value


def is_in_python_range(low: int, high: int, unit: str) -> bool:
    """Tell whether moments counted in a unit after 1970 are all such that Python holds."""
    earliest, latest = (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    scale = UNIT_PER_S[unit]
    first = (earliest - epoch) // timedelta(seconds=1) * scale
    last = (latest - epoch) // timedelta(seconds=1) * scale
    return first <= low and high <= last
