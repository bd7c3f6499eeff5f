"""Declared field types of the document: booleans, numbers, durations, sizes."""

import re
from typing import Any

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?\Z")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\Z")
_DURATION_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B)\Z", re.IGNORECASE)
_SIZE_BYTES = {
    "b": 1,
    **{f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
}
_NUMBER_TEXT_MAX = 64


def is_template(value: object) -> bool:
    """Tell whether a value is text with template delimiters."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def coerce_boolean(value: Any) -> bool | None:
    """Read a boolean field; `None` when the value is not one."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    return _BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else None


def coerce_number(value: Any) -> int | float | None:
    """Read a number field; `None` when the value is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or len(value) > _NUMBER_TEXT_MAX:
        return None
    text = value.strip()
    if _NUMBER.match(text):
        return _prefer_integer(float(text)) if re.search(r"[.eE]", text) else int(text)
    return None


def coerce_integer(value: Any) -> int | None:
    """Read a whole-number field; `None` when the value is not one."""
    number = coerce_number(value)
    return int(number) if number is not None and number == _prefer_integer(number) // 1 else None


def coerce_duration_s(value: Any) -> int | float | None:
    """Read a duration as seconds; `None` when the value is not one."""
    return _coerce_scaled(value, _DURATION, _DURATION_S)


def coerce_size_bytes(value: Any) -> int | float | None:
    """Read a size as bytes; `None` when the value is not one."""
    return _coerce_scaled(value, _SIZE, _SIZE_BYTES)


def _coerce_scaled(
    value: Any, pattern: re.Pattern[str], units: dict[str, Any]
) -> int | float | None:
    number = coerce_number(value)
    if number is not None or not isinstance(value, str):
        return number
    match = pattern.match(value.strip())
    if match is None:
        return None
    unit: float = units[match[2].lower()]
    return _prefer_integer(float(match[1]) * unit)


def _prefer_integer(value: float) -> int | float:
    return int(value) if value == value // 1 and abs(value) < 2**53 else value
