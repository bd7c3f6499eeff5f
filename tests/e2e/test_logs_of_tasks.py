"""Lines of tasks on a whole stack: as they come, after `kill -9` of the worker, after a timeout."""

import subprocess
from typing import Any

import pytest
from tests.e2e.desk import PATIENCE_S, Desk
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)

KILLED = """\
workflow:
  - step: start
    tool:
      kind: python
      code: |
        import time
        print('begun')
        logging.warning('careful')
        time.sleep(10)
        print('ended')
"""
TIMED = """\
workflow:
  - step: start
    tool:
      kind: python
      timeout: 3
      code: |
        import time
        print('before the end')
        time.sleep(600)
"""


def lines(desk: Desk, execution_id: str, **query: str) -> list[dict[str, Any]]:
    answer = desk.get(f"/api/executions/{execution_id}/logs", **query)
    assert answer.is_success, answer.text
    found: list[dict[str, Any]] = answer.json()["lines"]
    return found


def test_a_killed_workers_lines_are_there_and_who_follows_sees_both_attempts(
    desk: Desk, stack: Stack
) -> None:
    execution_id = desk.begin(desk.write("killed-log", KILLED))
    follower = subprocess.Popen(  # noqa: S603 - our own command line
        desk.command("logs", execution_id, "start", "-f"),
        stdout=subprocess.PIPE,
        text=True,
        env=desk.environ,
    )
    wait_until(lambda: len(lines(desk, execution_id)) == 2, timeout_s=PATIENCE_S, what="two lines")
    stack.kill("worker-1")
    desk.wait_for(execution_id, "COMPLETED")
    found = [(line["attempt"], line["level"], line["text"]) for line in lines(desk, execution_id)]
    first, second = found[0][0], found[-1][0]
    assert first < second
    assert found == [
        (first, "", "begun"),
        (first, "warning", "careful"),
        (second, "", "begun"),
        (second, "warning", "careful"),
        (second, "", "ended"),
    ]
    out, _ = follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == 0
    shown = [line.partition(": ")[2] for line in out.splitlines()]
    assert shown == ["begun", "careful", "begun", "careful", "ended"]


def test_lines_before_a_timeout_are_there(desk: Desk) -> None:
    execution_id = desk.begin(desk.write("timed-log", TIMED))
    desk.wait_for(execution_id, "FAILED")
    typed = desk.type("logs", execution_id)
    assert typed.code == 0
    assert typed.out.endswith(" start #1.1 stdout: before the end\n")
    unknown = desk.type("logs", "7")
    assert unknown.code == 2
    assert "no execution 7" in unknown.err
