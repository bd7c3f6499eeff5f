"""What is no value never leaves a template: a text of it would tell where it lies in memory."""

from typing import Any

import pytest

from noetl_playbook.templates.expressions import TemplateError, render_value
from noetl_playbook.templates.lookup import Lookup

FUNCTION = "a function is not a value; call it"
ITEMS = "these items are not made yet"
SCOPE = {"xs": ["a", "b"]}
UPPER = "xs | map('upper')"


@pytest.mark.parametrize(
    "expression",
    [
        "range",
        "range | string",
        "range ~ ''",
        "'%s' % range",
        "'%r' % (range,)",
        "'{}'.format(range)",
        "'{0!r}'.format(range)",
        "[range] | string",
        "[range] | join",
        "{'a': range} ~ ''",
        "{range: 1}",
        "{range: 1} | string",
        "range | upper",
        "range | replace('a', 'b')",
        "range | regex_replace('0x', '')",
        "range | split",
        "range | trim",
        "range | pprint",
        "range | urlencode",
        "range | to_datetime",
        "xs | join(range)",
        "xs[range]",
        "'x'.replace('x', range)",
    ],
)
@pytest.mark.parametrize("form", ["{{ E }}", "text {{ E }}", "{% if true %}{{ E }}{% endif %}"])
def test_a_function_is_refused_by_the_expression(expression: str, form: str) -> None:
    template = form.replace("E", expression)
    with pytest.raises(TemplateError) as refused:
        render_value(template, SCOPE)
    assert FUNCTION in str(refused.value)
    assert expression in str(refused.value)
    assert "0x7" not in str(refused.value)


@pytest.mark.parametrize(
    "expression",
    [
        f"[{UPPER}] | string",
        f"[{UPPER}] ~ ''",
        f"'%s' % ({UPPER},)",
        f"'{{}}'.format([{UPPER}])",
        f"{{'a': {UPPER}}} ~ ''",
        "[xs | select] | string",
        "[xs | unique] | string",
        "[xs | reverse] | string",
        "[xs | batch(1)] | string",
        "[{'a': 1} | items] | string",
    ],
)
def test_items_that_are_not_made_are_no_text(expression: str) -> None:
    with pytest.raises(TemplateError) as refused:
        render_value(f"{{{{ {expression} }}}}", SCOPE)
    assert ITEMS in str(refused.value)
    assert expression in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (UPPER, ["A", "B"]),
        (f"{UPPER} ~ '!'", "['A', 'B']!"),
        (f"{UPPER} | string", "['A', 'B']"),
        (f"[{UPPER}] | tojson", '[["A","B"]]'),
        (f"{UPPER} | first", "A"),
        (f"{UPPER} | list | length", 2),
        ("'ab' | reverse", "ba"),
    ],
)
def test_items_are_values_wherever_they_were_before(expression: str, expected: Any) -> None:
    assert render_value(f"{{{{ {expression} }}}}", SCOPE) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ namespace() ~ '' }}",
        "{% set ns = namespace(a=1) %}{{ ns }}",
        "{% set ns = namespace(a=range) %}{{ ns.a ~ '' }}",
        "{% for x in xs %}{{ loop }}{% endfor %}",
        "{% for x in xs %}{{ loop ~ '' }}{% endfor %}",
        "{% for x in xs %}{{ [loop] }}{% endfor %}",
        "{{ cycler }}",
        "{{ joiner }}",
        "{{ lipsum }}",
        "{{ self }}",
    ],
)
def test_the_state_of_a_template_is_no_value(template: str) -> None:
    with pytest.raises(TemplateError, match=r"value|undefined"):
        render_value(template, SCOPE)


def test_a_view_is_written_as_what_it_shows() -> None:
    class Shown(Lookup):
        def to_plain(self) -> Any:
            return {"a": 1}

    assert render_value("{{ [v] | string }}", {"v": Shown()}) == "[{'a': 1}]"
    assert render_value("{{ v ~ '' }}", {"v": Shown()}) == "{'a': 1}"
