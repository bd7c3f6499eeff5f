"""Looks up `a.b`, `a[b]` and `a.b()` in templates; Python's attributes are out of reach."""

import enum
import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from typing import Any, Final, Protocol

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from noetl_playbook.templates import bounded_text, render_limits


class MissingMember(enum.Enum):
    """The absence of a member, as opposed to a member that is null."""

    TOKEN = "missing"  # noqa: S105 (not a password)


MISSING: Final = MissingMember.TOKEN

_STR_METHODS = frozenset(
    {
        *("lower", "upper", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines"),
        *("replace", "startswith", "endswith", "title", "capitalize", "zfill", "ljust"),
        *("rjust", "join", "count", "find", "isdigit", "isalpha", "format"),
    }
)
_GROWING = frozenset({"replace", "join", "format"})
_PADDED = frozenset({"zfill", "ljust", "rjust"})
_MAPPING_METHODS = frozenset({"keys", "values", "items", "get"})
_LIST_METHODS = frozenset({"index", "count"})
_TIME_METHODS = frozenset({"isoformat", "strftime", "date", "time", "timestamp"})
_LOOP_METHODS = frozenset({"cycle", "changed"})
# By what the documentation calls their owners.
METHODS = {
    "text": _STR_METHODS,
    "mappings": _MAPPING_METHODS,
    "lists": _LIST_METHODS,
    "times": _TIME_METHODS,
    "loop": _LOOP_METHODS,
}
_LOOP_NAMES = frozenset(
    {
        *("index", "index0", "first", "last", "length", "revindex", "revindex0"),
        *("previtem", "nextitem", "depth", "depth0"),
    }
)


class Lookup:
    """A value with lookup rules of its own, as results and envelopes have."""

    __slots__ = ()

    def find_member(self, key: Any) -> Any:
        """Find a member; `MISSING` when there is none."""
        raise NotImplementedError

    def settle_view(self) -> Any:
        """Give what an expression sees when it ends here; a plain scalar for a view of one."""
        return self

    def to_plain(self) -> Any:
        """Give the finite value of JSON types that leaves the template."""
        raise NotImplementedError

    def can_lack_member(self, _key: Any) -> bool:
        """Tell whether a member that is missing is one that this value has at times."""
        return False

    def known_names(self) -> Iterable[str]:
        """List names for spelling hints; never loads anything."""
        return ()

    def __str__(self) -> str:
        return str(self.to_plain())

    def __repr__(self) -> str:
        return repr(self.to_plain())


class Record(dict[str, Any]):
    """A mapping of the language's own, with the fields that it has at times; None is any."""

    __slots__ = ("optional",)

    def __init__(self, fields: Mapping[str, Any], *, optional: frozenset[str] | None) -> None:
        super().__init__(fields)
        self.optional = optional

    def can_lack_member(self, key: Any) -> bool:
        """Tell whether a field that is missing is one that this mapping has at times."""
        return self.optional is None or key in self.optional


class SafeCall:
    """The only thing that a template can call."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function behind it."""
        return self._function(*args, **named)

    def __repr__(self) -> str:
        """Refuse: a text of a function would tell where it lies in memory."""
        raise TypeError("a function is not a value; call it")


def look_up_member(owner: Any, key: Any) -> Any:
    """Find `owner.key` or `owner[key]`; `MISSING` when there is none."""
    kind = type(owner)
    if kind is dict:
        return _find_entry(owner, key)
    if kind is list or kind is str or kind is tuple:
        return _find_element(owner, key)
    if isinstance(owner, Lookup):
        return owner.find_member(key)
    if isinstance(owner, Mapping):
        return _find_entry(owner, key)
    if isinstance(owner, range):
        return _find_element(owner, key)
    if isinstance(owner, list | str | tuple):
        # The groups of `groupby` are named tuples.
        named = isinstance(key, str) and key in getattr(owner, "_fields", ())
        return getattr(owner, key) if named else _find_element(owner, key)
    return _find_loop_member(owner, key)


def _find_entry(owner: Mapping[Any, Any], key: Any) -> Any:
    if type(key) is not str:
        check_key(key)
    entry = owner.get(key, MISSING)
    if entry is MISSING and type(key) is int:
        return owner.get(str(key), MISSING)
    return entry


def _find_element(owner: Any, key: Any) -> Any:
    if type(key) is not int:
        return MISSING
    return owner[key] if -len(owner) <= key < len(owner) else MISSING


def _find_loop_member(owner: Any, key: Any) -> Any:
    """Reach into what Jinja makes itself: `loop` inside a for block, and namespaces."""
    if isinstance(owner, LoopContext):
        return getattr(owner, key) if key in _LOOP_NAMES else MISSING
    if isinstance(owner, Namespace) and isinstance(key, str) and not key.startswith("_"):
        return getattr(owner, key, MISSING)
    return MISSING


class FormatWrapper(Protocol):
    """Turns `str.format` into one that cannot reach attributes."""

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Wrap a bound `str.format`."""
        ...


def get_method(owner: Any, name: str, *, formatting: FormatWrapper) -> SafeCall:
    """Find a method that templates may call."""
    allowed = _list_methods(owner)
    if name not in allowed:
        kind = "mapping" if allowed is _MAPPING_METHODS else type(owner).__name__
        raise SecurityError(f"method '{name}' of {kind} is not available")
    if isinstance(owner, Lookup):
        return SafeCall(_get_view_method(owner, name))
    bound = getattr(owner, name)
    if isinstance(owner, str) and name in _GROWING:
        return SafeCall(_bound_growing_method(owner, name, bound, formatting))
    if name == "get" or allowed is _LIST_METHODS or allowed is _LOOP_METHODS:
        return SafeCall(_limit_search(owner, bound))
    return SafeCall(_limit_width(bound) if name in _PADDED else bound)


def _bound_growing_method(
    owner: str, name: str, bound: Callable[..., Any], formatting: FormatWrapper
) -> Callable[..., Any]:
    match name:
        case "replace":
            return lambda old, new, count=-1: bounded_text.replace_bounded(owner, old, new, count)
        case "join":
            return lambda items: bounded_text.join_bounded(owner, items)
        case _:
            safe = formatting.wrap_str_format(bound)
            return functools.partial(bounded_text.format_bounded, owner, safe)


def _limit_search(owner: Any, bound: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method compare what a list or a loop holds with no more than it may visit."""

    def search_within_limit(*arguments: Any) -> Any:
        render_limits.check_search(owner, arguments)
        return bound(*arguments)

    return search_within_limit


def _list_methods(owner: Any) -> frozenset[str]:
    if isinstance(owner, str):
        return _STR_METHODS
    if isinstance(owner, Mapping | Lookup):
        return _MAPPING_METHODS
    if isinstance(owner, list | tuple):
        return _LIST_METHODS
    if isinstance(owner, date | datetime | time):
        return _TIME_METHODS & frozenset(dir(owner))
    if isinstance(owner, LoopContext):
        return _LOOP_METHODS
    return frozenset()


def _get_view_method(owner: Lookup, name: str) -> Callable[..., Any]:
    if name == "get":

        def get(key: Any, default: Any = None) -> Any:
            render_limits.check_weight(key)
            member = owner.find_member(key)
            return default if member is MISSING else member

        return get
    plain = owner.to_plain()
    if not isinstance(plain, Mapping):
        raise SecurityError(f"method '{name}' needs a mapping")
    bound: Callable[..., Any] = getattr(plain, name)
    return bound


def _limit_width(bound: Callable[..., Any]) -> Callable[..., Any]:
    def pad_within_limit(width: int, *args: Any) -> Any:
        bounded_text.check_width(width)
        return bound(width, *args)

    return pad_within_limit


def add_bounded(left: Any, right: Any) -> Any:
    """Add, refusing texts and lists that double themselves in a loop."""
    if isinstance(left, str) and isinstance(right, str):
        render_limits.check_length(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        render_limits.check_item_count(len(left) + len(right))
    return left + right


def multiply_bounded(left: Any, right: Any) -> Any:
    """Multiply, refusing repetitions that only waste memory."""
    for text, times in ((left, right), (right, left)):
        is_repetition = isinstance(text, str | list | tuple) and isinstance(times, int)
        if is_repetition and len(text) * times > bounded_text.WIDTH_MAX:
            raise SecurityError("the repetition is too long")
    _check_bits(left, right)
    return left * right


def _check_bits(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        if bits > BITS_MAX:
            raise SecurityError("the number is too large")


BITS_MAX = 4096


def raise_to_power(left: Any, right: Any) -> Any:
    """Raise to a power, refusing numbers that only waste memory."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > BITS_MAX:
        raise SecurityError("the number is too large")
    return left**right


def take_modulo(left: Any, right: Any) -> Any:
    """Take the remainder, or format text without huge paddings."""
    return bounded_text.format_percent(left, right) if isinstance(left, str) else left % right


def has_item(container: Any, item: Any) -> bool:
    """Tell whether an item is in a container; what is absent is in none."""
    if isinstance(item, jinja2.Undefined) and not isinstance(container, jinja2.Undefined):
        return bool(item)
    render_limits.check_search(container, item)
    return item in container


def check_key(key: Any) -> Any:
    """Return a key of a mapping, if its hash ends."""
    render_limits.check_weight(key)
    return key


def to_bounded_text(value: Any) -> str:
    """Return a value as a text, if writing it ends."""
    whole = render_limits.materialize_iterator(value)
    render_limits.check_weight(whole)
    return str(whole)
