"""Text forms of PostgreSQL's values: JSON with exact numbers, ranges, floats and paths."""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import asyncpg
import msgspec

from noetl_worker.domain.text_values import format_text

# Fifteen digits and a point pass through a float unchanged.
_EXACT_CHARACTERS = 16
Convert = Callable[[Any], Any]
# A bound with one of these stands in quotes, as an empty one does.
_SPECIAL = re.compile(r'[\s"\\,()\[\]]')
_BOUND = r'(?P<{name}>(?:"(?:[^"\\]|\\.|"")*"|\\.|[^"\\,()\[\]])*)'
_RANGE = re.compile(
    r"\s*(?P<open>[\[(])"
    + _BOUND.format(name="lower")
    + ","
    + _BOUND.format(name="upper")
    + r"(?P<close>[\])])\s*",
    re.DOTALL,
)
_UNQUOTED = re.compile(r'\\(.)|"((?:[^"\\]|\\.|"")*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(.)|""', re.DOTALL)
_POINT = re.compile(r"\(\s*([^(),\s]+)\s*,\s*([^(),\s]+)\s*\)")


def read_json(text: str) -> Any:
    """Read a JSON text; whole numbers keep all of their digits.

    Raises `msgspec.DecodeError`, and `RecursionError` for a text that is nested too deeply.
    """
    return _decoder.decode(text)


def _exact_number(text: str) -> float | str:
    value = float(text)
    if len(text) <= _EXACT_CHARACTERS and "e" not in text and "E" not in text:
        return value
    return value if Decimal(repr(value)) == Decimal(text) else text


_decoder = msgspec.json.Decoder(float_hook=_exact_number)


def read_range(value: Any, element: Convert) -> str:
    """Write a range as PostgreSQL does."""
    if value.isempty:
        return "empty"
    lower = "" if value.lower is None else _quote_bound(format_text(element(value.lower)))
    upper = "" if value.upper is None else _quote_bound(format_text(element(value.upper)))
    return f"{'[' if value.lower_inc else '('}{lower},{upper}{']' if value.upper_inc else ')'}"


def write_range(value: Any, element: Convert) -> Any:
    """Read a range from its text; raises `ValueError`."""
    if not isinstance(value, str):
        raise TypeError("it is no text of a range, as [1,5)")
    if value.strip().lower() == "empty":
        return asyncpg.Range(empty=True)
    match = _RANGE.fullmatch(value)
    if match is None:
        raise ValueError("it is no text of a range, as [1,5)")
    return asyncpg.Range(
        lower=element(_unquote_bound(match["lower"])) if match["lower"] else None,
        upper=element(_unquote_bound(match["upper"])) if match["upper"] else None,
        lower_inc=match["open"] == "[" and bool(match["lower"]),
        upper_inc=match["close"] == "]" and bool(match["upper"]),
    )


def read_float(value: float) -> float | str:
    """Return a number, or the text of what is none in JSON."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def read_path(value: Any) -> str:
    """Write a path as PostgreSQL does: it may be open or closed."""
    points = ",".join(
        f"({format_text(read_float(point[0]))},{format_text(read_float(point[1]))})"
        for point in value.points
    )
    return f"({points})" if value.is_closed else f"[{points}]"


def write_path(value: Any) -> Any:
    """Read a path from its text, or from a list of points, which is open; raises `ValueError`."""
    if not isinstance(value, str):
        return asyncpg.Path(*[(float(item[0]), float(item[1])) for item in value], is_closed=False)
    points = [(float(x), float(y)) for x, y in _POINT.findall(value)]
    brackets = re.sub(r"[\s,]", "", _POINT.sub("", value))
    if not points or brackets not in {"()", "[]"}:
        raise ValueError("it is no text of a path, as ((0,0),(1,1))")
    return asyncpg.Path(*points, is_closed=brackets == "()")


def _quote_bound(text: str) -> str:
    if text and _SPECIAL.search(text) is None:
        return text
    doubled = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{doubled}"'


def _unquote_bound(text: str) -> str:
    return _UNQUOTED.sub(
        lambda match: (
            match[1] or _ESCAPED.sub(lambda escape_match: escape_match[1] or '"', match[2] or "")
        ),
        text,
    )
