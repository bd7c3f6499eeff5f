"""A run that somebody holds stands still, goes on exactly, and can be repeated from a step."""

import asyncio

import asyncpg
import pytest
from tests.e2e.command_line import PATIENCE_S, CommandLine
from tests.e2e.test_cancelled_runs import seed
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(180)

# Every row and item waits until the gate is open.
WAIT = (
    "DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM e2e_gate) LOOP"
    " PERFORM pg_sleep(0.02); END LOOP; END $$"
)
TOOL = f'{{kind: postgres, auth: pg_target, query: "{WAIT}"}}'
ITEMS = f"""\
workflow:
  - step: start
    loop:
      in: "{{{{ range(30) | list }}}}"
      iterator: n
      spec: {{mode: parallel, max_in_flight: 3}}
    tool: {TOOL}
"""
ROWS = f"""\
workflow:
  - step: start
    loop:
      cursor:
        kind: postgres
        auth: pg_target
        claim: |
          UPDATE e2e_queue SET status = 'claimed' WHERE id IN (
            SELECT id FROM e2e_queue WHERE status = 'pending' AND id <= 60
            ORDER BY id LIMIT {{{{ __frame_max_rows | int }}}} FOR UPDATE SKIP LOCKED) RETURNING id
      iterator: job
      spec: {{mode: cursor, max_in_flight: 2, frame: {{process: row, max_rows: 2}}}}
    tool: {TOOL}
"""  # noqa: S608 - our own text
LATER = "workflow:\n  - step: start\n    tool: {kind: noop}\n"


def live_commands(command_line: CommandLine, execution_id: str) -> int:
    kinds = command_line.kinds(execution_id)
    ended = ("command.completed", "command.failed", "command.cancelled")
    return kinds.count("command.issued") - sum(kinds.count(kind) for kind in ended)


async def run_sql(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("name", "begun", "progress"),
    [("items", "command.started", "call.done"), ("rows", "frame.started", "frame.committed")],
)
def test_a_held_loop_stands_still_and_goes_on_where_it_was(
    command_line: CommandLine, stack: Stack, name: str, begun: str, progress: str
) -> None:
    target = stack.url("target")
    asyncio.run(seed(target))
    asyncio.run(run_sql(target, "DROP TABLE IF EXISTS e2e_gate; CREATE TABLE e2e_gate (i int)"))
    execution_id = command_line.begin(
        command_line.write(f"held-{name}", ITEMS if name == "items" else ROWS)
    )
    command_line.wait_for_event(execution_id, begun, count=2)
    assert command_line.type("pause", execution_id, "--reason", "a look").code == 0
    command_line.wait_for(execution_id, "PAUSED")
    asyncio.run(run_sql(target, "INSERT INTO e2e_gate VALUES (1)"))
    if name == "items":
        wait_until(
            lambda: live_commands(command_line, execution_id) == 0,
            timeout_s=PATIENCE_S,
            what="what ran has finished",
        )
    else:
        command_line.wait_for_event(execution_id, "command.reissued", count=2)
    done = command_line.kinds(execution_id).count(progress)
    assert 0 < done < 30
    # Another run has come and gone on the same worker.
    assert command_line.type("run", command_line.write("later", LATER)).code == 0
    assert command_line.kinds(execution_id).count(progress) == done
    assert command_line.status(execution_id)["status"] == "PAUSED"
    assert command_line.type("resume", execution_id).code == 0
    command_line.wait_for(execution_id, "COMPLETED")
    kinds = command_line.kinds(execution_id)
    assert kinds.count(progress) == 30
    assert kinds.count("loop.done") == 1
    assert [kind for kind in kinds if kind.startswith("execution.")] == [
        "execution.paused",
        "execution.resumed",
    ]


def test_a_failed_run_is_repeated_from_the_step_that_failed(command_line: CommandLine) -> None:
    body = """\
workload: {divisor: 0}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'n': 42, 'blob': 'x' * 200000}"}
    set: {ctx.blob: "{{ start.blob }}"}
    next: {arcs: [{step: divide}]}
  - step: divide
    tool:
      kind: python
      input: {n: "{{ start.n }}", d: "{{ workload.divisor }}", blob: "{{ ctx.blob }}"}
      code: "result = {'q': n / d, 'size': len(blob)}"
"""
    failed = command_line.type("run", command_line.write("divide", body))
    assert failed.code == 1
    execution_id = failed.err.split()[1]
    command_line.wait_for(execution_id, "FAILED")
    repeated = command_line.type("rerun", execution_id, "--set-json", "divisor=2")
    assert repeated.code == 0, repeated
    again = repeated.err.split()[1]
    command_line.wait_for(again, "COMPLETED")
    entered = [
        event["node_name"]
        for event in command_line.events(again)
        if event["event_type"] == "step.enter"
    ]
    assert entered == ["divide"]
    shown = command_line.get(f"/api/result/{again}/divide").json()
    assert shown["data"] == {"q": 21, "size": 200_000}
