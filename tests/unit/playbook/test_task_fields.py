"""Which words of a step and a task are fields of the kind, and which are not."""

import pytest
from tests.support.playbooks import a_step, codes, judged

from noetl_playbook.source.problems import Level

OBJECT = "kind: nats, operation: object_get, bucket: b"


@pytest.mark.parametrize(
    "tool", ["tool: {kind: noop}", "tool: [{kind: noop}]", "tool: {kind: external, title: t}"]
)
def test_a_step_is_described_in_either_word(tool: str) -> None:
    for word in ("desc", "description"):
        workflow = f'- {{step: a, {word}: "{{{{ not a template", {tool}}}'
        assert judged(workflow, level=Level.STRICT).problems == ()
        step = a_step(workflow)
        assert step.desc == "{{ not a template"
        assert "description" not in step.tool[0].fields
    assert a_step(f"- {{step: a, desc: b, description: c, {tool}}}").desc == "b"


def test_a_description_alone_is_no_task() -> None:
    workflow = "- {step: a, description: what only routes}"
    assert codes(judged(workflow)) == ["E106"]
    assert a_step(workflow).desc == "what only routes"


def test_a_description_beside_the_name_of_a_tool_is_the_tasks() -> None:
    step = a_step("- {step: a, tool: external, mode: approval, title: t, description: d}")
    assert step.tool[0].fields["description"] == "d"
    assert step.desc is None


def test_a_stream_of_nats_is_a_name() -> None:
    task = a_step("- {step: a, tool: {kind: nats, operation: js_stream_info, stream: s}}").tool[0]
    assert task.fields["stream"] == "s"
    assert task.stream is None


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (f"tool: {{name: report, {OBJECT}}}", "report"),
        (f"tool: [{{name: report, {OBJECT}}}]", "report"),
        (f"tool: {{name: report, {OBJECT}, input: {{name: other}}}}", None),
        (f"input: {{name: other}}, tool: {{name: report, {OBJECT}}}", None),
        ("tool: {name: report, kind: nats, operation: kv_keys, bucket: b}", None),
    ],
)
def test_a_task_on_an_object_may_be_named_as_it(step: str, name: str | None) -> None:
    assert a_step(f"- {{step: a, {step}}}").tool[0].fields.get("name") == name


def test_an_object_is_not_named_as_a_task_that_is_named_by_nobody_or_by_a_caller() -> None:
    workbook = f"workbook: [{{name: fetch, tool: {{{OBJECT}}}}}]\n"
    assert codes(judged(f"- {{step: a, tool: {{{OBJECT}}}}}")) == ["E403"]
    called = judged("- {step: a, tool: {kind: workbook, task: fetch, name: x}}", root=workbook)
    assert [
        (problem.path, problem.is_error) for problem in called.problems if problem.code == "E403"
    ] == [
        ("workbook[0].tool", False),
        ("workflow[0].tool", True),
    ]


@pytest.mark.parametrize(
    "tool",
    [
        "{kind: transfer, source: {type: data}, target: {type: postgres, table: t}}",
        "{kind: container}",
        "{kind: nats, operation: kv_get}",
        "{kind: artifact, action: get}",
    ],
)
def test_what_an_entry_of_the_workbook_leaves_open_is_a_warning(tool: str) -> None:
    root = f"workbook: [{{name: e, tool: {tool}}}]\n"
    unused = judged("- {step: a, tool: {kind: noop}}", root=root)
    assert unused.playbook is not None
    assert set(codes(unused)) == {"E403"}
    assert judged("- {step: a, tool: {kind: workbook, name: e}}", root=root).playbook is None


@pytest.mark.parametrize("kind", ["playbook", "http", "python"])
def test_inputs_of_other_kinds_fill_no_field(kind: str) -> None:
    inputs = "input: {path: p, url: u, code: c}"
    assert codes(judged(f"- {{step: a, tool: {{kind: {kind}, {inputs}}}}}")) == ["E403"]


@pytest.mark.parametrize("given", ["requests==2.32.3", "[requests, 'rich==13.9']"])
def test_a_python_task_requires_packages_and_asks_for_the_network(given: str) -> None:
    fields = f"kind: python, code: x, requirements: {given}, spec: {{network: true}}"
    workflow = f"- {{step: a, tool: {{{fields}}}}}"
    assert judged(workflow, level=Level.STRICT).problems == ()
    assert a_step(workflow).tool[0].fields["network"] is True


def test_only_a_python_task_asks_for_the_network() -> None:
    workflow = "- {step: a, tool: {kind: noop, spec: {network: true}}}"
    assert codes(judged(workflow)) == ["E103"]
