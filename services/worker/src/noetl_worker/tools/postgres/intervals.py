"""Intervals between PostgreSQL's binary form and JSON.

An interval has three parts that do not turn into each other: months, days and microseconds. A
month is not 30 days, and a day is not 24 hours where clocks change. Without months and days the
JSON form is the number of seconds. With them, or with more microseconds than a number holds, it is
the ISO 8601 duration: `P1M2DT3H`. `infinity` and `-infinity` are their texts.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from noetl_worker.tools.postgres.moments import DAY_US, SECOND_US, to_microseconds

Parts = tuple[int, int, int]

_INFINITY: Parts = (2**31 - 1, 2**31 - 1, 2**63 - 1)
_MINUS_INFINITY: Parts = (-(2**31), -(2**31), -(2**63))
_INFINITIES = {
    "infinity": _INFINITY,
    "+infinity": _INFINITY,
    "-infinity": _MINUS_INFINITY,
}
# Seconds are floats in JSON, which hold so many microseconds exactly.
_EXACT_US = 2**53
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_ISO = re.compile(
    rf"(?P<sign>[+-]?)P(?:(?P<year>{_NUMBER})Y)?(?:(?P<month>{_NUMBER})M)?"
    rf"(?:(?P<week>{_NUMBER})W)?(?:(?P<day>{_NUMBER})D)?"
    rf"(?:T(?:(?P<hour>{_NUMBER})H)?(?:(?P<minute>{_NUMBER})M)?(?:(?P<second>{_NUMBER})S)?)?"
)
_PIECE = re.compile(
    rf"(?P<clock>(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d(?:\.\d+)?))?)"
    rf"|(?P<count>{_NUMBER})\s*(?P<unit>[a-z]+)"
)
# Each unit in months, days and microseconds.
_UNITS: dict[str, Parts] = {
    "millennium": (12_000, 0, 0),
    "century": (1_200, 0, 0),
    "decade": (120, 0, 0),
    "year": (12, 0, 0),
    "month": (1, 0, 0),
    "week": (0, 7, 0),
    "day": (0, 1, 0),
    "hour": (0, 0, 3600 * SECOND_US),
    "minute": (0, 0, 60 * SECOND_US),
    "second": (0, 0, SECOND_US),
    "millisecond": (0, 0, 1_000),
    "microsecond": (0, 0, 1),
}
_SPELLINGS = {
    **{f"{unit}s": unit for unit in _UNITS},
    **{unit: unit for unit in _UNITS},
    "millennia": "millennium",
    "centuries": "century",
    **dict.fromkeys(("y", "yr", "yrs"), "year"),
    **dict.fromkeys(("mon", "mons"), "month"),
    "w": "week",
    "d": "day",
    **dict.fromkeys(("h", "hr", "hrs"), "hour"),
    **dict.fromkeys(("m", "min", "mins"), "minute"),
    **dict.fromkeys(("s", "sec", "secs"), "second"),
    **dict.fromkeys(("ms", "msec", "msecs"), "millisecond"),
    **dict.fromkeys(("us", "usec", "usecs"), "microsecond"),
}


def read_interval(parts: Parts) -> float | str:
    """Show months, days and microseconds."""
    months, days, us = parts
    if not months and not days and -_EXACT_US < us < _EXACT_US:
        return us / SECOND_US
    if parts == _INFINITY:
        return "infinity"
    if parts == _MINUS_INFINITY:
        return "-infinity"
    return _format_parts(months, days, us)


def write_interval(value: Any) -> Parts:
    """Read seconds, an ISO 8601 duration, or PostgreSQL's own text; raises `ValueError`."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, 0, to_microseconds(value)
    text = str(value).strip()
    infinity = _INFINITIES.get(text.lower())
    if infinity is not None:
        return infinity
    iso = _ISO.fullmatch(text)
    if iso is not None and text[-1] not in "PT":
        units = {unit: iso[unit] for unit in _UNITS if iso.groupdict().get(unit) is not None}
        pieces = _sum_pieces([(Decimal(count), unit) for unit, count in units.items()])
        return _negate_parts(pieces) if iso["sign"] == "-" else pieces
    try:
        return 0, 0, to_microseconds(text)
    except InvalidOperation:
        return _parse_worded(text.lower())


