"""Values on their way into and out of PostgreSQL: bound and read as the column's type says."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import asyncpg

from noetl_contracts import codec
from noetl_contracts.json_values import to_json_value
from noetl_worker.domain.text_values import format_text
from noetl_worker.tools.postgres.intervals import write_interval
from noetl_worker.tools.postgres.moments import (
    write_date,
    write_time,
    write_timestamp,
    write_timetz,
)
from noetl_worker.tools.postgres.value_forms import (
    read_float,
    read_json,
    read_path,
    read_range,
    write_path,
    write_range,
)

Convert = Callable[[Any], Any]

_TRUE = frozenset({"true", "t", "yes", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "off", "0"})
# PostgreSQL's `numeric` has no more digits before the point.
_WHOLE_DIGITS_MAX = 131_072
# Types that the server does not bring along have identities from here on.
_OWN_OIDS = 16_384
# JSON may be nested too deeply, and a record may hold anything.
_DOUBTFUL = frozenset({"json", "jsonb", "record"})
# Their bytes are no text.
_FIXED = frozenset(
    {
        *("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bool", "uuid", "bytea"),
        *("timestamptz", "timestamp", "date", "time", "timetz", "interval", "inet", "cidr"),
    }
)
# A whole number with fewer digits fits into 64 bits.
_SMALL_DIGITS = 18
_INT8_MAX = 2**63 - 1
_CHAR_BYTES = 1
_RANGE_ELEMENTS = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "daterange": "date",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
}
_MULTIRANGES = {
    "int4multirange": "int4range",
    "int8multirange": "int8range",
    "nummultirange": "numrange",
    "datemultirange": "daterange",
    "tsmultirange": "tsrange",
    "tstzmultirange": "tstzrange",
}
_UNCHANGED = frozenset(
    {
        *("int2", "int4", "int8", "oid", "text", "varchar", "bpchar", "name", "bool", "xml"),
        # The connection's codecs give their JSON forms.
        *("timestamptz", "timestamp", "date", "time", "timetz", "interval"),
    }
)


class UnfitValue(Exception):  # noqa: N818 - reads as what it is: a value that fits no parameter
    """A value cannot be bound as the type that the statement asks for."""


def _bind_integer(value: Any) -> int:
    if isinstance(value, str):
        return int(value.strip())
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _bind_boolean(value: Any) -> bool:
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(f"{value!r} is not a boolean")
        return word in _TRUE
    return bool(value)


def _bind_json(value: Any) -> str:
    return value if isinstance(value, str) else codec.encode_text(value)


def _bind_decimal(value: Any) -> Decimal:
    decimal = Decimal(str(value).strip())
    # The client writes a larger one as another number.
    if decimal.is_finite() and decimal and decimal.adjusted() >= _WHOLE_DIGITS_MAX:
        raise ValueError(f"it has more than {_WHOLE_DIGITS_MAX} digits before the point")
    if decimal.is_snan():
        raise ValueError("it is no number")
    return decimal


def _bind_binary(value: Any) -> bytes:
    return b64decode(value, validate=True)


def _bind_char(value: Any) -> bytes:
    """Read the type "char", one byte: a letter, nothing, or a backslash and its octal number."""
    text = format_text(value)
    char = bytes([int(text[1:], 8)]) if text[:1] == "\\" and text[1:].isdigit() else text.encode()
    if len(char) > _CHAR_BYTES:
        raise ValueError("it is longer than a byte")
    return char or b"\0"


def _bind_bits(value: Any) -> asyncpg.BitString:
    # The client's own signature says bytes, and its code reads digits.
    return asyncpg.BitString(format_text(value))  # type: ignore[arg-type]  # as said above


def _bind_shape(value: Any) -> Any:
    """Make a shape's numbers numbers, also NaN and Infinity, which are texts in JSON."""
    return [_bind_shape(item) for item in value] if isinstance(value, list) else float(value)


class _ExactNumber(Decimal):
    """A number of a composite, whose attribute's type is not known here."""

    def __int__(self) -> int:
        if self != self.to_integral_value():
            raise ValueError(f"{self} is not a whole number")
        return super().__int__()


def _bind_composite(value: Any) -> Any:
    """Let numbers keep the digits that they are written with, also in a numeric attribute."""
    if isinstance(value, float):
        return _ExactNumber(repr(value))
    if isinstance(value, dict):
        return {name: _bind_composite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_bind_composite(item) for item in value]
    return value


_BINDERS: dict[str, Convert] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "xid", "cid", "xid8"), _bind_integer),
    **dict.fromkeys(("float4", "float8"), float),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "xml", "citext"), format_text),
    **dict.fromkeys(("json", "jsonb"), _bind_json),
    "char": _bind_char,
    "bool": _bind_boolean,
    "numeric": _bind_decimal,
    "timestamptz": write_timestamp,
    "timestamp": write_timestamp,
    "date": write_date,
    "time": write_time,
    "timetz": write_timetz,
    "interval": write_interval,
    "uuid": format_text,
    "bytea": _bind_binary,
    **dict.fromkeys(("bit", "varbit"), _bind_bits),
    "path": write_path,
    **dict.fromkeys(("point", "box", "lseg", "line", "polygon", "circle"), _bind_shape),
}


