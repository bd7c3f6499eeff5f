"""The closed Jinja environment: our lookup rules, our filters, nothing with effects."""

import functools
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

from noetl_playbook.templates import filters, lookup, output_forms, render_limits, undefined
from noetl_playbook.templates.lookup import MISSING, Lookup, SafeCall
from noetl_playbook.templates.undefined import AbsentValue, Undefined

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
_RANGE_ARGUMENTS_MAX = 3
_SHOWN_CHARACTERS_MAX = 60
_BLOCK_ARGUMENTS = ("_loop_vars", "_block_vars")
# The tests that ask whether a value is there, and those that ask nothing of it.
_PRESENCE_TESTS = frozenset({"defined", "undefined", "filter", "test"})

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": render_limits.limit_comparison(operator.eq),
    "ne": render_limits.limit_comparison(operator.ne),
    "gt": render_limits.limit_comparison(operator.gt),
    "gteq": render_limits.limit_comparison(operator.ge),
    "lt": render_limits.limit_comparison(operator.lt),
    "lteq": render_limits.limit_comparison(operator.le),
}


def _make_mapping(*pairs: Any, **named: Any) -> dict[Any, Any]:
    """Make a mapping, whose keys are hashed."""
    iterators = [render_limits.materialize_iterator(pair) for pair in pairs]
    render_limits.check_weight(iterators)
    return dict(*iterators, **named)


def _make_range(*bounds: Any) -> range:
    """Count as Python's `range` does; raises errors in the language's words."""
    if not 1 <= len(bounds) <= _RANGE_ARGUMENTS_MAX:
        raise TypeError(f"range takes one to three numbers, and {len(bounds)} were given")
    for bound in bounds:
        if isinstance(bound, Undefined):
            bound.fail()
        if not isinstance(bound, int):
            bound_text = output_forms.to_text(bound)[:_SHOWN_CHARACTERS_MAX]
            raise TypeError(
                f"range needs whole numbers, and {bound_text!r} is none: '| int' makes one"
            )
    if len(bounds) == _RANGE_ARGUMENTS_MAX and bounds[2] == 0:
        raise ValueError("range needs a step other than 0")
    numbers = range(*bounds)
    if numbers[MAX_RANGE:]:
        raise SecurityError(f"range gives at most {MAX_RANGE:,} numbers, and more were asked for")
    return numbers


GLOBALS: dict[str, SafeCall] = {
    "range": SafeCall(_make_range),
    "dict": SafeCall(_make_mapping),
    "timedelta": SafeCall(timedelta),
    "namespace": SafeCall(render_limits.Variables),
}


def settle_value(value: Any) -> Any:
    """End a path: a view of a scalar or a list becomes that value."""
    return value.settle_view() if isinstance(value, Lookup) else value


@pass_context
def count_steps(context: Any, items: Any) -> Any:
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
            undefined=AbsentValue if is_lenient else Undefined,
            finalize=output_forms.to_text if flavour == "text" else output_forms.to_python_literal,
            autoescape=False,
            keep_trailing_newline=True,
            # Folding constants would run them when a document is only looked at.
            optimized=False,
            cache_size=0,
        )
        self.is_lenient = is_lenient
        self.globals = dict(GLOBALS)
        self.filters = {
            **filters.list_filters(),
            SETTLE_FILTER: settle_value,
            COUNT_FILTER: count_steps,
            BOUND_FILTER: render_limits.bound_text,
            TEXT_FILTER: lookup.to_bounded_text,
            KEY_FILTER: lookup.check_key,
        }
        tests: dict[str, Any] = self.tests
        self.tests = {
            name: test if name in _PRESENCE_TESTS else _refuse_undefined_test(test)
            for name, test in tests.items()
        }
        self.tests["in"] = lambda item, container: lookup.has_item(container, item)
        for name, compare in COMPARISONS.items():
            self.tests[COMPARISON_MARK + name] = compare

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up `obj.attribute`; a marked attribute is a method about to be called."""
        if attribute.startswith(METHOD_MARK):
            return self.get_method(obj, attribute.removeprefix(METHOD_MARK))
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up `obj[argument]`."""
        member = lookup.look_up_member(obj, argument) if obj is not None else MISSING
        if member is not MISSING:
            return member
        path = f"{obj.path}." if isinstance(obj, Undefined) and obj.path else ""
        return undefined.make_missing_member(self, obj, [argument], name=f"{path}{argument}")

    def get_method(self, obj: Any, name: str) -> Any:
        """Find a callable method."""
        if obj is None or isinstance(obj, Undefined):
            return self.getitem(obj, name)
        return lookup.get_method(settle_value(obj), name, formatting=self)

    def is_safe_callable(self, obj: Any) -> bool:
        """Allow only what we made callable ourselves."""
        return isinstance(obj, SafeCall)

    def call(self, _context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that templates may call."""
        for name in _BLOCK_ARGUMENTS:
            kwargs.pop(name, None)
        return call_safely(obj, *args, **kwargs)

    def call_binop(self, _context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator that could waste memory."""
        return BINARY_GUARDED[operator](left, right)


BINARY_GUARDED: dict[str, Callable[[Any, Any], Any]] = {
    "+": lookup.add_bounded,
    "*": lookup.multiply_bounded,
    "**": lookup.raise_to_power,
    "%": lookup.take_modulo,
}


def call_safely(function: Any, *args: Any, **named: Any) -> Any:
    """Call a function that templates may call; refuse everything else."""
    if isinstance(function, Undefined):
        function.fail()
    if not isinstance(function, SafeCall):
        raise SecurityError(f"a value of type {type(function).__name__} cannot be called")
    return function(*args, **named)


@functools.cache
def get_environment(flavour: Flavour, *, is_lenient: bool = False) -> PlaybookEnvironment:
    """Give the environment of a flavour, made once."""
    return PlaybookEnvironment(flavour=flavour, is_lenient=is_lenient)


def get_environment_for(scope: Any) -> PlaybookEnvironment:
    """Give the environment in which a scope's values are looked up."""
    return get_environment("text", is_lenient=undefined.is_lenient(scope))


def _refuse_undefined_test(test: Callable[..., Any]) -> Callable[..., Any]:
    """Make a test refuse what is not there, as comparisons do."""

    @functools.wraps(test)
    def call_checked(*args: Any, **named: Any) -> Any:
        for arg in args:
            if type(arg) is Undefined:
                arg.refuse_test()
        if len(args) > 1:
            render_limits.check_pair(args[0], args[1])
        return test(*args, **named)

    return call_checked
