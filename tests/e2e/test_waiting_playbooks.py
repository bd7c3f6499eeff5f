# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Playbooks that wait for others, for messages and for people, on a real stack."""

import pytest
from tests.e2e.command_line import PATIENCE_S, CommandLine
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(120)

CHILD = """\
workload: {n: 0}
workflow:
  - {step: hold, tool: {kind: external, mode: signal, correlation_key: "child-{{ workload.n }}"}, next: {arcs: [{step: say}]}}
  - {step: say, tool: {kind: noop, result: {said: "{{ hold.n * workload.n }}"}}}
"""
PARENT = """\
workflow:
  - step: each
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
    tool:
      - {name: before, kind: noop, result: {seen: "{{ iter.n }}"}}
      - {name: ask, kind: playbook, path: e2e/child, return_step: say, input: {n: "{{ iter.n }}"}}
      - {name: after, kind: noop, result: "{{ before.seen * 100 + ask.said }}"}
    set: {ctx.all: "{{ each.results }}"}
"""
RELEASE = """\
workflow:
  - step: ask
    tool: {kind: external, mode: approval, title: "Release it?", assignees: [ops], options: ["yes", "no"]}
    set: {ctx.decision: "{{ ask.decision }}", ctx.rank: "{{ ask.data.rank }}"}
"""


def waits(command_line: CommandLine, execution_id: str, count: int) -> None:
    command_line.wait_for_event(execution_id, "command.parked", count)


def test_children_outlive_the_worker_that_started_them(
    command_line: CommandLine, stack: Stack
) -> None:
    child = command_line.write("child", CHILD)
    parent = command_line.begin(command_line.write("parent", PARENT), "--with", child, "--register")
    waits(command_line, parent, 3)
    stack.kill("worker-1")
    for n in (3, 1, 2):
        sent = command_line.type("signal", f"child-{n}", "--data", '{"n": 10}')
        assert sent.code == 0, sent
    shown = command_line.wait_for(parent, "COMPLETED")
    assert shown["variables"] == {"all": [110, 220, 330]}
    kinds = command_line.kinds(parent)
    for kind in ("command.parked", "child.started", "child.ended", "command.resumed"):
        assert kinds.count(kind) == 3, kind
    assert "command.reissued" not in kinds
    assert_parity(stack, parent)


def test_a_person_decides_at_the_terminal(command_line: CommandLine, stack: Stack) -> None:
    execution_id = command_line.begin(command_line.write("release", RELEASE))

    def is_asked() -> bool:
        return "Release it?" in command_line.type("approvals").out

    wait_until(is_asked, timeout_s=PATIENCE_S, what="the approval is listed")
    assert_parity(stack, execution_id)
    line = next(
        item for item in command_line.type("approvals").out.splitlines() if execution_id in item
    )
    approval_id = line.split()[0]
    wrong = command_line.type("approve", approval_id, "--decision", "yess")
    assert wrong.code == 2
    assert "'yess' is not one of yes, no" in wrong.err
    decided = command_line.type("approve", approval_id, "-d", "yes", "--data", '{"rank": 3}')
    assert decided.code == 0, decided
    shown = command_line.wait_for(execution_id, "COMPLETED")
    assert shown["variables"] == {"decision": "yes", "rank": 3}
    assert command_line.type("approve", approval_id, "-d", "no").code == 2
    assert command_line.type("approve", "12345").code == 2
    assert_parity(stack, execution_id)


def test_a_signal_before_its_wait_is_kept_also_while_no_planner_runs(
    command_line: CommandLine, stack: Stack
) -> None:
    assert command_line.type("signal", "child-7", "--data", '{"n": 6}').code == 0
    again = http.post(stack.url("api") + "/api/signals/child-7", json={"n": 6}, timeout=60)
    assert (again.status_code, again.json()["repeated"]) == (200, True)
    other = http.post(stack.url("api") + "/api/signals/child-7", json={"n": 5}, timeout=60)
    assert other.status_code == 409
    stack.kill("planner-1")
    execution_id = command_line.begin(command_line.write("child", CHILD), "--set", "n=7")
    command_line.wait_for(execution_id, "COMPLETED")
    assert command_line.kinds(execution_id).count("command.resumed") == 1
    assert_parity(stack, execution_id)


def test_broker_and_all_that_it_held_may_go_while_a_parent_waits(
    command_line: CommandLine, stack: Stack
) -> None:
    child = command_line.write("child", CHILD)
    call = """\
workflow:
  - step: call
    tool: {kind: playbook, path: e2e/child, return_step: say, input: {n: 8}}
    set: {ctx.said: "{{ call.said }}"}
"""
    parent = command_line.begin(command_line.write("waiting", call), "--with", child, "--register")
    waits(command_line, parent, 1)
    stack.wipe_nats()

    def is_sent() -> bool:
        return command_line.type("signal", "child-8", "--data", '{"n": 8}').code == 0

    wait_until(is_sent, timeout_s=PATIENCE_S, what="the signal is taken")
    assert command_line.wait_for(parent, "COMPLETED")["variables"] == {"said": 64}
    assert_parity(stack, parent)
