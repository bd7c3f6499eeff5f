"""The filters that templates may use; all free of side effects."""

import base64
import binascii
import functools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from hashlib import md5, sha256  # noqa: TID251 (filters of these names, not our digests)
from typing import Any

import jinja2
import msgspec
from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.utils import pass_context, pass_environment, pass_eval_context

from noetl_playbook import coercion, forms, growth, sql_text
from noetl_playbook.growth import check_width
from noetl_playbook.lookup import MISSING, member
from noetl_playbook.names import SEAL
from noetl_playbook.templates import weight
from noetl_playbook.templates.rendering import check_length
from noetl_playbook.undefined import Undefined

_FROM_JINJA = frozenset(
    {
        *("abs", "batch", "capitalize", "center", "dictsort", "first", "format", "groupby"),
        *("indent", "items", "join", "last", "length", "count", "list", "lower", "map", "max"),
        *("min", "pprint", "reject", "rejectattr", "replace", "reverse", "round", "select"),
        *("selectattr", "slice", "sort", "string", "striptags", "sum", "title", "trim"),
        *("truncate", "unique", "upper", "urlencode", "wordcount"),
    }
)
# What these do with each item they are given does not depend on what it holds.
_SHALLOW = frozenset(
    {
        *("abs", "batch", "count", "default", "first", "float", "int", "items", "last", "length"),
        *("list", "map", "pluck", "random", "reject", "rejectattr", "reverse", "round", "select"),
        *("selectattr", "slice", "to_bool", "to_number"),
    }
)
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_INDENT_MAX = 100
_PRECISION_MAX = 300
_DIGITS_MAX = 4_000


def default(value: Any, fallback: Any = "", boolean: Any = False) -> Any:  # noqa: FBT002 (Jinja's signature)
    """Replace undefined, and falsy values too when asked."""
    if isinstance(value, Undefined) or (boolean and not value):
        return fallback
    return value


def to_int(value: Any, default: Any = 0, base: int = 10) -> Any:
    """Read a whole number; null and empty text give the default."""
    if value is None or value == "":
        return default
    if isinstance(value, str):
        text = value.strip()
        if len(text) > _DIGITS_MAX:
            raise ValueError(f"a number of {len(text)} characters is too long")
        if base != 10:  # noqa: PLR2004 (decimal)
            return int(text, base)
        return int(text) if text.lstrip("+-").isdecimal() else int(_number(text))
    return int(value)


def to_float(value: Any, default: Any = 0.0) -> Any:
    """Read a number; null and empty text give the default."""
    if value is None or value == "":
        return default
    return _number(value) if isinstance(value, str) else float(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:60]!r} is not a number") from None


def tojson(value: Any, indent: int | None = None) -> str:
    """Write plain JSON: key order kept, no HTML escaping."""
    text = forms.json_text(value)
    if indent is None:
        return text
    if indent > _INDENT_MAX:
        raise SecurityError(f"an indentation of {indent} is too large")
    return msgspec.json.format(text, indent=indent)


def fromjson(value: Any) -> Any:
    """Read JSON text."""
    return msgspec.json.decode(str(value))


def b64encode(value: Any) -> str:
    """Encode text as base64."""
    return base64.b64encode(forms.text_of(value).encode()).decode()


def b64decode(value: Any) -> str:
    """Decode base64 to text."""
    try:
        return base64.b64decode(str(value), validate=True).decode()
    except binascii.Error as error:
        raise ValueError("not base64") from error


def urldecode(value: Any) -> str:
    """Decode percent-encoded text; a plus is a space."""
    text = str(value).replace("+", " ")
    return _PERCENT.sub(
        lambda found: bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "replace"), text
    )


def md5_hex(value: Any) -> str:
    """Fingerprint text; not for secrets."""
    return md5(forms.text_of(value).encode(), usedforsecurity=False).hexdigest()


def sha256_hex(value: Any) -> str:
    """Fingerprint text."""
    return sha256(forms.text_of(value).encode()).hexdigest()


def regex_replace(value: Any, pattern: str, replacement: str) -> str:
    """Replace every match."""
    length = 0

    def expanded(found: re.Match[str]) -> str:
        nonlocal length
        text = found.expand(replacement)
        length += len(text)
        check_length(length)
        return text

    return re.sub(pattern, expanded, str(value))


def regex_search(value: Any, pattern: str) -> str | None:
    """Find the first match, or null."""
    found = re.search(pattern, str(value))
    return None if found is None else found[0]


def regex_findall(value: Any, pattern: str) -> list[Any]:
    """Find every match."""
    return forms.plain(re.findall(pattern, str(value)))  # type: ignore[no-any-return]  # a list


def split(value: Any, separator: str | None = None) -> list[str]:
    """Split text at a separator, or at white space."""
    return str(value).split(separator)


def pluck(value: Any, path: str) -> list[Any]:
    """Take one dotted path of every item; null where it is absent."""
    return [_at(item, path) for item in value]


def _at(item: Any, path: str) -> Any:
    for part in path.split("."):
        item = member(item, int(part) if part.isdecimal() else part)
        if item is MISSING or item is None:
            return None
    return item


