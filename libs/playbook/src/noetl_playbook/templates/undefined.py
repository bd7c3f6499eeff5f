"""A value that is not there: it remembers where it was looked for, and fails when used.

The language's own records have fields without a value at times: `output.error` of a success. They
are absent: false, and unequal to everything. So is all that is missing in a lenient playbook. All
else that is not there is a mistake, and a test of it fails.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NoReturn, TypeGuard

import jinja2
from jinja2.utils import missing as nothing

from noetl_contracts import spelling
from noetl_playbook.templates.lookup import Lookup, Record

_KEYS_MAX = 500
_SHOWN_MAX = 12
# Longer keys, and those of other signs, are data: addresses, tokens, sentences.
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_WAY_OUT = "where it may be absent, write 'is defined', 'default(...)' or '.get(...)'"

ERROR = "error"
DETAILS = "details"
# The fields of an error object; an error has those that apply (language, section 14).
ERROR_FIELDS = frozenset(
    {
        *("kind", "message", "retryable", "code", "status", "retry_after", "pg_code"),
        *("exception_type", "source", "step", "task", "attempt", "tries", DETAILS),
        *("status_code", "http_status"),
    }
)
HTTP_FIELDS = frozenset({"status", "headers"})
PG_FIELDS = frozenset({"code", "sqlstate", "constraint", "table"})
PY_FIELDS = frozenset({"exception", "traceback"})
# What an envelope's records hold; any other field of them is a mistake, also where they are absent.
_BELOW = {ERROR: ERROR_FIELDS, "http": HTTP_FIELDS, "pg": PG_FIELDS, "py": PY_FIELDS}
# Names of the language that have no value at times: of an entry step, of a success.
OPTIONAL_NAMES = frozenset(
    {
        *("output", "outcome", "result", "response", ERROR, "event", "input", "_prev"),
        *("payload", "parent_execution_id"),
    }
)


class UndefinedUsedError(jinja2.UndefinedError):
    """A value that is not there was used."""

    def __init__(self, message: str, *, hint: str | None = None, path: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.path = path

    def complete_path(self, paths: Collection[str]) -> "UndefinedUsedError":
        """Tell the whole path: Jinja's code forgets the way to a value, its template reads it."""
        if self.path in paths:
            return self
        whole = [path for path in paths if path.endswith(f".{self.path}")]
        if len(whole) != 1:
            return self
        message = str(self).replace(f"'{self.path}'", f"'{whole[0]}'", 1)
        return UndefinedUsedError(message, hint=self.hint, path=whole[0])


class Undefined(jinja2.Undefined):
    """An error in every use: tests and comparisons too."""

    __slots__ = ("_first_missing", "_owner")

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = nothing,
        name: str | None = None,
        exc: type[jinja2.TemplateRuntimeError] = UndefinedUsedError,
        *,
        owner: Any = None,
        missing: str | None = None,
    ) -> None:
        # Jinja's own initialiser, without its call: absence is common and must be cheap.
        self._undefined_hint = hint
        self._undefined_obj = obj
        self._undefined_name = name
        self._undefined_exception = exc
        self._owner = owner
        self._first_missing = missing or name or ""

    @property
    def path(self) -> str:
        """Tell the full path that was looked for."""
        return self._undefined_name or ""

    def fail(self, *_args: Any, **_named: Any) -> NoReturn:
        """Refuse the use of this value."""
        if self._undefined_hint:
            raise UndefinedUsedError(self._undefined_hint)
        near = self._find_near_path()
        entry = f"did you mean '{near}'?" if near is not None else self._hint_at_entry()
        hint = " ".join(filter(None, (entry, self._list_siblings(near)))) or None
        raise UndefinedUsedError(f"'{self.path}' is undefined", hint=hint, path=self.path)

    def refuse_test(self, *_args: Any, **_named: Any) -> NoReturn:
        """Refuse to be true, false, equal or unequal."""
        if self._undefined_hint:
            raise UndefinedUsedError(self._undefined_hint)
        near = self._find_near_path()
        head = self._first_missing.rpartition(".")[0]
        suggestion = (
            f"did you mean '{near[len(head) :].lstrip('.')}'?" if near is not None else None
        )
        hint = " ".join(filter(None, (suggestion, self._list_siblings(near))))
        raise UndefinedUsedError(
            f"'{self.path}' is not there{f' ({hint})' if hint else ''}",
            hint=_WAY_OUT,
            path=self.path,
        )

    def _list_siblings(self, near: str | None) -> str | None:
        """Tell which fields stand beside the missing one, unless the nearest one is the only one.

        Names of the whole scope are not told.
        """
        head = self._first_missing.rpartition(".")[0]
        names = [key for key in _list_keys(self._owner) if _is_field_name(key)]
        is_only_near = near is not None and [near.rpartition(".")[2]] == names
        if not names or is_only_near or hasattr(self._owner, "is_lenient"):
            return None
        more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        who = f"'{head}'" if head else "it"
        return f"{who} has {', '.join(names[:_SHOWN_MAX])}{more}"

    def _find_near_path(self) -> str | None:
        """Find the path that was probably meant."""
        head, dot, last = self._first_missing.rpartition(".")
        keys = [key for key in _list_keys(self._owner) if isinstance(key, str)]
        nearest_word = spelling.find_nearest_word(last, keys) or self._find_below(last, keys)
        return None if nearest_word is None else f"{head}{dot}{nearest_word}"

    def _find_below(self, last: str, known_names: list[str]) -> str | None:
        """Find the key a level deeper, as the fields of a body are in results of a loop."""
        owner = self._owner
        if type(owner) is not dict:
            return None
        holding = [key for key in known_names if type(owner[key]) is dict and last in owner[key]]
        return f"{holding[0]}.{last}" if len(holding) == 1 else None

    def _hint_at_entry(self) -> str | None:
        """Say what the items of a mapping are, to who has looped over one by mistake."""
        owner = self._owner
        if type(owner) is not dict or owner.keys() != {"key", "value"}:
            return None
        way = f"this is the entry {str(owner['key'])[:80]!r} of a mapping: it has 'key' and 'value'"
        if isinstance(owner["value"], list):
            return f"{way}; to loop over its list, add '.{owner['key']}' to what the loop is in"
        return f"{way}; to loop over a list of the mapping, name it in what the loop is in"

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = fail
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = fail
    __pos__ = __neg__ = __abs__ = __pow__ = __rpow__ = __round__ = fail
    __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __complex__ = fail
    __call__ = __getitem__ = __iter__ = __len__ = __contains__ = __index__ = fail
    # Also inside a list that is written as text.
    __str__ = __repr__ = __format__ = __html__ = fail

    def __bool__(self) -> bool:
        return self.refuse_test()

    def __eq__(self, other: object) -> bool:
        return self.refuse_test()

    def __ne__(self, other: object) -> bool:
        return self.refuse_test()

    def __hash__(self) -> int:
        return self.refuse_test()


