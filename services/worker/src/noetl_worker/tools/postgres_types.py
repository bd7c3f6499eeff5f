"""Values on their way into and out of PostgreSQL: bound and read as the column's type says."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from noetl_contracts import codec
from noetl_contracts.plain import number, plain
from noetl_worker.domain.texts import as_text

Convert = Callable[[Any], Any]

_TRUE = frozenset({"true", "t", "yes", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "off", "0"})


class UnfitValue(Exception):  # noqa: N818 - reads as what it is: a value that fits no parameter
    """A value cannot be bound as the type that the statement asks for."""


def _integer(value: Any) -> int:
    if isinstance(value, str):
        return int(value.strip())
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(f"{value!r} is not a boolean")
        return word in _TRUE
    return bool(value)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else codec.text(value)


def _aware(value: Any) -> datetime:
    moment = _moment(value)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _naive(value: Any) -> datetime:
    moment = _moment(value)
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _moment(value: Any) -> datetime:
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, tz=UTC)
    return datetime.fromisoformat(str(value).strip())


def _interval(value: Any) -> timedelta:
    return timedelta(seconds=float(value))


def _day(value: Any) -> date:
    return date.fromisoformat(str(value).strip()[:10])


def _clock_time(value: Any) -> time:
    return time.fromisoformat(str(value).strip())


def _decimal(value: Any) -> Decimal:
    return Decimal(str(value).strip())


def _binary(value: Any) -> bytes:
    return b64decode(value, validate=True)


_BINDERS: dict[str, Convert] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid"), _integer),
    **dict.fromkeys(("float4", "float8"), float),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "char", "xml", "citext"), as_text),
    **dict.fromkeys(("json", "jsonb"), _json),
    "bool": _boolean,
    "numeric": _decimal,
    "timestamptz": _aware,
    "timestamp": _naive,
    "date": _day,
    **dict.fromkeys(("time", "timetz"), _clock_time),
    "interval": _interval,
    "uuid": as_text,
    "bytea": _binary,
}


def binder(type_name: str) -> Convert:
    """Return how to bind a JSON value as a type; arrays bind element by element."""
    if type_name.endswith("[]"):
        return _array(binder(type_name[:-2]))
    return _BINDERS.get(type_name, _as_is)


def bind(values: Sequence[Any], binders: Sequence[Convert], type_names: Sequence[str]) -> list[Any]:
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
        shown = as_text(values[index])[:80]
        raise UnfitValue(
            f"parameter ${index + 1} is of type {type_names[index]}, "
            f"which {shown!r} is not: {problem}"
        ) from problem
    return bound


def reader(type_name: str) -> Convert | None:
    """Return how to read a column into a JSON value, or None when it is one already."""
    if type_name in _UNCHANGED:
        return None
    if type_name.endswith("[]"):
        return _array_reader(reader(type_name[:-2]))
    found: Convert = _READERS.get(type_name, _readable)
    return found


def _array(element: Convert) -> Convert:
    def convert(value: Any) -> Any:
        items = codec.decode(value) if isinstance(value, str) else value
        return [
            None if item is None else convert(item) if isinstance(item, list) else element(item)
            for item in items
        ]

    return convert


def _array_reader(element: Convert | None) -> Convert | None:
    if element is None:
        return None

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [read(item) for item in value]
        return None if value is None else element(value)

    return read


def _as_is(value: Any) -> Any:
    return value


def _iso(value: Any) -> str:
    return str(value.isoformat())


def _range(value: Any) -> str:
    """Write a range as PostgreSQL does."""
    if value.isempty:
        return "empty"
    lower = "" if value.lower is None else as_text(plain(value.lower))
    upper = "" if value.upper is None else as_text(plain(value.upper))
    return f"{'[' if value.lower_inc else '('}{lower},{upper}{']' if value.upper_inc else ')'}"


def _readable(value: Any) -> Any:
    if hasattr(value, "lower_inc"):
        return _range(value)
    if hasattr(value, "as_string"):
        return value.as_string()
    if hasattr(value, "items"):
        return {name: _readable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    try:
        return plain(value)
    except ValueError:
        return str(value)


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


_UNCHANGED = frozenset(
    {"int2", "int4", "int8", "oid", "text", "varchar", "bpchar", "name", "char", "bool", "xml"}
)
_READERS: dict[str, Convert] = {
    "json": codec.decode,
    "jsonb": codec.decode,
    "numeric": number,
    "uuid": str,
    "bytea": _base64,
    **dict.fromkeys(("timestamptz", "timestamp", "date", "time", "timetz"), _iso),
}
