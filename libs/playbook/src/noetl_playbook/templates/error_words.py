"""Rewrites errors of Python and Jinja in templates in the words of the playbook language."""

import functools
import inspect
import re
from collections.abc import Callable
from re import Match

from noetl_playbook.templates import filters

_WORDS = {
    "str": "text",
    "Markup": "text",
    "int": "a number",
    "float": "a number",
    "Decimal": "a number",
    "bool": "true or false",
    "NoneType": "null",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "bytes": "bytes",
    "datetime": "a time",
    "datetime.datetime": "a time",
    "date": "a date",
    "datetime.date": "a date",
    "timedelta": "a length of time",
    "datetime.timedelta": "a length of time",
    "function": "a function",
    "SafeCall": "a function",
}
_DIVIDED_BY_ZERO = (
    r"(?:float |integer )?(?:floor )?(?:division|modulo)(?: or modulo)? by zero|float modulo|"
    r"float divmod\(\)|.*DivisionByZero.*|0(?:\.0)? cannot be raised to a negative power"
)
_TOO_MANY_ARGUMENTS = (
    r"(\S+)\(\) takes (?:from \d+ to |exactly |at most )?(\d+) (?:positional )?arguments?,? "
    r"(?:but )?\(?(\d+) (?:was |were )?given\)?"
)
_TOO_FEW_VALUES = (
    r"not enough arguments for format string|tuple index out of range|"
    r"Replacement index \d+ out of range for positional args tuple"
)
_TO_NUMBER = "'| int' or '| float' makes a number of text"
# What a filter is handed before the arguments that a template writes: the value, and Jinja's own.
_PASSED = {"environment": 2, "eval_context": 2, "context": 2}


def describe_type(name: str) -> str:
    """Say what values of a Python type are called in the language."""
    return _WORDS.get(name, f"a value of type {name}")


def describe_fault(message: str) -> str:
    """Say what went wrong in a template; a message that is not known is returned as it is."""
    for pattern, describe in _compile_rules():
        if (match := pattern.fullmatch(message)) is not None:
            return describe(match)
    return message


@functools.cache
def _compile_rules() -> list[tuple[re.Pattern[str], Callable[[Match[str]], str]]]:
    return [(re.compile(pattern), describe) for pattern, describe in _RULES]


def _describe_sum(match: Match[str]) -> str:
    return (
        f"text and {describe_type(match[1])} cannot be added: '~' joins them as text, {_TO_NUMBER}"
    )


def _describe_list_sum(match: Match[str]) -> str:
    return f"a list and {describe_type(match[1])} cannot be added"


def _describe_operation(match: Match[str]) -> str:
    left, right = describe_type(match[2]), describe_type(match[3])
    hint = f": {_TO_NUMBER}" if "text" in (left, right) else ""
    return f"'{match[1]}' cannot take {left} and {right}{hint}"


def _describe_multiplication(match: Match[str]) -> str:
    return f"text or a list can be multiplied by a whole number, not by {describe_type(match[1])}"


def _describe_comparison(match: Match[str]) -> str:
    left, right = describe_type(match[2]), describe_type(match[3])
    hint = f": {_TO_NUMBER}" if "text" in (left, right) else ""
    return f"'{match[1]}' cannot compare {left} and {right}{hint}"


def _describe_single(match: Match[str]) -> str:
    return f"'{match[1]}' takes a number, not {describe_type(match[2])}"


def _describe_missing(match: Match[str]) -> str:
    name, _ = _find_function(match[1])
    return f"{name} needs more: {match[2]}"


def _describe_surplus(match: Match[str]) -> str:
    name, passed = _find_function(match[1])
    most, passed_count = int(match[2]) - passed, int(match[3]) - passed
    were = "was" if passed_count == 1 else "were"
    takes = f"at most {most}" if most > 0 else "none"
    return f"{name} takes {takes} in brackets, and {passed_count} {were} given"


def _describe_unknown_argument(match: Match[str]) -> str:
    return f"{_find_function(match[1])[0]} has no argument {match[2]}"


def _find_function(called: str) -> tuple[str, int]:
    """Return what a template calls a function, and how many arguments that does not write."""
    name = called.rpartition(".")[2]
    return _list_filter_names().get(name, (name, 0))


@functools.cache
def _list_filter_names() -> dict[str, tuple[str, int]]:
    filter_names: dict[str, tuple[str, int]] = {}
    for name, function in filters.list_filters().items():
        inner = inspect.unwrap(function)
        passed = getattr(inner, "jinja_pass_arg", None)
        count = 1 if passed is None else _PASSED.get(passed.name, 2)
        filter_names.setdefault(inner.__name__, (name, count))
    return filter_names


