# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Files of an execution on four workers, of which one is killed, through `down` and `up`, and in reruns."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.e2e.command_line import CommandLine
from tests.e2e.conftest import SETTINGS
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(300)

OPTIONS = ("--workers", "4", *SETTINGS[SETTINGS.index("--no-s3") :])
SALES = """\
workflow:
  - step: create
    tool: {kind: duckdb, database: sales.duckdb, query: "CREATE OR REPLACE TABLE sales AS SELECT 1 AS id"}
    next: {arcs: [{step: fill}]}
  - step: fill
    loop: {in: "{{ range(10) | list }}", iterator: n, spec: {mode: sequential}}
    tool: {kind: duckdb, database: sales.duckdb, query: "CREATE TABLE IF NOT EXISTS sales (id INTEGER); INSERT INTO sales VALUES ({{ iter.n }})"}
    next: {arcs: [{step: count}]}
  - step: count
    tool: {kind: duckdb, database: sales.duckdb, query: "SELECT count(*) AS n FROM sales"}
    set: {ctx.count: "{{ count.rows[0].n }}"}
"""
WAITING = """\
workflow:
  - step: write
    tool: {kind: python, code: "open('log.txt', 'w').write('a'); return 1"}
    next: {arcs: [{step: wait}]}
  - step: wait
    tool: {kind: external, mode: signal, correlation_key: "go-{{ execution_id }}", timeout: 1h}
    next: {arcs: [{step: extend}]}
  - step: extend
    tool: {kind: python, code: "open('log.txt', 'a').write('b'); return open('log.txt').read()"}
    set: {ctx.text: "{{ extend }}"}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with four workers, whose data outlives `down`."""
    with running_stack(tmp_path_factory.mktemp("files") / "stack", *OPTIONS) as running:
        yield running


@pytest.fixture
def command_line(stack: Stack, tmp_path: Path) -> CommandLine:
    """A person with an empty folder."""
    return CommandLine(stack, tmp_path)


def run_while_a_worker_is_killed(command_line: CommandLine, stack: Stack, seed: int) -> int:
    """Run the sales playbook, kill one of the workers at some item, and return the count."""
    random = Random(seed)
    execution_id = command_line.begin(command_line.write(f"sales-{seed}", SALES))
    command_line.wait_for_event(execution_id, "command.started", random.randint(1, 11))
    started = [
        event["context"]["worker_id"]
        for event in command_line.events(execution_id)
        if event["event_type"] == "command.started"
    ]
    victim = random.choice(started)
    names = [name for name in stack.names("worker") if name in victim]
    stack.kill((names or stack.names("worker"))[0])
    found = command_line.wait_for(execution_id, "COMPLETED")
    return int(found["variables"]["count"])


@pytest.mark.parametrize("seed", range(3))
def test_a_database_counts_right_whichever_worker_is_killed(
    command_line: CommandLine, stack: Stack, seed: int
) -> None:
    assert run_while_a_worker_is_killed(command_line, stack, seed) == 11


def test_a_rerun_begins_with_the_files_that_its_step_saw(command_line: CommandLine) -> None:
    execution_id = command_line.begin(command_line.write("sales-again", SALES))
    assert command_line.wait_for(execution_id, "COMPLETED")["variables"]["count"] == 11
    for step in ("fill", "count"):
        begun = command_line.type("rerun", execution_id, "--from", step, "--detach")
        assert begun.code == 0, begun
        again = begun.out.split()[-1]
        assert command_line.wait_for(again, "COMPLETED")["variables"]["count"] == 11


def test_files_are_there_after_down_and_up(command_line: CommandLine, stack: Stack) -> None:
    execution_id = command_line.begin(command_line.write("waiting", WAITING))
    command_line.wait_for_event(execution_id, "command.parked")
    stack.noetl("down")
    stack.noetl("up", *OPTIONS)
    answer = command_line.type("signal", f"go-{execution_id}")
    assert answer.code == 0, answer
    wait_until(
        lambda: command_line.status(execution_id)["status"] == "COMPLETED",
        timeout_s=60,
        what="the execution goes on",
    )
    assert command_line.status(execution_id)["variables"]["text"] == "ab"
