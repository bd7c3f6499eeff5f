"""Templates that are made to take for ever: each ends with its own error, in any place."""

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl_chassis import computation_deadline
from noetl_playbook.templates import render_limits
from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value
from noetl_playbook.templates.render_limits import RenderLimits
from noetl_playbook.templates.scope import ScopeParts, TemplateScope

LIMIT_S = 0.3
DOUBLED = (
    "{% set n = namespace(a=[1, 2], b=[1, 2], t=(1,), s='ab', d=({},)) %}"
    "{% for i in range(45) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}"
    "{% set n.t = (n.t, n.t) %}{% endfor %}"
)
# Each visits two to the power of forty-five values, if nothing stops it.
ENDLESS = (
    "n.a == n.b",
    "n.a != n.b",
    "n.a < n.b",
    "1 < 2 and n.a <= n.b",
    "n.a in [n.b]",
    "n.a not in [n.b]",
    "[n.a, n.b] | sort",
    "[n.a, n.b] | max",
    "[n.a, n.b] | unique | list",
    "[n.t] | unique | list",
    "[n.a].index(n.b)",
    "[n.a].count(n.b)",
    "{n.t: 1}",
    "{}[n.t]",
    "{}.get(n.t)",
    "dict([(n.t, 1)])",
    "n.a is eq n.b",
    "[n.a] | select('eq', n.b) | list",
    "[n.a] | select('in', [n.b]) | list",
    "[{'k': n.a}, {'k': n.b}] | groupby('k')",
    "{'a': n.a, 'b': n.b} | dictsort(by='value')",
    "n.a",
    "n.a ~ 'x'",
    "n.a | string",
    "n.a | tojson",
    "n.a | pprint",
    "n.a | upper",
    "n.a | md5",
    "n.a | split",
    "n.a | regex_search('x')",
    "[n.a] | join",
    "','.join([n.a])",
    "'a'.replace('a', n.a)",
    "'x' | replace('x', n.a)",
    "'%s' | format(n.a)",
    "'%s' % [n.a]",
    "'{}'.format(n.a)",
    "[n.a] | map('string') | list",
    "{} | combine({'a': n.a})",
    "n.a | flatten(50)",
)
PIECES = st.sampled_from(
    (
        *ENDLESS,
        "10 ** 10 ** 10",
        "2 ** 10 ** 9",
        "range(10 ** 12) | list",
        "range(10 ** 9) | sum",
        "'x' * 10 ** 9",
        "[0] * 10 ** 9",
        "(1,) * 10 ** 9",
        "'%1000000000d' % 1",
        "'%1000000000d' | format(1)",
        "'{:1000000000}'.format(1)",
        "'x'.zfill(10 ** 9)",
        "'x' | center(10 ** 9)",
        "('a' * 40 ~ 'b') | regex_search('(a+)+$')",
        "('a' * 40 ~ 'b') | regex_findall('(a|aa)+$')",
        "('a' * 40 ~ 'b') | regex_replace('(a*)*$', 'x')",
        "('9' * 1000000) | int",
        "1e308 | int * 10 ** 400",
        "lipsum(10 ** 9)",
        "cycler(1, 2)",
        "range(99999) | map('string') | join | replace('1', 'x' * 100000)",
        "range(99999) | list | tojson(indent=100)",
        "range(99999) | batch(1) | list",
        "1.5 | round(10 ** 9)",
    )
)
BLOCKS = st.sampled_from(
    (
        "{{%% for i in range(9999) * 9999 %%}}{0}{{%% endfor %%}}",
        "{{%% for i in range(45) %%}}{{%% set n.s = n.s ~ n.s %%}}{{%% endfor %%}}{0}",
        "{{%% for i in range(45) %%}}{{%% set n.a = n.a + n.a %%}}{{%% endfor %%}}{0}",
        "{{%% macro m(x) %%}}{{{{ m(x) }}}}{{%% endmacro %%}}{{{{ m(1) }}}}{0}",
        "{{%% for i in [n.a, n.b] %%}}{{{{ loop.changed(i) }}}}{{%% endfor %%}}{0}",
        "{{%% if true %%}}{0}{{%% endif %%}}",
        "{0}",
    )
).map(lambda text: text.replace("%%", "%"))


@pytest.fixture
def guarded() -> Iterator[None]:
    """Interrupt what takes longer than its limit, as services do."""
    with computation_deadline.own_deadline_timer() as guard, render_limits.install_guard(guard):
        yield


def spent_on(template: str, *, is_condition: bool) -> float:
    """Render a template; return the processor's seconds. What is no template error is raised."""
    scope = TemplateScope({}, ScopeParts(limits=RenderLimits(seconds=LIMIT_S)))
    began_at = time.thread_time()
    with suppress(TemplateError):
        if is_condition:
            compile_condition(template).evaluate_condition(scope)
        else:
            compile_value(template).render(scope)
    return time.thread_time() - began_at


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("piece", ENDLESS)
def test_operation_on_lists_that_hold_lists_twice_is_refused_by_its_limit(piece: str) -> None:
    scope = TemplateScope({}, ScopeParts(limits=RenderLimits(seconds=LIMIT_S)))
    with pytest.raises(TemplateError, match=r"would visit more than|is not available"):
        compile_value(DOUBLED + "{{ " + piece + " }}").render(scope)


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("first", ["[1]", "(1,)"])
def test_list_that_doubles_itself_is_refused_by_its_length(first: str) -> None:
    template = (
        "{% set n = namespace(a=" + first + ") %}"
        "{% for i in range(45) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a | length }}"
    )
    with pytest.raises(TemplateError, match="the list would hold more than 10000000 items"):
        compile_value(template).render(TemplateScope({}, ScopeParts()))


@pytest.mark.usefixtures("guarded")
@settings(max_examples=60)
@given(piece=PIECES, block=BLOCKS, is_condition=st.booleans())
def test_every_template_ends_within_its_limit(
    piece: str,
    block: str,
    is_condition: bool,  # noqa: FBT001 (Hypothesis names it)
) -> None:
    template = DOUBLED + block.format("{{ " + piece + " }}")
    assert spent_on(template, is_condition=is_condition) < LIMIT_S + 1
