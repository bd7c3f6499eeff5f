"""What checks find is told by the events of a run, its status, and run after run."""

import json
from typing import Any

import pytest
from tests.e2e.command_line import CommandLine
from tests.support.parity import assert_parity
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)

PATH = "e2e/checked"
PLAYBOOK = """\
workload: {orders: [{id: 1}, {id: 2}], action: fail}
workflow:
  - step: load
    tool:
      kind: duckdb
      query: SELECT count(*) AS n FROM orders
      database: ":memory:"
      inputs:
        orders:
          rows: "{{ workload.orders }}"
          expect: {not_null: [id], row_count: {min: 1}, on_fail: "{{ workload.action }}"}
"""
BROKEN = ("--set-json", 'orders=[{"id": 1}, {"id": null}, {"id": null}]')


def list_checks(command_line: CommandLine, *options: str) -> list[dict[str, Any]]:
    answer = command_line.type("checks", PATH, *options, "--json")
    assert answer.code == 0, answer
    found: list[dict[str, Any]] = json.loads(answer.out)["checks"]
    return found


def test_runs_tell_what_their_checks_found_the_failed_ones_too(
    command_line: CommandLine, stack: Stack
) -> None:
    file = command_line.write("checked", PLAYBOOK)
    held = command_line.begin(file)
    command_line.wait_for(held, "COMPLETED")
    warned = command_line.begin(file, *BROKEN, "--set", "action=warn")
    command_line.wait_for(warned, "COMPLETED")
    failed = command_line.begin(file, *BROKEN)
    command_line.wait_for(failed, "FAILED")

    assert [
        (item["execution_id"], item["check"], item["is_met"], item["failed_rows"], item["measured"])
        for item in list_checks(command_line, "--dataset", "orders")
    ] == [
        (failed, "not_null id", False, 2, None),
        (failed, "row_count", True, None, 3),
        (warned, "not_null id", False, 2, None),
        (warned, "row_count", True, None, 3),
        (held, "not_null id", True, 0, None),
        (held, "row_count", True, None, 2),
    ]
    assert {item["execution_id"] for item in list_checks(command_line, "--broken")} == {
        warned,
        failed,
    }
    assert [item["execution_id"] for item in list_checks(command_line, "--limit", "1")] == 2 * [
        failed
    ]
    assert list_checks(command_line, "--step", "other") == []
    of_run = command_line.type("checks", "--execution", failed, "--json")
    reports = json.loads(of_run.out)["checks"]
    assert [(item["check"], item["is_met"]) for item in reports] == [
        ("not_null id", False),
        ("row_count", True),
    ]
    (ended_at,) = {item["version"] for item in reports}
    before = command_line.type("checks", "--execution", failed, "--at", str(ended_at - 1))
    assert f"No checks in {failed}." in before.out + before.err
    assert command_line.type("checks", PATH, "--execution", failed).code == 2
    (exited,) = [
        event
        for event in command_line.get(f"/api/executions/{failed}/events").json()["events"]
        if event["event_type"] == "step.exit"
    ]
    (task,) = exited["context"]["tasks"].values()
    assert [report["is_met"] for report in task["checks"]] == [False, True]
    assert_parity(stack, failed)

    status = command_line.type("status", failed)
    assert "1 of 2 checks broken (input 'orders': not_null id)" in status.out
    table = command_line.type("checks", PATH, "--broken")
    assert table.code == 0
    assert "2 rows break it" in table.out
    unknown = command_line.type("checks", "e2e/nothing")
    assert unknown.code == 0
    assert "No checks in 0 executions." in unknown.out + unknown.err
