"""Errors of templates are told in the words of the language, never in those of Python."""

import re

import pytest

from noetl_playbook.templates import error_words
from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value

NAMES = {"n": None, "s": "text", "l": [1, 2], "m": {"a": 1}, "z": 0}
OF_PYTHON = re.compile(
    r"\bstr\b|\bNoneType\b|'int'|\bdict\b|positional|object|operand|instances of|_\w+\(\)|iterable"
)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ 'x' + 1 }}", "text and a number cannot be added: '~' joins them"),
        ("{{ 1 + 'x' }}", "'+' cannot take a number and text: '| int'"),
        ("{{ l + 'x' }}", "a list and text cannot be added"),
        ("{{ n + 1 }}", "'+' cannot take null and a number"),
        ("{{ 2 ** 'a' }}", "'**' cannot take a number and text"),
        ("{{ 'a' * 'b' }}", "multiplied by a whole number, not by text"),
        ("{{ 1 / 0 }}", "a number cannot be divided by zero"),
        ("{{ 1.0 / z }}", "a number cannot be divided by zero"),
        ("{{ 10 // 0 }}", "a number cannot be divided by zero"),
        ("{{ 1.5 % z }}", "a number cannot be divided by zero"),
        ("{{ 1 % z }}", "a number cannot be divided by zero"),
        ("{{ 4 is divisibleby 0 }}", "a number cannot be divided by zero"),
        ("{{ s < 1 }}", "'<' cannot compare text and a number"),
        ("{{ ['a', 1] | sort }}", "'<' cannot compare a number and text"),
        ("{{ n >= 1 }}", "'>=' cannot compare null and a number"),
        ("{{ -s }}", "'-' takes a number, not text"),
        ("{{ s | abs }}", "'abs' takes a number, not text"),
        ("{{ s | round }}", "round takes a number, not text"),
        ("{{ n() }}", "null cannot be called"),
        ("{{ m() }}", "a mapping cannot be called"),
        ("{{ s.nope() }}", "method 'nope' of text is not available"),
        ("{{ l.append(1) }}", "method 'append' of a list is not available"),
        ("{{ s.upper(1) }}", "upper takes none in brackets"),
        ("{{ s.split(1) }}", "text is needed here, not a number"),
        ("{{ s | replace('a') }}", "replace needs more: 'new'"),
        ("{{ s | batch }}", "batch needs more: 'linecount'"),
        ("{{ l | join(1, 2, 3) }}", "join takes at most 2 in brackets, and 3 were given"),
        ("{{ s | int(1, 2, 3) }}", "int takes at most 2 in brackets, and 3 were given"),
        ("{{ s | replace(word='a') }}", "replace has no argument 'word'"),
        ("{{ s | nofilter }}", "unknown filter 'nofilter'"),
        ("{{ l | map('nofilter') | list }}", "unknown filter 'nofilter'"),
        ("{{ s is notest }}", "unknown test 'notest'"),
        ("{{ 5 | length }}", "a number has no length"),
        ("{{ n | first }}", "null has no items to go through"),
        ("{% for x in 5 %}{{ x }}{% endfor %}", "a number has no items to go through"),
        ("{{ 5 in 5 }}", "'in' looks into text, a list or a mapping, not into a number"),
        ("{{ s[1:'a'] }}", "places in text and lists are whole numbers"),
        ("{{ '%d' | format('x') }}", "the format needs a number, not text"),
        ("{{ '{} {}'.format(1) }}", "the format has more places than values are given"),
        ("{{ 10 ** 400 * 1.0 }}", "the number is too large"),
        ("{{ s | to_datetime }}", "'text' is no date or time"),
        ("{{ 'x' | b64decode }}", "the text is no base64"),
        ("{{ 5 | items }}", "items takes a mapping"),
    ],
)
def test_a_fault_is_told_in_the_words_of_the_language(template: str, says: str) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_value(template).render(NAMES)
    assert says in caught.value.message
    assert not OF_PYTHON.search(caught.value.message), caught.value.message
    # The place is told too.
    assert template in str(caught.value)


def test_conditions_say_it_as_well() -> None:
    with pytest.raises(TemplateError, match="'<' cannot compare text and a number"):
        compile_condition("{{ s < 1 }}").is_true(NAMES)


def test_what_is_not_known_is_told_as_it_is() -> None:
    assert error_words.describe_fault("the moon is full") == "the moon is full"
    assert error_words.describe_type("Tabular") == "a value of type Tabular"