def format_duration(parts: Parts) -> str:
    """Write an interval as a text that PostgreSQL reads: a transfer's rows go there as text."""
    interval_text = read_interval(parts)
    return interval_text if isinstance(interval_text, str) else _format_parts(*parts)


def _format_parts(months: int, days: int, us: int) -> str:
    """Write a duration as PostgreSQL's style `iso_8601` does: each part has its own sign."""
    date_part = _format_counts(
        (_compute_quotient(months, 12), "Y"), (_compute_remainder(months, 12), "M"), (days, "D")
    )
    minutes, seconds_us = (
        _compute_quotient(us, 60 * SECOND_US),
        _compute_remainder(us, 60 * SECOND_US),
    )
    time_part = _format_counts(
        (_compute_quotient(minutes, 60), "H"), (_compute_remainder(minutes, 60), "M")
    )
    if seconds_us:
        whole_seconds, fraction = divmod(abs(seconds_us), SECOND_US)
        digits = f"{whole_seconds}.{fraction:06d}".rstrip("0").rstrip(".")
        time_part += f"{'-' if seconds_us < 0 else ''}{digits}S"
    if not time_part:
        return f"P{date_part}" if date_part else "PT0S"
    return f"P{date_part}T{time_part}"


def _format_counts(*parts: tuple[int, str]) -> str:
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def _compute_quotient(value: int, unit: int) -> int:
    return -(-value // unit) if value < 0 else value // unit


def _compute_remainder(value: int, unit: int) -> int:
    return value - unit * _compute_quotient(value, unit)


def _parse_worded(text: str) -> Parts:
    """Read `1 year 2 mons -3 days 04:05:06`, with `@` before or `ago` behind."""
    words = text.removeprefix("@").strip()
    is_ago = words.endswith(" ago")
    words = words.removesuffix(" ago")
    pieces: list[tuple[Decimal, str]] = []
    at = 0
    while at < len(words):
        match = _PIECE.match(words, at)
        if match is None:
            raise ValueError("it is no number of seconds, no ISO 8601 duration and no interval")
        pieces += _parse_piece(match)
        at = match.end()
        while at < len(words) and words[at].isspace():
            at += 1
    if not pieces:
        raise ValueError("it is empty")
    parts = _sum_pieces(pieces)
    return _negate_parts(parts) if is_ago else parts


def _parse_piece(match: re.Match[str]) -> list[tuple[Decimal, str]]:
    if match["clock"] is None:
        unit = _SPELLINGS.get(match["unit"])
        if unit is None:
            raise ValueError(f"there is no unit {match['unit']!r}")
        return [(Decimal(match["count"]), unit)]
    sign = -1 if match["sign"] == "-" else 1
    counts = (match["hours"], match["minutes"], match["seconds"] or "0")
    return [
        (sign * Decimal(count), unit)
        for count, unit in zip(counts, ("hour", "minute", "second"), strict=True)
    ]


def _sum_pieces(pieces: list[tuple[Decimal, str]]) -> Parts:
    months = days = us = Decimal(0)
    for count, unit in pieces:
        in_months, in_days, in_us = _UNITS[unit]
        months += count * in_months
        days += count * in_days
        us += count * in_us
    if months != months.to_integral_value():
        raise ValueError("a part of a month has no length: write days")
    # A part of a day is hours of a day of 24, as PostgreSQL has it.
    whole_days = days.to_integral_value("ROUND_DOWN")
    us += (days - whole_days) * DAY_US
    parts = int(months), int(whole_days), round(us)
    if not all(-(2**31) <= part < 2**31 for part in parts[:2]) or not -(2**63) <= parts[2] < 2**63:
        raise ValueError("PostgreSQL has no interval as long as this")
    return parts


def _negate_parts(parts: Parts) -> Parts:
    months, days, us = parts
    return -months, -days, -us
