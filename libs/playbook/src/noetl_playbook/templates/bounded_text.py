"""Operations whose result may be far larger than what they were given, checked beforehand."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2.exceptions import SecurityError

from noetl_playbook.templates.render_limits import check_length, check_weight, materialize_iterator

WIDTH_MAX = 1_000_000

_NUMBER = re.compile(r"\d+")
_NESTED_FIELD = re.compile(r"\{[^{}]*[:!\[.][^{}]*\{")
_DIGITS_MAX = 7
_LENGTH_GUESSED = 32


def check_width(width: Any) -> None:
    """Refuse paddings that only waste memory."""
    if isinstance(width, int) and width > WIDTH_MAX:
        raise SecurityError(f"a width of {width} is too large")


def replace_bounded(text: str, old: Any, new: Any, count: Any = -1) -> str:
    """Replace every occurrence, or the first `count`."""
    check_weight([old, new])
    old, new = str(old), str(new)
    limit = -1 if count is None else int(count)
    occurrences = text.count(old) if limit < 0 else min(text.count(old), limit)
    check_length(len(text) + occurrences * (len(new) - len(old)))
    return text.replace(old, new, limit)


def join_bounded(separator: str, items: Iterable[Any]) -> str:
    """Join texts."""
    texts = list(materialize_iterator(items))
    check_weight(texts)
    check_length(sum(map(_estimate_length, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def check_indentation(text: str, width: Any) -> None:
    """Refuse an indentation that makes a text too long."""
    check_width(width)
    indentation = len(width) if isinstance(width, str) else width
    check_length(len(text) + (text.count("\n") + 1) * indentation)


def format_bounded(
    text: str, format_safely: Callable[..., str] | None, *args: Any, **keyword_arguments: Any
) -> str:
    """Format with `str.format`, whose fields must not take their shape from other fields."""
    if format_safely is None:
        raise SecurityError("this text cannot be formatted")
    if _NESTED_FIELD.search(text):
        raise SecurityError("a format field inside another one is not available")
    _check_format(text, text.count("{"), [*args, *keyword_arguments.values()])
    return format_safely(*args, **keyword_arguments)


def format_percent(text: str, values: Any) -> str:
    """Format with `%`."""
    if "*" in text:
        raise SecurityError("a width that is an argument is not available")
    arguments = list(values.values()) if isinstance(values, dict) else values
    arguments = list(arguments) if isinstance(arguments, tuple | list) else [arguments]
    _check_format(text, text.count("%"), arguments)
    percent: str = text % values
    return percent


def _check_format(text: str, fields: int, values: list[Any]) -> None:
    """Refuse formats that pad, or repeat what they are given, beyond any use."""
    check_weight(values)
    numbers = _NUMBER.findall(text)
    if any(len(number) > _DIGITS_MAX for number in numbers):
        raise SecurityError("the format is too wide")
    if sum(map(int, numbers)) > WIDTH_MAX:
        raise SecurityError("the format is too wide")
    check_length(len(text) + fields * max(map(_estimate_length, values), default=0))


def _estimate_length(value: Any) -> int:
    """Estimate how long a value is as text."""
    return len(value) if isinstance(value, str) else _LENGTH_GUESSED
