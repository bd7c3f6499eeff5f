"""The forms in which values leave a template: plain, as text, as a Python literal."""

import base64
import math
from collections.abc import Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from noetl_playbook.templates.lookup import Lookup, SafeCall
from noetl_playbook.templates.render_limits import check_weight, refuse_loop
from noetl_playbook.templates.undefined import Undefined

_ATOMS = frozenset({str, int, float, bool, type(None)})
# A generator made by a filter is taken whole, up to this many items.
_ITEMS_MAX = 10_000_000


def to_plain(value: Any) -> Any:
    """Give the JSON-typed value; containers are copied only where something changes."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return _mapping_to_plain(value)
    if kind is list:
        return _list_to_plain(value)
    return _other_to_plain(value)


def _mapping_to_plain(value: dict[Any, Any]) -> dict[Any, Any]:
    for place, (key, item) in enumerate(value.items()):
        if type(key) is SafeCall:
            raise TypeError("a function is not a value; call it")
        # Once: an iterator has nothing to give a second time.
        if type(item) not in _ATOMS and (plain := to_plain(item)) is not item:
            pairs = iter(value.items())
            before = dict(islice(pairs, place))
            next(pairs)
            return {**before, key: plain, **{name: to_plain(entry) for name, entry in pairs}}
    return value


def _list_to_plain(value: list[Any]) -> list[Any]:
    for place, item in enumerate(value):
        if type(item) not in _ATOMS and (plain := to_plain(item)) is not item:
            return [*value[:place], plain, *map(to_plain, value[place + 1 :])]
    return value


def _other_to_plain(value: Any) -> Any:
    if isinstance(value, Lookup):
        return value.to_plain()
    match value:
        case Mapping():
            return {str(key): to_plain(item) for key, item in value.items()}
        case str():
            return str.__str__(value)
        case list() | tuple() | AbstractSet() | range() | ValuesView():
            return [to_plain(item) for item in value]
        case Iterator():
            refuse_loop(value)
            return [to_plain(item) for item, _ in zip(value, range(_ITEMS_MAX), strict=False)]
        case _:
            return _rare_to_plain(value)


def _rare_to_plain(value: Any) -> Any:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case int() | float():
            return value
        case timedelta():
            return value.total_seconds()
        case Decimal() | UUID():
            return _identifier_to_plain(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Undefined():
            return value.fail()
        case SafeCall():
            raise TypeError("a function is not a value; call it")
        case _:
            raise TypeError(f"a value of type {type(value).__name__} cannot leave a template")


def _identifier_to_plain(value: Decimal | UUID) -> Any:
    if isinstance(value, Decimal) and Decimal(float(value)) == value:
        return float(value)
    return str(value)


def to_json_text(value: Any) -> str:
    """Write a value as compact JSON: key order and non-ASCII kept."""
    check_weight(value)
    return msgspec.json.encode(to_plain(value)).decode()


def to_text(value: Any) -> str:
    """Give the text that a template emits for a value."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]  # narrowed by identity of the type
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is float:
        return str(value)
    if value is None:
        return "null"
    check_weight(value)
    simple = to_plain(value)
    return simple if isinstance(simple, str) else _plain_to_text(simple)


def _plain_to_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return to_text(value)


def to_python_literal(value: Any) -> str:
    """Give the Python literal that a template inside `code` emits; text stays itself."""
    check_weight(value)
    simple = to_plain(value)
    return simple if isinstance(simple, str) else repr(simple)


def sql_literal(value: Any) -> str:
    """Write any scalar, or JSON, as one literal."""
    simple = to_plain(value)
    if simple is None:
        return "NULL"
    if isinstance(simple, bool):
        return "true" if simple else "false"
    if isinstance(simple, int | float):
        return _write_number(simple)
    return _quote_text(simple if isinstance(simple, str) else to_json_text(simple), "'")


def sql_ident(value: Any) -> str:
    """Write text as one quoted identifier, or a list as a dotted one."""
    simple = to_plain(value)
    parts = simple if isinstance(simple, list) else [simple]
    for part in parts:
        if not isinstance(part, str) or not part:
            raise ValueError("an identifier is text that is not empty")
    return ".".join(_quote_text(part, '"') for part in parts)


def _write_number(value: float) -> str:
    if not math.isfinite(value):
        return f"'{value}'"
    # A bare minus could join a preceding one into a comment.
    return f"({value})" if value < 0 else str(value)


def _quote_text(text: str, quote: str) -> str:
    if "\x00" in text:
        raise ValueError("SQL text cannot hold NUL")
    return quote + text.replace(quote, quote * 2) + quote
