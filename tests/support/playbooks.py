"""Builds playbook documents for tests: only what the test is about is written."""

import textwrap

from noetl_playbook.model.playbook import Playbook, Step
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbook
from noetl_playbook.source.problems import Level, find_severity

HEADER = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"


def document(workflow: str, *, root: str = "") -> str:
    """Write a whole document around its steps."""
    steps = textwrap.indent(textwrap.dedent(workflow).strip("\n"), "  ")
    return f"{HEADER}{textwrap.dedent(root)}workflow:\n{steps}\n"


def judged(workflow: str, *, root: str = "", level: Level = Level.TOLERANT) -> ParsedPlaybook:
    """Parse a document around steps."""
    return parse_playbook(document(workflow, root=root), level=level)


def a_playbook(workflow: str, *, root: str = "") -> Playbook:
    """Parse a document that must be fine."""
    parsed = judged(workflow, root=root)
    assert parsed.playbook is not None, parsed.problems
    return parsed.playbook


def a_step(workflow: str, *, root: str = "") -> Step:
    """Give the first step of a document that must be fine."""
    return a_playbook(workflow, root=root).workflow[0]


def codes(parsed: ParsedPlaybook) -> list[str]:
    """List the codes of the problems, in order."""
    return [problem.code for problem in parsed.problems]


def told_at_both_levels(strict: ParsedPlaybook) -> list[tuple[str, str]]:
    """List what a strict reading says, without what the other one says nothing of."""
    return [
        (problem.code, problem.path)
        for problem in strict.problems
        if find_severity(problem.code, Level.TOLERANT) is not None
    ]