def get_binder(type_name: str) -> Convert:
    """Return how to bind a JSON value as a type; arrays bind element by element."""
    if type_name.endswith("[]"):
        return _build_array_binder(get_binder(type_name[:-2]))
    if type_name in _RANGE_ELEMENTS:
        element = _BINDERS[_RANGE_ELEMENTS[type_name]]
        return lambda value: write_range(value, element)
    if type_name in _MULTIRANGES:
        return _build_array_binder(get_binder(_MULTIRANGES[type_name]))
    return _BINDERS.get(type_name, _bind_composite)


def bind_values(
    values: Sequence[Any], binders: Sequence[Convert], type_names: Sequence[str]
) -> list[Any]:
    """Convert arguments; raises `UnfitValue` naming the parameter that does not fit."""
    if len(values) != len(binders):
        raise UnfitValue(
            f"the statement names ${len(binders)}, but the task has "
            f"{f'{len(values)} params' if values else 'no params'}"
        )
    bound: list[Any] = []
    try:
        for value, convert in zip(values, binders, strict=True):
            bound.append(None if value is None else convert(value))
    except (ValueError, TypeError, InvalidOperation) as problem:
        index = len(bound)
        value_text = format_text(values[index])[:80]
        raise UnfitValue(
            f"parameter ${index + 1} is of type {type_names[index]}, "
            f"which {value_text!r} is not: {problem}"
        ) from problem
    return bound


def is_derived_type(kind: asyncpg.Type) -> bool:
    """Tell whether the client builds a type from others that the server has described to it."""
    return kind.oid >= _OWN_OIDS and kind.kind in {"composite", "array", "range", "multirange"}


def can_fail_to_read(kind: asyncpg.Type, *, is_checked: bool) -> bool:
    """Tell whether a value of a type may be one that cannot be read.

    `is_checked` tells whether the server knows of every text that it is one.
    """
    name = kind.name.removesuffix("[]")
    is_text = name not in _FIXED and name not in _RANGE_ELEMENTS and name not in _MULTIRANGES
    return name in _DOUBTFUL or is_derived_type(kind) or (is_text and not is_checked)


def find_reader(type_name: str) -> Convert | None:
    """Return how to read a column into a JSON value, or None when it is one already."""
    if type_name in _UNCHANGED:
        return None
    if type_name.endswith("[]"):
        return _build_array_reader(find_reader(type_name[:-2]))
    reader: Convert = _READERS.get(type_name, _read_other)
    return reader


def _build_array_binder(element: Convert) -> Convert:
    def convert_items(value: Any) -> Any:
        items = codec.decode_json(value) if isinstance(value, str) else value
        return [
            None
            if item is None
            else convert_items(item)
            if isinstance(item, list)
            else element(item)
            for item in items
        ]

    return convert_items


def _build_array_reader(element: Convert | None) -> Convert | None:
    if element is None:
        return None

    def read_items(value: Any) -> Any:
        if isinstance(value, list):
            return [read_items(item) for item in value]
        return None if value is None else element(value)

    return read_items


def read_numeric(value: Decimal) -> float | int | str:
    """Return a number where that loses nothing, else the text."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        return str(value)
    if exponent >= 0:
        if value.adjusted() > _SMALL_DIGITS:
            return format(value, "f")
        whole_number = int(value)
        return whole_number if -_INT8_MAX <= whole_number <= _INT8_MAX else str(whole_number)
    as_float = float(value)
    return as_float if Decimal(repr(as_float)) == value else format(value, "f")


def _read_char(value: bytes) -> str:
    if value == b"\0":
        return ""
    return value.decode() if value.isascii() else f"\\{value[0]:03o}"


def _read_other(value: Any) -> Any:
    if isinstance(value, Decimal):
        return read_numeric(value)
    if isinstance(value, float):
        return read_float(value)
    if hasattr(value, "lower_inc"):
        return read_range(value, _read_other)
    if hasattr(value, "as_string"):
        return value.as_string().replace(" ", "")
    if isinstance(value, asyncpg.Path) and not isinstance(value, asyncpg.Polygon):
        return read_path(value)
    if isinstance(value, asyncpg.Circle):
        return [_read_other(value.center), read_float(value.radius)]
    if hasattr(value, "items"):
        return {name: _read_other(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_read_other(item) for item in value]
    try:
        return to_json_value(value)
    except ValueError:
        return str(value)


def _encode_base64(value: bytes) -> str:
    return b64encode(value).decode()


_READERS: dict[str, Convert] = {
    **dict.fromkeys(("json", "jsonb"), read_json),
    **dict.fromkeys(("float4", "float8"), read_float),
    # A network is also all of its addresses.
    **dict.fromkeys(("uuid", "inet", "cidr"), str),
    "numeric": read_numeric,
    "bytea": _encode_base64,
    "char": _read_char,
}
