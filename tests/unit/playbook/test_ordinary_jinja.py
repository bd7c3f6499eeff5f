"""Ordinary Jinja templates render as plain Jinja renders them, in every way that we render."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from noetl_playbook.templates import (
    expressions,
    jinja_fallback,
    json_render,
    output_forms,
    render_limits,
    syntax,
)
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.scope import ScopeParts, TemplateScope

CORPUS = yaml.safe_load((Path(__file__).parent / "jinja" / "ordinary.yaml").read_text("utf-8"))
VALUES: dict[str, Any] = CORPUS["values"]
TEMPLATES = [
    pytest.param(source, id=f"{feature}: {source}")
    for feature, sources in CORPUS["templates"].items()
    for source in sources
]
PLAIN = ImmutableSandboxedEnvironment(keep_trailing_newline=True)
# What the language leaves out of Jinja, each with what it says.
LEFT_OUT = {
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1) }}": "'macro' is not available",
    "{% call m() %}x{% endcall %}": "'callblock' is not available",
    "{% include 'a' %}": "'include' is not available",
    "{% import 'a' as b %}": "'import' is not available",
    "{% extends 'a' %}": "'extends' is not available",
    "{% block a %}{% endblock %}": "'block' is not available",
    "{% for x in [1] recursive %}{% endfor %}": "'for' is not available",
    "{% autoescape true %}{% endautoescape %}": "is not available",
    "{{ 'a' | escape }}": "unknown filter 'escape'",
    "{{ 'a' | attr('b') }}": "unknown filter 'attr'",
    "{{ 'a' | xmlattr }}": "unknown filter 'xmlattr'",
    "{{ 'a' | wordwrap(3) }}": "unknown filter 'wordwrap'",
    "{{ 'a' | filesizeformat }}": "unknown filter 'filesizeformat'",
    "{{ cycler('a') }}": "'cycler' is undefined",
    "{{ joiner(',') }}": "'joiner' is undefined",
    "{{ lipsum() }}": "'lipsum' is undefined",
    "{{ numbers.append(1) }}": "method 'append' of a list is not available",
    "{{ user.pop('name') }}": "method 'pop' of a mapping is not available",
}


def scope(limits: render_limits.RenderLimits = render_limits.WORKER) -> TemplateScope:
    return TemplateScope({}, ScopeParts(workload=VALUES, limits=limits))


def plain_value(source: str) -> Any:
    """What plain Jinja gives: the value of a lone expression, else the text."""
    value = syntax.parse_template(source).value
    if value is None:
        return PLAIN.from_string(source).render(VALUES)
    inner = source.strip().removeprefix("{{").removesuffix("}}")
    return output_forms.to_plain(PLAIN.compile_expression(inner, undefined_to_none=False)(**VALUES))


def by_jinja(source: str) -> Any:
    """Render by Jinja's own code, also what our closures cover."""
    tree = syntax.parse_template(source)
    if tree.value is None:
        return jinja_fallback.compile_text_by_jinja(tree, "text")(scope())
    return output_forms.to_plain(jinja_fallback.compile_value_by_jinja(tree, tree.value)(scope()))


@pytest.mark.parametrize("source", TEMPLATES)
def test_it_renders_as_plain_jinja_does(source: str) -> None:
    expected = plain_value(source)
    expressions._compile_text_cached.cache_clear()
    assert compile_value(source).render(scope()) == expected
    assert compile_value(source).render(scope()) == expected
    assert json_render.render_as_json(source, scope(render_limits.PLANNER)) == expected
    assert by_jinja(source) == expected
    inside = compile_value({"list": [source]}).render(scope())
    assert inside == {"list": [expected]}


def test_the_corpus_is_large_and_says_nothing_twice() -> None:
    sources = [source for sources in CORPUS["templates"].values() for source in sources]
    assert len(sources) >= 300
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize(("source", "message"), LEFT_OUT.items())
def test_what_is_left_out_is_said(source: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_value(source).render(scope())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a {# kept #}", "a {# kept #}"),
        ("is {{ true }}, {{ none }}", "is true, null"),
        ("{{ words }}.", '["apple","pear","fig"].'),
        ("{{ '<a>' | tojson }}.", '"<a>".'),
    ],
)
def test_what_renders_otherwise_by_our_rules(source: str, text: str) -> None:
    assert compile_value(source).render(scope()) == text
