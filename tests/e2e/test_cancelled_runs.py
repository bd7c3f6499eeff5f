"""A run that somebody cancels ends once, stops working, and says so with its exit code."""

import asyncio
import subprocess

import asyncpg
import pytest
from tests.e2e.command_line import PATIENCE_S, CommandLine
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(120)

ITEMS = """\
workflow:
  - step: start
    loop: {in: "{{ range(500) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "import time; time.sleep(0.2)"}
"""
ROWS = """\
workflow:
  - step: start
    loop:
      cursor:
        kind: postgres
        auth: pg_target
        claim: |
          UPDATE e2e_queue SET status = 'claimed' WHERE id IN (
            SELECT id FROM e2e_queue WHERE status = 'pending'
            ORDER BY id LIMIT {{ __frame_max_rows | int }} FOR UPDATE SKIP LOCKED) RETURNING id
      iterator: job
      spec: {mode: cursor, max_in_flight: 2, frame: {process: row, max_rows: 2}}
    tool: {kind: postgres, auth: pg_target, query: "SELECT pg_sleep(0.2)"}
"""
ENDS = {"playbook.completed", "playbook.failed", "execution.cancelled"}


async def seed(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "DROP TABLE IF EXISTS e2e_queue;"
            "CREATE TABLE e2e_queue (id bigint PRIMARY KEY, status text NOT NULL);"
            "INSERT INTO e2e_queue SELECT n, 'pending' FROM generate_series(1, 500) AS n"
        )
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("name", "progress"), [("items", "call.done"), ("rows", "frame.committed")]
)
def test_a_cancelled_loop_ends_once_and_its_history_stops_growing(
    command_line: CommandLine, stack: Stack, name: str, progress: str
) -> None:
    asyncio.run(seed(stack.url("target")))
    execution_id = command_line.begin(command_line.write(name, ITEMS if name == "items" else ROWS))
    with subprocess.Popen(  # noqa: S603 - our own command line
        command_line.command("run", "--attach", execution_id),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=command_line.environ,
    ) as follower:
        command_line.wait_for_event(execution_id, progress)
        assert command_line.type("cancel", execution_id).code == 0
        output, _ = follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == 3, output
    assert "CANCELLED" in output
    command_line.wait_for(execution_id, "CANCELLED")
    kinds = command_line.kinds(execution_id)
    assert [kind for kind in kinds if kind in ENDS] == ["execution.cancelled"]
    assert kinds.count(progress) < 250
    # Another run on the same worker has come and gone: whatever was late has been heard.
    later = command_line.write("later", "workflow:\n  - step: start\n    tool: {kind: noop}\n")
    assert command_line.type("run", later).code == 0
    wait_until(
        lambda: not command_line.status(execution_id).get("current_step"),
        timeout_s=PATIENCE_S,
        what="no step is shown as live",
    )
    assert set(command_line.kinds(execution_id)[len(kinds) :]) <= {"command.rejected"}
    assert command_line.type("cancel", execution_id).code == 0
    assert command_line.kinds(execution_id).count("execution.cancelled") == 1