def _say(text: str) -> Callable[[Match[str]], str]:
    """Say a text in which {0} and {1} are the types that a message names."""

    def describe(match: Match[str]) -> str:
        return text.format(*map(describe_type, match.groups()))

    return describe


# Compiled when the first fault is told.
_RULES: tuple[tuple[str, Callable[[Match[str]], str]], ...] = (
    (r'can only concatenate str \(not "(\S+)"\) to str', _describe_sum),
    (r'can only concatenate \w+ \(not "(\S+)"\) to (?:list|tuple)', _describe_list_sum),
    (
        r"unsupported operand type\(s\) for (\S+?)(?: or \w+\(\))?: '(\S+)' and '(\S+)'",
        _describe_operation,
    ),
    (r"can't multiply sequence by non-int of type '(\S+)'", _describe_multiplication),
    (_DIVIDED_BY_ZERO, _say("a number cannot be divided by zero")),
    (r"'(\S+)' not supported between instances of '(\S+)' and '(\S+)'", _describe_comparison),
    (r"bad operand type for unary (\S): '(\S+)'", _describe_single),
    (r"bad operand type for (\w+)\(\): '(\S+)'", _describe_single),
    (r"type (\S+) doesn't define __(?:round|floor|ceil|trunc)__ method",
     _say("round takes a number, not {0}")),
    (r"object of type '(\S+)' has no len\(\)", _say("{0} has no length")),
    (r"'(\S+)' object is not iterable", _say("{0} has no items to go through")),
    (r"'(\S+)' object is not reversible", _say("{0} has no items to go through")),
    (r"argument of type '(\S+)' is not (?:iterable|a container or iterable)",
     _say("'in' looks into text, a list or a mapping, not into {0}")),
    (r"'(\S+)' object is not subscriptable", _say("{0} has no items and no keys")),
    (r"'(\S+)' object cannot be interpreted as an integer",
     _say("a whole number is needed here, not {0}")),
    (r"(?:list|tuple|string|slice) ind(?:ices|ex) must be integers.*",
     _say("places in text and lists are whole numbers")),
    (r"'?(\S+?)'? object is not callable|a value of type (\S+) cannot be called",
     lambda match: f"{describe_type(match[1] or match[2])} cannot be called"),
    (r"method '(\w+)' of (\w+) is not available",
     lambda match: f"method '{match[1]}' of {describe_type(match[2])} is not available"),
    (r"(\S+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.+)",
     _describe_missing),
    (_TOO_MANY_ARGUMENTS, _describe_surplus),
    (r"(\S+)\(\) takes no (?:keyword )?arguments(?: \((\d+) given\))?",
     lambda match: f"{_find_function(match[1])[0]} takes none in brackets"),
    (r"(\S+)\(\) got an unexpected keyword argument ('\w+').*", _describe_unknown_argument),
    (r"No (filter|test) named '(\w+)'\.?", lambda match: f"unknown {match[1]} '{match[2]}'"),
    (r"%.? format: .* is required, not (\S+)", _say("the format needs a number, not {0}")),
    (r"not all arguments converted during string formatting",
     _say("'%' on text puts values into its places, and it has fewer of them")),
    (_TOO_FEW_VALUES, _say("the format has more places than values are given")),
    (r"must be str(?: or None)?, not (\S+)|.*argument \d must be str, not (\S+)",
     lambda match: f"text is needed here, not {describe_type(match[1] or match[2])}"),
    (r"int too large to convert to float|\(34, 'Numerical result out of range'\)",
     _say("the number is too large")),
    (r"'utf-8' codec can't decode .*", _say("the bytes are no text in UTF-8")),
    (r"Incorrect padding|Invalid base64-encoded string.*|Non-base64 digit found",
     _say("the text is no base64")),
    (r"Invalid isoformat string: (.+)",
     lambda match: f"{match[1]} is no date or time: write it as 2026-03-01T12:00:00Z"),
    (r"Can only get item pairs from a mapping\.", _say("items takes a mapping")),
    (r"sequence item \d+: expected str instance, (\S+) found",
     _say("join takes texts, and one item is {0}")),
    (r"(?:min|max)\(\) arg is an empty sequence", _say("the list is empty")),
    (r"unhashable type: '(\S+)'", _say("{0} cannot be a key")),
)  # fmt: skip
