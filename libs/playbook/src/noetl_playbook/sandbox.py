"""The closed Jinja environment: our lookup rules, our filters, nothing with effects."""

import functools
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace, pass_context

from noetl_playbook import filters, forms, lookup, undefined
from noetl_playbook.lookup import MISSING, Lookup, SafeCall
from noetl_playbook.templates import rendering, weight
from noetl_playbook.undefined import Absent, Undefined

Flavour = Literal["text", "python"]

# Marks a name in call position, where alone methods exist; no source can spell it.
METHOD_MARK = "\x00method:"
SETTLE_FILTER = "\x00settle"
COUNT_FILTER = "\x00count"
BOUND_FILTER = "\x00bound"
TEXT_FILTER = "\x00text"
KEY_FILTER = "\x00key"
# Before the name of a comparison: the test that does it.
COMPARISON_MARK = "\x00compare:"
BUDGET = "\x00budget"
_NEVER = "\x00never"
# What Jinja's code adds to a call inside a block, for functions that want its context: ours do not.
_BLOCK_ARGUMENTS = ("_loop_vars", "_block_vars")
# The tests that ask whether a value is there, and those that ask nothing of it.
_PRESENCE_TESTS = frozenset({"defined", "undefined", "filter", "test"})

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": weight.compared(operator.eq),
    "ne": weight.compared(operator.ne),
    "gt": weight.compared(operator.gt),
    "gteq": weight.compared(operator.ge),
    "lt": weight.compared(operator.lt),
    "lteq": weight.compared(operator.le),
}


def _mapping(*pairs: Any, **named: Any) -> dict[Any, Any]:
    """Make a mapping, whose keys are hashed."""
    given = [weight.materialized(each) for each in pairs]
    weight.check_weight(given)
    return dict(*given, **named)


GLOBALS: dict[str, SafeCall] = {
    "range": SafeCall(safe_range),
    "dict": SafeCall(_mapping),
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

    def __init__(self, *, flavour: Flavour, is_lenient: bool = False) -> None:
        super().__init__(
            # Comments do not exist: shell's ${#a} is plain text.
            comment_start_string=_NEVER + "{",
            comment_end_string=_NEVER + "}",
            undefined=Absent if is_lenient else Undefined,
            finalize=forms.text_of if flavour == "text" else forms.python_of,
            autoescape=False,
            keep_trailing_newline=True,
            # Folding constants would run them when a document is only looked at.
            optimized=False,
            cache_size=0,
        )
        self.is_lenient = is_lenient
        self.globals = dict(GLOBALS)
        self.filters = {
            **filters.table(),
            SETTLE_FILTER: settle,
            COUNT_FILTER: counted,
            BOUND_FILTER: rendering.bounded,
            TEXT_FILTER: lookup.text,
            KEY_FILTER: lookup.hashed,
        }
        tests: dict[str, Any] = self.tests
        self.tests = {
            name: test if name in _PRESENCE_TESTS else _checked_test(test)
            for name, test in tests.items()
        }
        self.tests["in"] = lambda item, container: lookup.contains(container, item)
        for name, compare in COMPARISONS.items():
            self.tests[COMPARISON_MARK + name] = compare

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
        return undefined.missing_member(self, obj, [argument], name=f"{path}{argument}")

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
        for name in _BLOCK_ARGUMENTS:
            kwargs.pop(name, None)
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
def environment(flavour: Flavour, *, is_lenient: bool = False) -> PlaybookEnvironment:
    """Give the environment of a flavour, made once."""
    return PlaybookEnvironment(flavour=flavour, is_lenient=is_lenient)


def environment_for(scope: Any) -> PlaybookEnvironment:
    """Give the environment in which a scope's values are looked up."""
    return environment("text", is_lenient=undefined.is_lenient(scope))


def _checked_test(test: Callable[..., Any]) -> Callable[..., Any]:
    """Make a test refuse what is not there, as comparisons do."""

    @functools.wraps(test)
    def checked(*args: Any, **named: Any) -> Any:
        for each in args:
            if type(each) is Undefined:
                each.refuse_test()
        if len(args) > 1:
            weight.check_pair(args[0], args[1])
        return test(*args, **named)

    return checked
