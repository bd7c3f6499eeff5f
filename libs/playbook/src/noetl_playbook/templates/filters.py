"""The filters that templates may use; all free of side effects."""

import base64
import binascii
import functools
import re
from collections.abc import Callable, Iterator, Mapping
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

from noetl_playbook.model import coercion
from noetl_playbook.model.language_names import SEAL
from noetl_playbook.templates import bounded_text, output_forms, render_limits
from noetl_playbook.templates.bounded_text import check_width
from noetl_playbook.templates.lookup import MISSING, look_up_member
from noetl_playbook.templates.render_limits import check_length
from noetl_playbook.templates.undefined import Undefined

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
        return int(text) if text.lstrip("+-").isdecimal() else int(_parse_number(text))
    return int(value)


def to_float(value: Any, default: Any = 0.0) -> Any:
    """Read a number; null and empty text give the default."""
    if value is None or value == "":
        return default
    return _parse_number(value) if isinstance(value, str) else float(value)


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:60]!r} is not a number") from None


def tojson(value: Any, indent: int | None = None) -> str:
    """Write plain JSON: key order kept, no HTML escaping."""
    text = output_forms.to_json_text(value)
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
    return base64.b64encode(output_forms.to_text(value).encode()).decode()


def b64decode(value: Any) -> str:
    """Decode base64 to text."""
    try:
        return base64.b64decode(str(value), validate=True).decode()
    except binascii.Error as error:
        raise ValueError("the text is no base64") from error


def urldecode(value: Any) -> str:
    """Decode percent-encoded text; a plus is a space."""
    text = str(value).replace("+", " ")
    return _PERCENT.sub(
        lambda match: bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "replace"), text
    )


def md5_hex(value: Any) -> str:
    """Fingerprint text; not for secrets."""
    return md5(output_forms.to_text(value).encode(), usedforsecurity=False).hexdigest()


def sha256_hex(value: Any) -> str:
    """Fingerprint text."""
    return sha256(output_forms.to_text(value).encode()).hexdigest()


def regex_replace(value: Any, pattern: str, replacement: str) -> str:
    """Replace every match."""
    length = 0

    def expand_match(match: re.Match[str]) -> str:
        nonlocal length
        text = match.expand(replacement)
        length += len(text)
        check_length(length)
        return text

    return re.sub(pattern, expand_match, str(value))


def regex_search(value: Any, pattern: str) -> str | None:
    """Find the first match, or null."""
    match = re.search(pattern, str(value))
    return None if match is None else match[0]


def regex_findall(value: Any, pattern: str) -> list[Any]:
    """Find every match."""
    return output_forms.to_plain(re.findall(pattern, str(value)))  # type: ignore[no-any-return]  # a list


def split(value: Any, separator: str | None = None) -> list[str]:
    """Split text at a separator, or at white space."""
    return str(value).split(separator)


def pluck(value: Any, path: str) -> list[Any]:
    """Take one dotted path of every item; null where it is absent."""
    return [_pluck_path(item, path) for item in value]


def _pluck_path(item: Any, path: str) -> Any:
    for part in path.split("."):
        item = look_up_member(item, int(part) if part.isdecimal() else part)
        if item is MISSING or item is None:
            return None
    return item