def combine(value: Any, *others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings; later keys win."""
    merged = dict(forms.plain(value))
    for other in others:
        merged.update(forms.plain(other))
    return merged


def flatten(value: Any, levels: int = 1) -> list[Any]:
    """Unpack nested lists."""
    flat: list[Any] = []
    for item in value:
        if isinstance(item, list | tuple) and levels > 0:
            flat.extend(flatten(item, levels - 1))
        else:
            flat.append(item)
    return flat


def to_number(value: Any) -> int | float:
    """Read a number, whole if it is written so."""
    found = coercion.number(int(value) if isinstance(value, bool) else value)
    if found is None:
        raise ValueError("not a number")
    return found


def to_bool(value: Any) -> bool:
    """Read a boolean in any of its spellings; null and empty text are false."""
    if value is None or value == "":
        return False
    found = coercion.boolean(value)
    if found is None:
        raise ValueError("not a boolean")
    return found


def to_datetime(value: Any) -> datetime:
    """Read ISO 8601 text, or seconds since 1970, as an aware date-time."""
    if isinstance(value, datetime):
        found = value
    elif isinstance(value, date):
        found = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif isinstance(value, int | float):
        return datetime.fromtimestamp(value, tz=UTC)
    else:
        found = datetime.fromisoformat(str(value))
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def iso8601(value: Any) -> str:
    """Write a date-time as ISO 8601."""
    return to_datetime(value).isoformat()


@pass_context
def random(context: Any, value: Any) -> Any:
    """Pick an item by the recorded `uuid4()`, so that a replay picks the same."""
    items = list(value)
    draw = context.resolve("uuid4")
    if not items or isinstance(draw, jinja2.Undefined):
        raise ValueError("nothing to pick from")
    return items[int(str(draw()).replace("-", ""), 16) % len(items)]


@pass_context
def encrypt_secret(context: Any, value: Any) -> Any:
    """Seal text with the function that the scope holds for it: workers have one."""
    seal = context.resolve(SEAL)
    if isinstance(seal, jinja2.Undefined):
        raise SecurityError("encrypt_secret is not available here")
    if not isinstance(value, str):
        raise TypeError("encrypt_secret seals text")
    return seal(value)


# What each strict filter does to an input that is not undefined.
_UNCHECKED: dict[Callable[..., Any], Callable[..., Any]] = {}


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a filter refuse undefined input, whatever it does by itself."""
    position = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        value = args[position] if len(args) > position else None
        if isinstance(value, Undefined):
            value.fail()
        return function(*args, **named)

    _UNCHECKED[checked] = function
    return checked


def unchecked(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Give what a filter of the table does once its input is known not to be undefined."""
    return _UNCHECKED.get(function)


def _weighed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a filter refuse what it would visit without an end."""
    position = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        if len(args) == position + 1 and type(args[position]) in weight.LEAVES:
            return function(*args, **named)
        given = list(args)
        for place in range(position, len(given)):
            if type(given[place]) is not str:
                given[place] = weight.materialized(given[place])
                weight.check_weight(given[place])
        return function(*given, **named)

    return checked


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse widths that only waste memory."""

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        for each in (*args[1:], *named.values()):
            check_width(each)
        return function(*args, **named)

    return checked


def _formatted(value: str, *args: Any, **named: Any) -> str:
    """Format with `%`."""
    return growth.percent(str(value), named or args)


def _replaced(value: Any, old: Any, new: Any, count: Any = None) -> str:
    return growth.replaced(str(value), old, new, count)


@pass_eval_context
def _joined(context: EvalContext, value: Any, d: str = "", attribute: Any = None) -> str:
    items = list(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    texts = [each if isinstance(each, str) else str(each) for each in items]
    return growth.joined(str(d), texts)


def _indented(value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> str:  # noqa: FBT002 (Jinja's signature)
    growth.check_indentation(str(value), width)
    return FILTERS["indent"](str(value), width, first, blank)  # type: ignore[no-any-return]  # a text


def _rounded(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    if abs(precision) > _PRECISION_MAX:
        raise SecurityError(f"a precision of {precision} is too large")
    return FILTERS["round"](value, precision, method)


@pass_environment
def _summed(environment: Environment, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, int | float):
        raise SecurityError("sum adds numbers: use flatten or join")
    return FILTERS["sum"](environment, value, attribute, start)


def _own() -> dict[str, Callable[..., Any]]:
    """List the filters of Jinja that are made anew, each with the same meaning."""
    return {
        "format": _formatted,
        "indent": _indented,
        "join": _joined,
        "replace": _replaced,
        "round": _rounded,
        "sum": _summed,
        **{name: _guarded(FILTERS[name]) for name in ("batch", "center", "slice", "truncate")},
    }


def table() -> dict[str, Callable[..., Any]]:
    """List every filter by name."""
    own: dict[str, Callable[..., Any]] = {
        "b64decode": b64decode, "b64encode": b64encode, "combine": combine,
        "encrypt_secret": encrypt_secret, "flatten": flatten, "float": to_float,
        "fromjson": fromjson, "int": to_int, "iso8601": iso8601, "md5": md5_hex,
        "pluck": pluck, "random": random, "regex_findall": regex_findall,
        "regex_replace": regex_replace, "regex_search": regex_search, "sha256": sha256_hex,
        "split": split, "sql_ident": sql_text.sql_ident, "sql_literal": sql_text.sql_literal,
        "to_bool": to_bool, "to_datetime": to_datetime, "to_number": to_number,
        "tojson": tojson, "urldecode": urldecode,
    }  # fmt: skip
    from_jinja = {name: FILTERS[name] for name in _FROM_JINJA}
    whole = {**from_jinja, **_own(), **own}
    strict = {
        name: _strict(function if name in _SHALLOW else _weighed(function))
        for name, function in whole.items()
    }
    return {**strict, "default": default, "d": default}
