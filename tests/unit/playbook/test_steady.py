"""What the rows of a frame share is rendered once for all of them, and nothing else is."""

from collections import UserDict
from typing import Any

import pytest

from noetl_playbook.templates.expressions import compile_value
from noetl_playbook.templates.scope import ScopeParts, TemplateScope


class Watched(UserDict[str, Any]):
    """A mapping that counts how often it was asked."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return self.data.get(key, default)


def row(number: int, workload: Watched, steady: dict[Any, Any] | None) -> TemplateScope:
    fixed = {"workload": workload, "frame": {"id": "f"}, "iter": {"n": number}}
    return TemplateScope(fixed, ScopeParts(), steady=steady)


def rendered(template: str, *, steady: dict[Any, Any] | None) -> tuple[list[Any], int]:
    workload = Watched({"url": "http://a", "n": 3, "off": False, "list": [1], "none": None})
    compiled = compile_value(template)
    return [compiled.render(row(i, workload, steady)) for i in range(3)], workload.asked


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ workload.url }}/x/{{ frame.id }}", "http://a/x/f"),
        ("{{ workload.n | int }}", 3),
        ("{{ workload.off }}", False),
    ],
)
def test_a_template_of_steady_names_alone_is_rendered_once(template: str, value: Any) -> None:
    assert rendered(template, steady={}) == ([value] * 3, 1)
    assert rendered(template, steady=None) == ([value] * 3, 3)


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("{{ workload.n + iter.n }}", [3, 4, 5]),
        ("{{ workload.list }}", [[1]] * 3),
        ("{{ workload.none }}", [None] * 3),
    ],
)
def test_what_differs_and_what_could_be_changed_is_rendered_each_time(
    template: str, values: list[Any]
) -> None:
    assert rendered(template, steady={}) == (values, 3)


def test_a_scope_that_is_extended_shares_unless_a_steady_name_means_something_else() -> None:
    compiled = compile_value("{{ workload.n }}")
    first = row(0, Watched({"n": 1}), {})
    assert compiled.render(first) == 1
    assert compiled.render(first.extend_scope({"ctx": {}})) == 1
    assert compiled.render(first.extend_scope({"workload": {"n": 2}})) == 2
