# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Runs on a real stack, looked back on, proven, damaged, found out and put right."""

import asyncio
from pathlib import Path

import asyncpg
import pytest
from tests.e2e.command_line import CommandLine
from tests.support.stack import Stack

from noetl_contracts import codec

pytestmark = pytest.mark.timeout(120)

ORDERS = """\
workload: {no: 7}
workflow:
  - step: load
    tool: {kind: python, code: "result = {'rows': [{'n': i, 't': 'x' * 50} for i in range(200)], 'f': 1e20}"}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ load.rows[:5] }}", iterator: row, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop, result: "{{ iter.row.n }}"}
    set: {ctx.all: "{{ each.results }}"}
    next: {arcs: [{step: pay}]}
  - step: pay
    tool: {kind: noop, result: {total: 12.5}}
    spec: {policy: {emit: {objects: [{type: order, id: "{{ workload.no }}", status: paid, attributes: {total: "{{ pay.total }}"}}]}}}
"""
_EVENT = "where execution_id = $1 and stream_version = 4"
_HIDE = f"update noetl.event set status = 'GONE' {_EVENT}"  # noqa: S608 - both parts stand here
_FORGE = f"update noetl.event set producer = 'x' {_EVENT}"  # noqa: S608 - both parts stand here
_LOSE = "update noetl.command set status = 'LOST' where execution_id = $1"


@pytest.fixture(scope="module")
def execution_id(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One run that every test looks at; what is done to it, the next one does not mind."""
    command_line = CommandLine(stack, tmp_path_factory.mktemp("orders"))
    found = command_line.begin(command_line.write("orders", ORDERS))
    command_line.wait_for(found, "COMPLETED")
    return found


def change(stack: Stack, statement: str, execution_id: str) -> None:
    """What somebody does who owns the database."""

    async def execute() -> None:
        connection = await asyncpg.connect(stack.url("postgres"))
        try:
            await connection.execute(statement, int(execution_id))
        finally:
            await connection.close()

    asyncio.run(execute())


def test_a_run_is_proven_anywhere_and_what_is_done_to_it_is_named(
    command_line: CommandLine, stack: Stack, execution_id: str, tmp_path: Path
) -> None:
    folder = tmp_path / "evidence"
    proven = command_line.type("replay", "verify", execution_id, "--output", str(folder))
    assert (proven.code, "agrees with every other" in proven.out) == (0, True), proven
    moved = folder.rename(tmp_path / "elsewhere")
    assert command_line.type("replay", "check", str(moved)).code == 0
    report = codec.decode_json((moved / "replay.json").read_bytes())
    (order,) = report["surfaces"]["business_object"].values()
    assert (order["object_id"], order["attributes"]) == ("order/7", {"total": 12.5})
    assert codec.decode_json((moved / "payloads.json").read_bytes())["summary"]["payloads"] > 0
    assert command_line.type("audit", "verify", execution_id).code == 0
    change(stack, _HIDE, execution_id)
    answer = command_line.type("audit", "verify", execution_id)
    assert (answer.code, "column" in answer.out, "status" in answer.out) == (1, True, True), answer
    change(stack, _FORGE, execution_id)
    assert (
        "at version 4 is not what was sealed"
        in command_line.type("audit", "verify", execution_id).out
    )


def test_read_models_are_put_right_while_all_runs(
    command_line: CommandLine, stack: Stack, execution_id: str
) -> None:
    change(stack, _LOSE, execution_id)
    last = max(item["version"] for item in command_line.events(execution_id))
    wrong = command_line.type("replay", "diff", execution_id, str(last))
    assert '~ status: "COMPLETED" -> "LOST"' in wrong.out, wrong
    done = command_line.type("projection", "rebuild", execution_id)
    assert (done.code, "values differed" in done.out) == (0, True), done
    assert "no difference" in command_line.type("replay", "diff", execution_id, str(last)).out


def test_a_run_goes_on_from_its_past(command_line: CommandLine, execution_id: str) -> None:
    events = command_line.events(execution_id)
    entered = next(
        event["version"]
        for event in events
        if event["event_type"] == "step.enter" and event["node_name"] == "pay"
    )
    forked = command_line.type(
        "fork", execution_id, "--at", str(entered), "--set", "no=8", "--follow", "--json"
    )
    assert forked.code == 0, forked
    new = codec.decode_json(forked.out.splitlines()[0])["execution_id"]
    shown = command_line.wait_for(new, "COMPLETED")
    assert shown["variables"] == {"all": [0, 1, 2, 3, 4]}
    kinds = [
        item["node_name"] for item in command_line.events(new) if item["event_type"] == "step.enter"
    ]
    assert kinds == ["pay"]
    assert len(command_line.events(execution_id)) == len(events)
