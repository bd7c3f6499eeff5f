"""Conversion of the values that tools return into values that JSON can hold."""

import dataclasses
import math
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

_SCALARS = frozenset({str, bool, type(None)})
_HOLDERS = frozenset({dict, list})
# What JSON libraries hold as a number; larger ones travel as text.
_INTEGERS = range(-(2**63), 2**64)
DEPTH_MAX = 200
# How far an error names the place of what has no JSON form.
_PLACE_DEPTH_MAX = 8


class JsonFormError(ValueError):
    """A value, or a part of it, has no JSON form."""


def to_json_result(value: Any) -> Any:
    """Return `to_json_value` of what code returned; its `ValueError` says where in the result."""
    try:
        return to_json_value(value)
    except JsonFormError as failure:
        text = f"{failure}{_describe_place(_find_refused_place(value, _has_json_form))}"
        raise ValueError(text) from None


def list_repeated_names(names: Iterable[str]) -> list[str]:
    """Return the names that stand more than once, sorted: a row would keep one of their values."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def build_broken_text_failure(result: Any) -> JsonFormError:
    """Say which text of a result, a value that JSON can hold, UTF-8 does not hold."""
    place = _find_refused_place(result, _is_encodable)
    return JsonFormError(
        "a text of the result holds half of a surrogate pair, which UTF-8 does not hold"
        f"{_describe_place(place)}: replace it with text.encode(errors='replace').decode()"
    )


def to_json_value(value: Any, depth: int = 0) -> Any:
    """Return a value that JSON can hold; raises `JsonFormError` for one without such a form.

    What is such a value already is returned itself, down to its parts: a million rows are not
    copied to learn that they are plain.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is int:
        return value if value in _INTEGERS else _write_integer(value)
    if kind is float:
        return value if math.isfinite(value) else _name_non_finite(value)
    if depth > DEPTH_MAX:
        raise JsonFormError(f"a result is nested deeper than {DEPTH_MAX} levels")
    if kind is dict:
        return _to_json_mapping(value, depth + 1)
    if kind is list:
        return _to_json_list(value, depth + 1)
    if isinstance(value, Mapping):
        return _to_json_mapping(dict(value), depth + 1)
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(item, depth + 1) for item in value]
    return _convert_rare_type(value, depth)


def is_nested_deeper(value: Any, levels: int) -> bool:
    """Tell whether lists and mappings of plain values hold each other in more levels than that."""
    layer = [value] if type(value) in _HOLDERS else []
    for _ in range(levels):
        if not layer:
            return False
        layer = [
            child
            for item in layer
            for child in (item.values() if type(item) is dict else item)
            if type(child) in _HOLDERS
        ]
    return bool(layer)