def combine(value: Any, *others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings; later keys win."""
    merged = dict(output_forms.to_plain(value))
    for other in others:
        merged.update(output_forms.to_plain(other))
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
    number = coercion.coerce_number(int(value) if isinstance(value, bool) else value)
    if number is None:
        raise ValueError("not a number")
    return number


def to_bool(value: Any) -> bool:
    """Read a boolean in any of its spellings; null and empty text are false."""
    if value is None or value == "":
        return False
    boolean = coercion.coerce_boolean(value)
    if boolean is None:
        raise ValueError("not a boolean")
    return boolean


def to_datetime(value: Any) -> datetime:
    """Read ISO 8601 text, or seconds since 1970, as an aware date-time."""
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif isinstance(value, int | float):
        return datetime.fromtimestamp(value, tz=UTC)
    else:
        moment = datetime.fromisoformat(str(value))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


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


def _refuse_undefined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a filter raise for undefined input, also a filter that would accept it."""
    position = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def call_with_defined(*args: Any, **named: Any) -> Any:
        value = args[position] if len(args) > position else None
        if isinstance(value, Undefined):
            value.fail()
        return function(*args, **named)

    _UNCHECKED[call_with_defined] = function
    return call_with_defined


def find_unchecked(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Give what a filter of the table does once its input is known not to be undefined."""
    return _UNCHECKED.get(function)


def _limit_weight(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a filter refuse what it would visit without an end."""
    position = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def call_within_weight(*args: Any, **named: Any) -> Any:
        if len(args) == position + 1 and type(args[position]) in render_limits.LEAVES:
            return function(*args, **named)
        arguments = list(args)
        for place in range(position, len(arguments)):
            if type(arguments[place]) is not str:
                arguments[place] = render_limits.materialize_iterator(arguments[place])
                render_limits.check_weight(arguments[place])
        return function(*arguments, **named)

    return call_within_weight


def _hide_iterator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a filter give its items as what cannot be written as a text by mistake."""

    @functools.wraps(function)
    def give_items(*args: Any, **named: Any) -> Any:
        items = function(*args, **named)
        return render_limits.LazyItems(items) if isinstance(items, Iterator) else items

    return give_items


def _limit_widths(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse widths that only waste memory."""

    @functools.wraps(function)
    def call_within_width(*args: Any, **named: Any) -> Any:
        for item in (*args[1:], *named.values()):
            check_width(item)
        return function(*args, **named)

    return call_within_width


def _format_text(value: str, *args: Any, **named: Any) -> str:
    """Format with `%`."""
    return bounded_text.format_percent(str(value), named or args)


def _replace_text(value: Any, old: Any, new: Any, count: Any = None) -> str:
    return bounded_text.replace_bounded(str(value), old, new, count)


@pass_eval_context
def _join_items(context: EvalContext, value: Any, d: str = "", attribute: Any = None) -> str:
    items = list(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    texts = [item if isinstance(item, str) else str(item) for item in items]
    return bounded_text.join_bounded(str(d), texts)


def _indent_text(value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> str:  # noqa: FBT002 (Jinja's signature)
    bounded_text.check_indentation(str(value), width)
    return FILTERS["indent"](str(value), width, first, blank)  # type: ignore[no-any-return]  # a text


def _round_number(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    if abs(precision) > _PRECISION_MAX:
        raise SecurityError(f"a precision of {precision} is too large")
    return FILTERS["round"](value, precision, method)


@pass_environment
def _sum_numbers(
    environment: Environment, value: Any, attribute: Any = None, start: Any = 0
) -> Any:
    if not isinstance(start, int | float):
        raise SecurityError("sum adds numbers: use flatten or join")
    return FILTERS["sum"](environment, value, attribute, start)


def _list_own_filters(of_jinja: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """List the filters of Jinja that are made anew, each with the same meaning."""
    return {
        "format": _format_text,
        "indent": _indent_text,
        "join": _join_items,
        "replace": _replace_text,
        "round": _round_number,
        "sum": _sum_numbers,
        **{
            name: _limit_widths(of_jinja[name]) for name in ("batch", "center", "slice", "truncate")
        },
    }


def list_filters() -> dict[str, Callable[..., Any]]:
    """List every filter by name."""
    filters: dict[str, Callable[..., Any]] = {
        "b64decode": b64decode, "b64encode": b64encode, "combine": combine,
        "encrypt_secret": encrypt_secret, "flatten": flatten, "float": to_float,
        "fromjson": fromjson, "int": to_int, "iso8601": iso8601, "md5": md5_hex,
        "pluck": pluck, "random": random, "regex_findall": regex_findall,
        "regex_replace": regex_replace, "regex_search": regex_search, "sha256": sha256_hex,
        "split": split,
        "sql_ident": output_forms.sql_ident, "sql_literal": output_forms.sql_literal,
        "to_bool": to_bool, "to_datetime": to_datetime, "to_number": to_number,
        "tojson": tojson, "urldecode": urldecode,
    }  # fmt: skip
    of_jinja = {name: _hide_iterator(FILTERS[name]) for name in _FROM_JINJA}
    whole = {**of_jinja, **_list_own_filters(of_jinja), **filters}
    strict = {
        name: _refuse_undefined(function if name in _SHALLOW else _limit_weight(function))
        for name, function in whole.items()
    }
    return {**strict, "default": default, "d": default}
