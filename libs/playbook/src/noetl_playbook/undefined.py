"""A value that is not there: it remembers where it was looked for, and fails when used."""

from collections.abc import Collection, Mapping
from typing import Any, NoReturn, TypeGuard

import jinja2
from jinja2.utils import missing as nothing

from noetl_playbook import spelling

_KEYS_MAX = 500
_WAY_OUT = "where it may be absent, write 'is defined', 'default(...)' or '.get(...)'"


class UndefinedUsedError(jinja2.UndefinedError):
    """A value that is not there was used."""

    def __init__(self, message: str, *, hint: str | None = None, path: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.path = path

    def among(self, paths: Collection[str]) -> "UndefinedUsedError":
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
        near = self._near()
        raise UndefinedUsedError(
            f"'{self.path}' is undefined",
            hint=None if near is None else f"did you mean '{near}'?",
            path=self.path,
        )

    def refuse_test(self, *_args: Any, **_named: Any) -> NoReturn:
        """Refuse to be true, false, equal or unequal."""
        if self._undefined_hint:
            raise UndefinedUsedError(self._undefined_hint)
        near = self._near()
        asked = f" (did you mean '{near.rpartition('.')[2]}'?)" if near is not None else ""
        raise UndefinedUsedError(
            f"'{self.path}' is not there{asked}", hint=_WAY_OUT, path=self.path
        )

    def _near(self) -> str | None:
        """Find the path that was probably meant."""
        head, dot, last = self._first_missing.rpartition(".")
        known = [key for key in _keys(self._owner) if isinstance(key, str)]
        found = spelling.nearest(last, known)
        return None if found is None else f"{head}{dot}{found}"

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


class Absent(Undefined):
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


def _keys(owner: Any) -> list[Any]:
    if isinstance(owner, jinja2.Undefined):
        return []
    if isinstance(owner, Mapping):
        return [key for key, _ in zip(owner, range(_KEYS_MAX), strict=False)]
    listed = getattr(owner, "known_names", None)
    return list(listed())[:_KEYS_MAX] if listed is not None else []
