"""What registration says about the tasks inside an `external` one."""

import pytest

from noetl_playbook.parse.playbook import parse_playbook

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: s
    tool: {kind: external, %s}
"""


def codes(fields: str) -> list[str]:
    return [problem.code for problem in parse_playbook(HEAD % fields).problems if problem.is_error]


@pytest.mark.parametrize(
    "fields",
    [
        'submit: {kind: http, endpoint: "u", json: {a: "{{ callback.url }}"}}',
        "cancel: {kind: noop}, mode: approval, title: t, description: d, options: [a]",
        'submit: {kind: python, code: "return 1", input: {a: 1}, timeout: 5}',
    ],
)
def test_good_tasks_inside_are_left_alone(fields: str) -> None:
    assert codes(fields) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("submit: {kind: postgres, query: q}", "E403"),
        ("submit: later", "E104"),
        ("cancel: {kind: http, method: POST}", "E403"),
    ],
)
def test_other_kinds_and_missing_fields_are_refused(fields: str, code: str) -> None:
    assert codes(fields) == [code]


def test_a_misspelt_field_inside_is_named() -> None:
    problems = parse_playbook(HEAD % "submit: {kind: http, url: u, jsn: {}}").problems
    assert any("jsn" in problem.message for problem in problems)


def test_a_description_is_the_approvals_own() -> None:
    playbook = parse_playbook(HEAD % "mode: approval, description: why").playbook
    assert playbook is not None
    assert playbook.workflow[0].tool[0].fields["description"] == "why"
