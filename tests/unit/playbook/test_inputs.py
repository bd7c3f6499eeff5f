"""Inputs that a playbook has, by what it declares and by what it reads."""

from typing import Any

import pytest

from noetl_playbook.model.playbook import Playbook
from noetl_playbook.parse import inputs
from noetl_playbook.parse.inputs import InputFault
from noetl_playbook.parse.playbook import parse_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def read(workload: str, result: str = "1") -> Playbook:
    declared = f"workload: {workload}\n" if workload else ""
    tool = f"{{kind: noop, result: {result}}}"
    parsed = parse_playbook(f"{HEAD}{declared}workflow:\n  - {{step: fetch, tool: {tool}}}\n")
    assert parsed.playbook is not None, parsed.problems
    return parsed.playbook


def judge(playbook: Playbook, given: dict[str, Any]) -> InputFault | None:
    return inputs.find_input_fault(playbook.workload, playbook.inputs, given)


def test_a_mistyped_name_is_refused_with_the_nearest_one_and_all_others() -> None:
    fault = judge(read("{region: eu, api: x}"), {"regoin": "us"})
    assert fault is not None
    assert fault.is_refused
    assert fault.full_text == (
        "the playbook has no input 'regoin'; its workload has api, region "
        "(did you mean 'region'? otherwise declare it under workload in the playbook, "
        "or leave it out)"
    )


def test_several_names_are_told_together() -> None:
    fault = judge(read("{region: eu}"), {"regoin": 1, "q": 2})
    assert fault is not None
    assert "no inputs 'regoin', 'q'" in fault.message


@pytest.mark.parametrize(
    ("result", "name"),
    [
        ('"{{ workload.token }}"', "token"),
        ("\"{{ workload['token'] }}\"", "token"),
        ("\"{{ workload.get('token') }}\"", "token"),
        ("\"{{ 'token' in workload }}\"", "token"),
        ('"{{ workload.token is defined }}"', "token"),
        ('"{{ payload.token.value | default(1) }}"', "token"),
        ('"{{ customer | default(1) }}"', "customer"),
        # These read all of them.
        ('"{{ workload }}"', "anything"),
        ('"{{ workload.items() | list }}"', "anything"),
        ('"{{ workload[workload.region] }}"', "anything"),
        ('"{% for key in workload %}{{ key }}{% endfor %}"', "anything"),
    ],
)
def test_a_name_that_something_reads_is_an_input(result: str, name: str) -> None:
    assert judge(read("{region: eu}", result), {name: 1}) is None


@pytest.mark.parametrize(
    "result",
    [
        '"{{ region }}"',
        # A name of the language, of a step, of a loop inside the template.
        '"{{ execution_id }}"',
        '"{{ fetch is defined }}"',
        "\"{% for other in workload.get('rows', []) %}{{ other.x }}{% endfor %}\"",
    ],
)
def test_names_that_mean_something_else_are_no_inputs(result: str) -> None:
    playbook = read("{region: eu}", result)
    for name in ("execution_id", "fetch", "other"):
        assert judge(playbook, {name: 1}) is not None


@pytest.mark.parametrize(
    ("code", "name", "is_input"),
    [
        ("result = workload['token']", "token", True),
        ("result = context.get('token', 1)", "token", True),
        ("result = workload['token']", "tokn", False),
        ("result = 'no more'", "token", False),
        ("result = dict(workload)", "anything", True),
        ("result = context['workload']", "anything", True),
        ("def main(workload):\n    return workload['token']", "anything", False),
        ("result = workload[", "anything", True),
    ],
)
def test_python_code_reads_inputs(code: str, name: str, *, is_input: bool) -> None:
    body = "".join(f"        {line}\n" for line in code.splitlines())
    step = "workflow:\n  - step: s\n    tool:\n      kind: python\n      code: |\n"
    playbook = parse_playbook(f"{HEAD}workload: {{region: eu}}\n{step}{body}").playbook
    assert playbook is not None
    assert (judge(playbook, {name: 1}) is None) is is_input


def test_below_a_mapping_only_a_mistyped_key_is_refused() -> None:
    playbook = read("{db: {host: a, port: 1}, order: {}}", '"{{ workload.db.host }}"')
    fault = judge(playbook, {"db": {"hsot": "b"}})
    assert fault is not None
    assert fault.message == "the playbook has no input 'db.hsot'; 'db' has host, port"
    assert "did you mean 'db.host'?" in fault.hint
    assert judge(playbook, {"db": {"password": "b"}}) is None
    assert judge(playbook, {"order": {"total": 1}}) is None
    # Whoever reads the mapping as a whole reads every key of it.
    whole = read("{db: {host: a}}", '"{{ workload.db }}"')
    assert judge(whole, {"db": {"hsot": "b"}}) is None


def test_a_playbook_without_inputs_is_told_and_not_refused() -> None:
    fault = judge(read(""), {"region": "us"})
    assert fault is not None
    assert not fault.is_refused
    assert "it reads none" in fault.message


def test_without_a_workload_what_is_read_counts() -> None:
    fault = judge(read("", '"{{ workload.region }}"'), {"regoin": "us"})
    assert fault is not None
    assert fault.is_refused
    assert "it reads region" in fault.message


def test_the_input_of_a_schedules_firing_is_always_taken() -> None:
    assert judge(read("{region: eu}"), {"schedule": {"name": "daily"}}) is None


def test_a_playbook_that_was_stored_before_takes_every_input() -> None:
    assert inputs.find_model_input_fault({"workload": {"region": "eu"}}, {"regoin": 1}) is None


def test_the_older_dialect_is_told_and_not_refused() -> None:
    model = {"workload": {"region": "eu"}, "inputs": [["region"]]}
    lenient = {**model, "executor": {"spec": {"undefined": "lenient"}}}
    strict = {**model, "executor": {"spec": {"undefined": "strict"}}}
    for item, is_refused in ((lenient, False), (strict, True)):
        fault = inputs.find_model_input_fault(item, {"regoin": 1})
        assert fault is not None
        assert fault.is_refused is is_refused