def _to_json_mapping(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    json_mapping: dict[str, Any] | None = None
    for place, (key, item) in enumerate(value.items()):
        # Once: an iterator has nothing to give a second time.
        json_value = to_json_value(item, depth)
        if json_mapping is None:
            if json_value is item and type(key) is str:
                continue
            json_mapping = dict(islice(value.items(), place))
        json_mapping[_to_json_key(key)] = json_value
    if json_mapping is None:
        return value
    if len(json_mapping) < len(value):
        raise JsonFormError(_describe_equal_keys(value))
    return json_mapping


def _describe_equal_keys(value: dict[Any, Any]) -> str:
    """Name two keys that are one in JSON, where keys are texts."""
    first_keys: dict[str, Any] = {}
    for key in value:
        first_key = first_keys.setdefault(_to_json_key(key), key)
        if first_key is not key:
            break
    return (
        f"the keys {first_key!r:.80} and {key!r:.80} of a result are the same text in JSON: "
        "give one of them another name"
    )


def _to_json_list(value: list[Any], depth: int) -> list[Any]:
    for index, item in enumerate(value):
        json_value = to_json_value(item, depth)
        if json_value is not item:
            later_values = (to_json_value(entry, depth) for entry in value[index + 1 :])
            return [*value[:index], json_value, *later_values]
    return value


def decimal_to_json(value: Decimal) -> float | int | str:
    """Turn a decimal into a number when that loses nothing, else into text."""
    if not value.is_finite():
        return _name_non_finite(float(value)) if not value.is_snan() else "NaN"
    if value == value.to_integral_value() and value.as_tuple().exponent == 0:
        return int(value) if abs(value) < 2**63 else str(value)
    as_float = float(value)
    return as_float if Decimal(repr(as_float)) == value else str(value)


def _write_integer(value: int) -> str:
    """Write a whole number as text; raises `ValueError` for one that Python does not write."""
    try:
        return str(value)
    except ValueError as failure:
        digits_max = sys.get_int_max_str_digits()
        raise JsonFormError(
            f"a result holds a whole number of more than {digits_max:,} digits: return hex(number)"
        ) from failure


def _name_non_finite(value: float) -> str:
    """Name what is no number of JSON."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _to_json_key(key: Any) -> str:
    return key if type(key) is str else str(key)


def _convert_rare_type(value: Any, depth: int) -> Any:
    match value:
        case Enum():
            return to_json_value(value.value, depth + 1)
        case str() | int():
            return str(value) if isinstance(value, str) else to_json_value(int(value))
        case float():
            return to_json_value(float(value))
        case Decimal():
            return decimal_to_json(value)
        case datetime() | date() | time():
            # Libraries of tables have a moment that is none, and that equals nothing.
            return value.isoformat() if value == value else None  # noqa: PLR0124 - as said above
        case timedelta():
            # Counted, because a float does not hold all of a long one.
            is_some = value == value  # noqa: PLR0124 - as above
            return _timedelta_to_seconds(value) if is_some else None
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case msgspec.Struct():
            return to_json_value(msgspec.structs.asdict(value), depth + 1)
    return _convert_library_value(value, depth)


def _timedelta_to_seconds(value: timedelta) -> float | str:
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) == value:
        return seconds
    return str(Decimal(value // timedelta(microseconds=1)).scaleb(-6))


def _convert_library_value(value: Any, depth: int) -> Any:
    """Recognise data classes, and tables, arrays and scalars of libraries not imported here."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return to_json_value(fields, depth + 1)
    if hasattr(value, "to_pylist") and hasattr(value, "column_names"):
        rows = value.to_pylist()
        return _build_table(list(value.column_names), rows, depth)
    if hasattr(value, "to_dicts") and hasattr(value, "columns"):
        return _build_table([str(name) for name in value.columns], value.to_dicts(), depth)
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        rows = [_replace_nan(row) for row in value.to_dict(orient="records")]
        return _build_table([str(name) for name in value.columns], rows, depth)
    if hasattr(value, "tolist"):
        return to_json_value(value.tolist(), depth + 1)
    if isinstance(value, Iterable):
        return [to_json_value(item, depth + 1) for item in value]
    raise JsonFormError(
        f"a result of type {type(value).__name__} cannot be stored as JSON: "
        "return text, numbers, lists or mappings that say the same"
    )


def _replace_nan(row: dict[Any, Any]) -> dict[Any, Any]:
    """Read NaN as nothing: tables of this library have no other way to say that."""
    is_absent = {name: type(item) is float and math.isnan(item) for name, item in row.items()}
    return {name: None if is_absent[name] else item for name, item in row.items()}


def _build_table(columns: list[str], rows: list[Any], depth: int) -> dict[str, Any]:
    if repeated_names := list_repeated_names(columns):
        raise JsonFormError(
            f"a table has several columns named '{repeated_names[0]}': rename all but one"
        )
    return {"columns": columns, "rows": to_json_value(rows, depth + 1), "row_count": len(rows)}


def _find_refused_place(value: Any, is_fit: Callable[[Any], bool]) -> list[Any]:
    """Return the keys and indices that lead to what is not fit."""
    place: list[Any] = []
    while len(place) < _PLACE_DEPTH_MAX:
        if not isinstance(value, dict | list | tuple):
            break
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        refused = next(((key, item) for key, item in parts if not is_fit(item)), None)
        if refused is None:
            break
        place.append(refused[0])
        value = refused[1]
    return place


def _has_json_form(value: Any) -> bool:
    try:
        to_json_value(value)
    except JsonFormError:
        return False
    return True


def _is_encodable(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _describe_place(place: list[Any]) -> str:
    return f" (in result{''.join(f'[{key!r:.40}]' for key in place)})" if place else ""