class AbsentValue(Undefined):
    """A value that may be absent here: false in tests, unequal to everything."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)


def is_undefined(value: object) -> TypeGuard[Undefined]:
    """Tell whether a value is not there."""
    return isinstance(value, Undefined)


def _is_field_name(key: Any) -> TypeGuard[str]:
    return isinstance(key, str) and _FIELD_NAME.fullmatch(key) is not None


def _list_keys(owner: Any) -> list[Any]:
    if isinstance(owner, jinja2.Undefined):
        return []
    if isinstance(owner, Mapping):
        return [key for key, _ in zip(owner, range(_KEYS_MAX), strict=False)]
    listed = getattr(owner, "known_names", None)
    return list(listed())[:_KEYS_MAX] if listed is not None else []


def make_missing_name(scope: Any, name: str, keys: Sequence[Any] = ()) -> Undefined:
    """Make what stands for a name that the scope does not have; `keys` are looked up below it."""
    is_absent = is_lenient(scope) or (name in OPTIONAL_NAMES and _is_known_field(name, keys))
    return (AbsentValue if is_absent else Undefined)(name=name, owner=scope)


def make_missing_member(
    scope: Any, owner: Any, keys: Sequence[Any], *, name: str, missing: str | None = None
) -> Undefined:
    """Make what stands for `owner.key`; `keys` begin with the one that is missing."""
    is_absent = is_lenient(scope) or can_lack(owner, keys)
    return (AbsentValue if is_absent else Undefined)(name=name, owner=owner, missing=missing)


def make_missing_branch(scope: Any, hint: str) -> Undefined:
    """Make what an inline `if` without an else gives when it is false."""
    return (AbsentValue if is_lenient(scope) else Undefined)(hint)


def is_lenient(scope: Any) -> bool:
    """Tell whether what is missing is absent, by what the playbook says of undefined."""
    return getattr(scope, "is_lenient", False)


def can_lack(owner: Any, keys: Sequence[Any]) -> bool:
    """Tell whether a value has a field at times, and the fields of it that are asked for."""
    key, *below = keys
    if isinstance(owner, AbsentValue):
        return _is_known_field(owner.path.rpartition(".")[2], keys)
    if isinstance(owner, Lookup):
        return owner.can_lack_member(key) and _is_known_field(key, below)
    return isinstance(owner, Record) and owner.can_lack_member(key) and _is_known_field(key, below)


def _is_known_field(key: Any, below: Sequence[Any]) -> bool:
    """Tell whether each field of a path is one that the record before it may have."""
    return all(
        record not in _BELOW or field in _BELOW[record] for record, field in pairwise((key, *below))
    )
