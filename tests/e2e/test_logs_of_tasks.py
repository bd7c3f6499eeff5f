"""Lines of tasks on a whole stack: as they come, after `kill -9` of the worker, after a timeout."""

import subprocess
from typing import Any

import pytest
from tests.e2e.command_line import PATIENCE_S, CommandLine
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


def lines(command_line: CommandLine, execution_id: str, **query: str) -> list[dict[str, Any]]:
    answer = command_line.get(f"/api/executions/{execution_id}/logs", **query)
    assert answer.is_success, answer.text
    found: list[dict[str, Any]] = answer.json()["lines"]
    return found


def test_a_killed_workers_lines_are_there_and_who_follows_sees_both_attempts(
    command_line: CommandLine, stack: Stack
) -> None:
    execution_id = command_line.begin(command_line.write("killed-log", KILLED))
    follower = subprocess.Popen(  # noqa: S603 - our own command line
        command_line.command("logs", execution_id, "start", "-f"),
        stdout=subprocess.PIPE,
        text=True,
        env=command_line.environ,
    )
    wait_until(
        lambda: len(lines(command_line, execution_id)) == 2, timeout_s=PATIENCE_S, what="two lines"
    )
    stack.kill("worker-1")
    command_line.wait_for(execution_id, "COMPLETED")
    found = [
        (line["attempt"], line["level"], line["text"]) for line in lines(command_line, execution_id)
    ]
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


def test_lines_before_a_timeout_are_there(command_line: CommandLine) -> None:
    execution_id = command_line.begin(command_line.write("timed-log", TIMED))
    command_line.wait_for(execution_id, "FAILED")
    typed = command_line.type("logs", execution_id)
    assert typed.code == 0
    assert typed.out.endswith(" start #1.1 stdout: before the end\n")
    unknown = command_line.type("logs", "7")
    assert unknown.code == 2
    assert "no execution 7" in unknown.err
