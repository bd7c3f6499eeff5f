"""The closed Jinja environment: our lookup rules, our filters, nothing with effects."""

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace, pass_context

from noetl_playbook import filters, forms, lookup, rendering
from noetl_playbook.lookup import MISSING, Lookup, SafeCall
from noetl_playbook.undefined import Undefined

Flavour = Literal["text", "python"]

# Marks a name in call position, where alone methods exist; no source can spell it.
METHOD_MARK = "\x00method:"
SETTLE_FILTER = "\x00settle"
COUNT_FILTER = "\x00count"
BOUND_FILTER = "\x00bound"
BUDGET = "\x00budget"
_NEVER = "\x00never"

GLOBALS: dict[str, SafeCall] = {
    "range": SafeCall(safe_range),
    "dict": SafeCall(dict),
    "timedelta": SafeCall(timedelta),
    "namespace": SafeCall(Namespace),
}


def settle(value: Any) -> Any:
    """End a path: a view of a scalar or a list becomes that value."""
    return value.settled() if isinstance(value, Lookup) else value


@pass_context
def counted(context: Any, items: Any) -> Any:
    """Take every step of a loop out of the render's budget."""
    return context.resolve(BUDGET).counted(iter(items))


class PlaybookEnvironment(ImmutableSandboxedEnvironment):
    """Jinja with the language's own idea of attributes, methods and calls."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, flavour: Flavour) -> None:
        super().__init__(
            # Comments do not exist: shell's ${#a} is plain text.
            comment_start_string=_NEVER + "{",
            comment_end_string=_NEVER + "}",
            undefined=Undefined,
            finalize=forms.text_of if flavour == "text" else forms.python_of,
            autoescape=False,
            keep_trailing_newline=True,
            # Folding constants would run them when a document is only looked at.
            optimized=False,
            cache_size=0,
        )
        self.globals = dict(GLOBALS)
        self.filters = {
            **filters.table(),
            SETTLE_FILTER: settle,
            COUNT_FILTER: counted,
            BOUND_FILTER: rendering.bounded,
        }
        self.tests = {**self.tests, "in": lambda item, container: lookup.contains(container, item)}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up `obj.attribute`; a marked attribute is a method about to be called."""
        if attribute.startswith(METHOD_MARK):
            return self.method(obj, attribute.removeprefix(METHOD_MARK))
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up `obj[argument]`."""
        found = lookup.member(obj, argument) if obj is not None else MISSING
        if found is not MISSING:
            return found
        path = f"{obj.path}." if isinstance(obj, Undefined) and obj.path else ""
        return Undefined(name=f"{path}{argument}", owner=obj)

    def method(self, obj: Any, name: str) -> Any:
        """Find a callable method."""
        if obj is None or isinstance(obj, Undefined):
            return self.getitem(obj, name)
        return lookup.method(settle(obj), name, formatting=self)

    def is_safe_callable(self, obj: Any) -> bool:
        """Allow only what we made callable ourselves."""
        return isinstance(obj, SafeCall)

    def call(self, _context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that templates may call."""
        return call(obj, *args, **kwargs)

    def call_binop(self, _context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator that could waste memory."""
        return BINARY_GUARDED[operator](left, right)


BINARY_GUARDED: dict[str, Callable[[Any, Any], Any]] = {
    "+": lookup.added,
    "*": lookup.multiplied,
    "**": lookup.powered,
    "%": lookup.modulo,
}


def call(function: Any, *args: Any, **named: Any) -> Any:
    """Call a function that templates may call; refuse everything else."""
    if isinstance(function, Undefined):
        function.fail()
    if not isinstance(function, SafeCall):
        raise SecurityError(f"a value of type {type(function).__name__} cannot be called")
    return function(*args, **named)


@functools.cache
def environment(flavour: Flavour) -> PlaybookEnvironment:
    """Give the environment of a flavour, made once."""
    return PlaybookEnvironment(flavour=flavour)
