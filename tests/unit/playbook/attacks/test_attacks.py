"""Hostile templates: nothing of Python shows through, and nothing takes for ever."""

import contextlib
import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.attacks import BOMBS, INJECTIONS, playbook

from noetl_chassis import computation_deadline
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level
from noetl_playbook.templates import render_limits
from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value
from noetl_playbook.templates.render_limits import RenderLimits
from noetl_playbook.templates.scope import ScopeParts, TemplateScope, TimeSource

NOW = datetime(2026, 1, 2, tzinfo=UTC)
# Short enough that a corpus ends soon; which limit ends a render is not what is shown here.
SHORT = RenderLimits(seconds=0.2)


class Service:
    """What must never be in a scope; if it were, nothing of it could be reached."""

    password = "geheim-4711"  # noqa: S105 - a value for the test

    def run(self) -> str:
        return self.password


def scope() -> TemplateScope:
    workload = {
        "row": {"x": 1},
        "rows": [{"x": 1}, {"x": 2}],
        "day": NOW,
        "service": Service(),
        "text": "{{ row.x }}",
    }
    clock = TimeSource(now=lambda: NOW, new_uuid=lambda: "0-0")
    return TemplateScope(
        {"iter": {}, **clock.build_names()}, ScopeParts(workload=workload, limits=SHORT)
    )


@pytest.fixture(autouse=True)
def _guard() -> Iterator[None]:
    with computation_deadline.own_deadline_timer() as guard, render_limits.install_guard(guard):
        yield


def test_the_corpora_are_of_some_size() -> None:
    assert len(INJECTIONS) > 100
    assert len(BOMBS) > 60


@pytest.mark.parametrize("template", INJECTIONS)
def test_an_injection_is_refused_and_changes_nothing(template: str) -> None:
    names = scope()
    before = copy.deepcopy(names.parts.workload["rows"])
    for source in (template, f"a {template}", {"k": [template]}):
        with pytest.raises(TemplateError) as caught:
            compile_value(source).render(names)
        assert "geheim" not in str(caught.value)
    assert names.parts.workload["rows"] == before


@pytest.mark.parametrize("template", INJECTIONS)
def test_an_injection_in_a_condition_gives_true_or_false_or_an_error(template: str) -> None:
    try:
        verdict, undefined = compile_condition(template).evaluate_condition(scope())
    except TemplateError:
        return
    assert isinstance(verdict, bool)
    assert undefined is None or not verdict


@pytest.mark.parametrize("template", BOMBS)
def test_a_bomb_ends_in_an_error(template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_value(template).render(scope())
    assert caught.value.kind in {"template", "limit"}


@pytest.mark.parametrize("template", [*INJECTIONS, *BOMBS])
def test_looking_at_a_document_runs_nothing_of_it(template: str) -> None:
    for level in Level:
        found = parse_playbook(
            playbook({"tool": {"kind": "noop", "result": template}}), level=level
        )
        assert all(problem.line for problem in found.problems)


@pytest.mark.parametrize(
    "template",
    ["{{ service.password }}", "{{ service.run() }}", "{{ service }}", "{{ service | string }}"],
)
def test_an_object_shows_nothing_of_itself(template: str) -> None:
    try:
        found = compile_value(template).render(scope())
    except TemplateError as error:
        found = str(error)
    assert "geheim" not in str(found)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ text }}", "{{ row.x }}"),
        ("a {{ text }}", "a {{ row.x }}"),
        ("{{ '{{ row.x }}' }}", "{{ row.x }}"),
        ("{{ [text] }}", ["{{ row.x }}"]),
        ("{% set t = text %}{{ t }}", "{{ row.x }}"),
        ("{% raw %}{{ row.x }}{% endraw %}", "{{ row.x }}"),
        ("{{ '{' ~ '{ row.x }' ~ '}' }}", "{{ row.x }}"),
        ("{{ '{% for i in rows %}x{% endfor %}' }}", "{% for i in rows %}x{% endfor %}"),
    ],
)
def test_text_is_never_rendered_twice(template: str, expected: Any) -> None:
    once = compile_value(template).render(scope())
    assert once == expected
    assert compile_value({"a": template}).render(scope()) == {"a": expected}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("piece", ["{{`", "{{ ", "{% raw %}", "{{ '", "{%", "`}}", "{{`a`}}", "{#"])
def test_a_long_template_is_read_in_one_pass(piece: str) -> None:
    with contextlib.suppress(TemplateError):
        compile_value(piece * (256 * 1024 // len(piece)))
