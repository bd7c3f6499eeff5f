# ruff: noqa: S608 - a playbook reads best with one task to a line; its SQL is our own
"""Increments through a killed worker, late rows, overlapping runs, and a backfill."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from tests.e2e.command_line import TARGET, CommandLine
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)

PATH = "e2e/increments"
PLAYBOOK = f"""\
workflow:
  - step: load
    incremental: {{cursor: updated_at, from: state.orders, lag: 2h, initial: "2024-01-01"}}
    tool:
      - name: move
        kind: transfer
        source:
          type: postgres
          auth: {TARGET}
          query: |
            SELECT id, updated_at FROM inc_source WHERE updated_at >= :since::timestamptz
              AND (:until::timestamptz IS NULL OR updated_at < :until::timestamptz)
          params: {{since: "{{{{ increment.since }}}}", until: "{{{{ increment.until }}}}"}}
        target: {{type: postgres, auth: {TARGET}, table: inc_target}}
        mode: upsert
        key: id
      - {{name: rest, kind: python, code: "import time; time.sleep(WAIT_S); result = 1"}}
"""


def execute(stack: Stack, text: str) -> Any:
    """Run one statement in the target database; return the first value."""

    async def ask() -> Any:
        connection = await asyncpg.connect(stack.url("target"))
        try:
            return await connection.fetchval(text)
        finally:
            await connection.close()

    return asyncio.run(ask())


def add_orders(stack: Stack, *days_by_id: tuple[int, str]) -> None:
    values = ", ".join(f"({number}, '{moment}Z')" for number, moment in days_by_id)
    execute(stack, f"INSERT INTO inc_source VALUES {values}")


def loaded(stack: Stack) -> list[int]:
    found: list[int] = execute(
        stack, "SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM inc_target"
    )
    return found


@pytest.fixture
def tables(stack: Stack) -> Iterator[Stack]:
    """A source with five orders of five days, an empty target; nothing else leaves a trace."""
    columns = "(id int PRIMARY KEY, updated_at timestamptz)"
    execute(stack, f"CREATE TABLE inc_source {columns}")
    execute(stack, f"CREATE TABLE inc_target {columns}")
    add_orders(stack, *((day, f"2024-01-0{day} 10:00") for day in range(1, 6)))
    yield stack
    execute(stack, "DROP TABLE inc_source")
    execute(stack, "DROP TABLE inc_target")


def register(command_line: CommandLine, *, wait_s: float) -> None:
    text = PLAYBOOK.replace("WAIT_S", str(wait_s))
    answer = command_line.type("register", command_line.write("increments", text))
    assert answer.code == 0, answer


def begin(command_line: CommandLine) -> str:
    begun = command_line.type("run", PATH, "--detach")
    assert begun.code == 0, begun
    return begun.out.strip()


def get_state(command_line: CommandLine) -> tuple[str, int]:
    answer = command_line.type("state", "get", PATH, "orders", "--json")
    assert answer.code == 0, answer
    found = json.loads(answer.out)
    return found["value"], found["revision"]


def test_a_killed_worker_late_rows_and_overlaps_neither_lose_nor_double(
    command_line: CommandLine, tables: Stack
) -> None:
    # The worker dies after it has written and before it has reported; new orders come meanwhile.
    register(command_line, wait_s=4)
    execution_id = begin(command_line)
    wait_until(lambda: loaded(tables) == [1, 2, 3, 4, 5], timeout_s=60, what="rows are written")
    add_orders(tables, (6, "2024-01-06 10:00"), (7, "2024-01-07 10:00"))
    # The worker would report soon: it is killed before anything that takes long.
    tables.kill("worker-1")
    assert command_line.type("state", "get", PATH, "orders").code == 2
    command_line.wait_for(execution_id, "COMPLETED")
    kinds = command_line.kinds(execution_id)
    assert "command.reissued" in kinds
    assert (kinds.count("state.read"), kinds.count("state.changed")) == (1, 1)
    assert loaded(tables) == [1, 2, 3, 4, 5]
    assert get_state(command_line) == ("2024-01-05T10:00:00+00:00", 1)
    assert_parity(tables, execution_id)

    # The next run has the new orders, and one that came late within the lag.
    register(command_line, wait_s=0)
    add_orders(tables, (8, "2024-01-05 09:00"))
    command_line.wait_for(begin(command_line), "COMPLETED")
    assert loaded(tables) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert get_state(command_line) == ("2024-01-07T10:00:00+00:00", 2)

    # Two runs that overlap: the second one is told, and nothing is lost.
    register(command_line, wait_s=3)
    add_orders(tables, (9, "2024-01-09 10:00"))
    both = [tables.execute(PATH, key=f"overlap-{number}") for number in (1, 2)]
    ended = {"COMPLETED", "FAILED"}
    for item in both:
        wait_until(
            lambda: command_line.status(item)["status"] in ended,  # noqa: B023 - it is called here
            timeout_s=60,
            what=f"{item} ends",
        )
    statuses = {item: command_line.status(item) for item in both}
    assert sorted(status["status"] for status in statuses.values()) == ["COMPLETED", "FAILED"]
    (failed,) = [item for item, found in statuses.items() if found["status"] == "FAILED"]
    assert statuses[failed]["error"]["kind"] == "state_conflict"
    assert "revision 2 when it began and has revision 3" in statuses[failed]["error"]["message"]
    assert get_state(command_line) == ("2024-01-09T10:00:00+00:00", 3)
    assert_parity(tables, failed)

    # The history and a replay say who moved it, and to what.
    history = json.loads(command_line.type("state", "history", PATH, "orders", "--json").out)
    assert [item["revision"] for item in history] == [3, 2, 1]
    assert history[2]["execution_id"] == execution_id
    replayed = command_line.type("replay", "state", execution_id, "--json")
    values = json.loads(replayed.out)["state"]["values"]
    assert values["orders"]["value"]["value"] == "2024-01-05T10:00:00+00:00"


def test_a_backfill_runs_each_range_once_and_leaves_the_state(
    command_line: CommandLine, tables: Stack
) -> None:
    register(command_line, wait_s=0)
    answer = command_line.type(
        *("state", "set", PATH, "orders", "2024-02-01", "--reason", "a test", "--who", "ann")
    )
    assert answer.code == 0, answer
    before = get_state(command_line)
    words = ("backfill", PATH, "--from", "2024-01-02", "--to", "2024-01-05", "--every", "1d")
    done = command_line.type(*words, "--parallel", "2")
    assert done.code == 0, done
    assert len(done.out.splitlines()) == 3
    assert loaded(tables) == [2, 3, 4]
    again = command_line.type(*words, "--json")
    ends = [json.loads(line) for line in again.out.splitlines()]
    assert [end["was_done"] for end in ends] == [True, True, True]
    assert get_state(command_line) == before
    shown = command_line.events(ends[0]["execution_id"])
    (read,) = [item for item in shown if item["event_type"] == "state.read"]
    assert read["context"]["increment"]["is_backfill"] is True
    assert "state.changed" not in [item["event_type"] for item in shown]
