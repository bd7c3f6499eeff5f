"""Which versions of the language a document may name."""

import pytest

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level

REST = "kind: Playbook\nmetadata: {name: p}\nworkflow: [{step: a, tool: {kind: noop}}]\n"


def judged(head: str, level: Level) -> list[tuple[str, str]]:
    problems = parse_playbook(head + REST, level=level).problems
    return [(problem.code, problem.severity.value) for problem in problems]


@pytest.mark.parametrize("version", ["noetl.io/v2", "noetl.io/v10"])
@pytest.mark.parametrize("level", list(Level))
def test_the_current_version_and_its_other_name_are_accepted(version: str, level: Level) -> None:
    assert judged(f"apiVersion: {version}\n", level) == []


@pytest.mark.parametrize("head", ["", "apiVersion: noetl.io/v1\n"])
def test_the_first_version_and_none_are_older_forms(head: str) -> None:
    assert judged(head, Level.TOLERANT) == [("W901", "warning")]
    assert judged(head, Level.STRICT) == [("W901", "error")]


@pytest.mark.parametrize("level", list(Level))
def test_any_other_version_is_refused(level: Level) -> None:
    assert judged("apiVersion: noetl.io/v3\n", level) == [("E102", "error")]
