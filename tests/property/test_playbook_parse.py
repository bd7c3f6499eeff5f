"""Whatever the text, parsing answers; and it answers the same every time."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.playbooks import HEADER, told_at_both_levels

from noetl_playbook.model.playbook import Playbook
from noetl_playbook.parse.playbook import parse_playbook, parse_playbooks
from noetl_playbook.source.problems import Level

words = st.sampled_from(
    [
        *("step", "tool", "kind", "http", "postgres", "python", "noop", "url", "query", "code"),
        *("next", "arcs", "when", "then", "else", "do", "set", "ctx.a", "iter.b", "loop", "in"),
        *("cursor", "claim", "iterator", "spec", "mode", "parallel", "policy", "rules", "name"),
        *("output", "select", "input", "args", "case", "retry", "frame", "fanout", "reduce"),
        *("from", "{{ a.b }}", "{{ a", "{% if %}", "yes", "1", "a/b", "", "timeout", "30s"),
    ]
)
scalars = st.one_of(words, st.integers(-5, 5), st.booleans(), st.none(), st.floats(0, 9))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=15,
)
steps = st.lists(st.dictionaries(words, values, max_size=6), max_size=4)


def written(workflow: Any) -> str:
    """JSON is YAML; it keeps the test independent of how a dumper quotes."""
    return f"{HEADER}workflow: {msgspec.json.encode(workflow).decode()}\n"


@given(st.text())
@settings(max_examples=300)
def test_any_text_gives_an_answer(text: str) -> None:
    for parsed in (parse_playbook(text), *parse_playbooks(text)):
        assert parsed.playbook is not None or parsed.problems


@given(st.one_of(steps, values))
@settings(max_examples=500)
def test_any_workflow_gives_a_playbook_or_an_error(workflow: Any) -> None:
    text = written(workflow)
    parsed = parse_playbook(text)
    assert (parsed.playbook is None) == any(problem.is_error for problem in parsed.problems)
    assert parse_playbook(text) == parsed
    assert all(problem.line >= 1 and problem.column >= 1 for problem in parsed.problems)
    if parsed.playbook is not None:
        wire = msgspec.json.encode(parsed.playbook)
        assert msgspec.json.decode(wire, type=Playbook) == parsed.playbook


@given(steps)
@settings(max_examples=200)
def test_strict_finds_what_tolerant_finds(workflow: Any) -> None:
    tolerant = parse_playbook(written(workflow))
    strict = parse_playbook(written(workflow), level=Level.STRICT)
    problems = [(problem.code, problem.path) for problem in tolerant.problems]
    assert problems == told_at_both_levels(strict)
