"""A call of a workbook entry is the entry's own task with the caller's fields over it."""

import msgspec
import pytest
from tests.support.canonical_document import build_document
from tests.support.playbooks import a_playbook, a_step, codes, judged

from noetl_playbook.model.playbook import Assertion, Step
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level

ROOT = """
workload: {n: 30}
workbook:
  - name: grade
    desc: Tells whether it is hot.
    tool: {kind: python, input: {n: null, limit: 25}, code: "result = {'hot': n > limit}"}
    assert: {expects: [n]}
  - name: get
    tool:
      kind: http
      endpoint: "{{ workload.api }}/x"
      headers: {Accept: json}
      retry: 2
  - name: send
    tool: {kind: http, method: POST}
"""


def the_step(step: str) -> Step:
    return a_step(step, root=ROOT)


def test_the_entry_gives_what_the_caller_does_not() -> None:
    (task,) = the_step("- {step: s, tool: {kind: workbook, name: grade, input: {n: 1}}}").tool
    assert (task.name, task.kind) == ("grade", "python")
    assert task.input == {"n": 1, "limit": 25}
    assert task.fields == {"code": "result = {'hot': n > limit}"}
    assert task.assert_ == Assertion(expects=("n",))


def test_names_come_from_the_entry_or_from_the_label() -> None:
    step = the_step("""
        - step: s
          tool:
            - {kind: workbook, name: grade, input: {n: 1}}
            - kind: workbook
              task: grade
              name: again
              input: {n: 2}
              assert: {returns: [hot], expects: [limit]}
            - {kind: workbook, task: get}
        """)
    assert [task.name for task in step.tool] == ["grade", "again", "task_2"]
    assert step.tool[1].assert_ == Assertion(expects=("n", "limit"), returns=("hot",))
    (single,) = the_step("- {step: s, tool: {kind: workbook, task: get}}").tool
    assert single.name == "s_task"


def test_mappings_merge_and_other_values_are_replaced() -> None:
    step = the_step("""
        - step: s
          tool:
            - {kind: workbook, name: get, url: "http://y", headers: {X: 1}, timeout: 3}
            - {kind: workbook, name: send, url: "http://z", with: {a: 1}}
        """)
    get, send = step.tool
    assert get.fields == {"url": "http://y", "headers": {"Accept": "json", "X": 1}}
    assert get.timeout == 3
    assert [rule.then.attempts for rule in get.rules] == [2]
    assert send.fields == {"url": "http://z", "method": "POST"}
    assert send.input == {"a": 1}


def test_a_call_written_beside_the_step_and_in_a_loop_is_a_call() -> None:
    step = the_step("""
        - step: s
          loop: {in: [1], iterator: i}
          tool: workbook
          name: grade
          input: {n: "{{ i }}"}
        """)
    assert (step.tool[0].name, step.tool[0].kind) == ("grade", "python")


def test_the_input_of_the_step_fills_parameters_and_nothing_that_the_entry_says() -> None:
    (task,) = the_step("""
        - step: s
          input: {n: 5, limit: 6, other: 7}
          tool: {kind: workbook, name: grade}
        """).tool
    assert task.input == {"n": 5, "limit": 25, "other": 7}


def test_older_constructs_apply_to_what_the_entry_is() -> None:
    step = the_step("""
        - step: s
          tool: {kind: workbook, name: get}
          retry: {when: "{{ response.more }}", next_call: {url: "{{ response.next }}"}}
        """)
    assert [task.name for task in step.tool] == ["get", "get__page"]
    assert step.tool[0].fields["url"] == '{{ iter.next_call.url | default((workload.api) ~ "/x") }}'


def test_the_canonical_form_holds_the_entrys_kind_and_stays_so() -> None:
    once = a_playbook("- {step: s, tool: {kind: workbook, name: grade, input: {n: 1}}}", root=ROOT)
    text = msgspec.json.encode(build_document(once)).decode()
    assert parse_playbook(text).playbook == once


def test_an_unused_entry_that_is_incomplete_is_only_a_warning() -> None:
    parsed = judged("- {step: s, tool: {kind: noop}}", root=ROOT)
    assert parsed.playbook is not None
    (problem,) = [item for item in parsed.problems if item.code == "E403"]
    assert (problem.path, problem.is_error) == ("workbook[2].tool", False)


def test_a_call_that_leaves_a_required_field_open_is_an_error() -> None:
    parsed = judged("- {step: s, tool: {kind: workbook, name: send}}", root=ROOT)
    assert parsed.playbook is None
    assert ("E403", "workflow[0].tool", True) in [
        (problem.code, problem.path, problem.is_error) for problem in parsed.problems
    ]


@pytest.mark.parametrize("level", list(Level))
def test_an_unknown_entry_is_told_with_the_nearest(level: Level) -> None:
    parsed = judged(
        "- {step: s, tool: [{kind: workbook, task: grad}, {kind: workbook, name: gte}]}",
        root=ROOT.replace("retry: 2", ""),
        level=level,
    )
    assert parsed.playbook is None
    problems = [problem for problem in parsed.problems if problem.code == "E202"]
    assert [(item.path, item.hint) for item in problems] == [
        ("workflow[0].tool[0].task", "did you mean 'grade'?"),
        ("workflow[0].tool[1].name", "did you mean 'get'?"),
    ]


def test_a_template_of_the_entry_is_found_in_the_entry() -> None:
    parsed = judged(
        "- {step: s, tool: {kind: workbook, name: w}}",
        root='workbook: [{name: w, tool: {kind: http, url: "{{ a | uper }}"}}]\n',
    )
    assert [(problem.code, problem.path) for problem in parsed.problems] == [
        ("E302", "workbook[0].tool.url")
    ]


def test_an_entry_calls_no_other_and_holds_one_task() -> None:
    root = """
workbook:
  - {name: a, tool: {kind: workbook, name: b}}
  - {name: b, tool: {kind: noop, sink: {tool: postgres}}}
"""
    parsed = judged("- {step: s, tool: {kind: workbook, name: a}}", root=root)
    assert parsed.playbook is None
    assert {"E403", "W903"} <= set(codes(parsed))
