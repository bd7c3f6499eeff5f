"""The forms in which values leave a template: plain, as text, as a Python literal."""

import base64
from collections.abc import Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from noetl_playbook.lookup import Lookup, SafeCall
from noetl_playbook.templates.weight import check_weight
from noetl_playbook.undefined import Undefined

_ATOMS = frozenset({str, int, float, bool, type(None)})
# A generator made by a filter is taken whole, up to this many items.
_ITEMS_MAX = 10_000_000


def plain(value: Any) -> Any:
    """Give the JSON-typed value; containers are copied only where something changes."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return _plain_mapping(value)
    if kind is list:
        return _plain_list(value)
    return _plain_other(value)


def _plain_mapping(value: dict[Any, Any]) -> dict[Any, Any]:
    for item in value.values():
        if type(item) not in _ATOMS and plain(item) is not item:
            return {key: plain(each) for key, each in value.items()}
    return value


def _plain_list(value: list[Any]) -> list[Any]:
    for item in value:
        if type(item) not in _ATOMS and plain(item) is not item:
            return [plain(each) for each in value]
    return value


def _plain_other(value: Any) -> Any:
    if isinstance(value, Lookup):
        return value.plain()
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case str():
            return str.__str__(value)
        case list() | tuple() | AbstractSet() | range() | ValuesView():
            return [plain(each) for each in value]
        case Iterator():
            return [plain(each) for each, _ in zip(value, range(_ITEMS_MAX), strict=False)]
        case _:
            return _plain_rare(value)


def _plain_rare(value: Any) -> Any:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case int() | float():
            return value
        case timedelta():
            return value.total_seconds()
        case Decimal() | UUID():
            return _plain_identifier(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Undefined():
            return value.fail()
        case SafeCall():
            raise TypeError("a function is not a value; call it")
        case _:
            raise TypeError(f"a value of type {type(value).__name__} cannot leave a template")


def _plain_identifier(value: Decimal | UUID) -> Any:
    if isinstance(value, Decimal) and Decimal(float(value)) == value:
        return float(value)
    return str(value)


def json_text(value: Any) -> str:
    """Write a value as compact JSON: key order and non-ASCII kept."""
    check_weight(value)
    return msgspec.json.encode(plain(value)).decode()


def text_of(value: Any) -> str:
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
    simple = plain(value)
    return simple if isinstance(simple, str) else _text_of_plain(simple)


def _text_of_plain(value: Any) -> str:
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return text_of(value)


def python_of(value: Any) -> str:
    """Give the Python literal that a template inside `code` emits; text stays itself."""
    check_weight(value)
    simple = plain(value)
    return simple if isinstance(simple, str) else repr(simple)
