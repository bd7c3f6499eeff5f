"""Values that no message carries travel by reference, or end the run with a typed error."""

import asyncio

import asyncpg
import pytest
from tests.e2e.command_line import PATIENCE_S, CommandLine
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(120)

MAKE = "{kind: python, code: \"result = {'blob': 'x' * 2000000}\"}"
READ = """\
    next: {arcs: [{step: finish}]}
  - step: finish
    tool: {kind: python, input: {blob: "{{ FROM }}"}, code: "assert len(blob) == 2000000"}
"""


async def waiting_in_outbox(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval("SELECT count(*) FROM noetl.outbox")
    finally:
        await connection.close()
    return found


def test_a_result_of_two_megabytes_travels_by_reference(command_line: CommandLine) -> None:
    steps = f"workflow:\n  - step: start\n    tool: {MAKE}\n"
    answer = command_line.type(
        "run", command_line.write("large", steps + READ.replace("FROM", "start.data.blob"))
    )
    assert answer.code == 0, answer


LIMITED = "executor: {spec: {policy: {limits: {max_ctx_bytes: 200}}}}\n"


def written_to_ctx(place: str) -> str:
    """A workflow whose step makes two megabytes, written to `ctx` somewhere and read again."""
    write = 'set: {ctx.blob: "{{ start.data.blob }}"}'
    steps = f"workflow:\n  - step: start\n    tool: {MAKE}\n"
    following = READ.replace("FROM", "ctx.blob")
    if place == "the step":
        return f"{steps}    {write}\n{following}"
    if place == "the arc":
        return steps + following.replace("{step: finish}", f"{{step: finish, {write}}}")
    named = MAKE.replace("{kind", "{name: make, kind").removesuffix("}")
    steps = f"workflow:\n  - step: start\n    tool:\n      - {named}, {write}}}\n"
    return steps.replace("start.data", "make.data") + following


@pytest.mark.parametrize("place", ["the step", "the arc", "the task"])
def test_a_large_value_of_ctx_travels_by_reference(command_line: CommandLine, place: str) -> None:
    answer = command_line.type("run", command_line.write("swollen", written_to_ctx(place)))
    assert answer.code == 0, answer
    found = command_line.wait_for(answer.err.split()[1], "COMPLETED")
    assert found["variables"]["blob"].keys() == {"_ref"}
    shown = command_line.get(f"/api/vars/{found['execution_id']}/blob").json()
    assert len(shown["value"]) == 2_000_000


@pytest.mark.parametrize("place", ["the step", "the arc", "the task"])
def test_too_large_a_ctx_is_a_typed_error_and_the_run_ends(
    command_line: CommandLine, place: str
) -> None:
    answer = command_line.type(
        "run", command_line.write("bounded", LIMITED + written_to_ctx(place))
    )
    assert answer.code == 1, answer
    assert "payload_too_large" in answer.err
    error = command_line.wait_for(answer.err.split()[1], "FAILED")["error"]
    assert (error["kind"], error["code"], error["step"]) == (
        "payload_too_large",
        "TOO_LARGE",
        "start",
    )
    assert "ctx.blob" in error["message"]
    assert len(error["message"]) < 1000


def test_inputs_that_no_message_carries_travel_by_reference(
    command_line: CommandLine, stack: Stack
) -> None:
    body = f"workload: {{blob: {'y' * 900_000}}}\n"
    tool = '{kind: python, input: {b: "{{ workload.blob }}"}, code: "assert len(b) == 900000"}'
    steps = f"workflow:\n  - step: start\n    tool: {tool}\n"
    answer = command_line.type("run", command_line.write("wide", body + steps))
    assert answer.code == 0, answer
    command_line.wait_for(answer.err.split()[1], "COMPLETED")
    wait_until(
        lambda: asyncio.run(waiting_in_outbox(stack.url("postgres"))) == 0,
        timeout_s=PATIENCE_S,
        what="nothing waits in the outbox",
    )


def test_a_command_that_no_message_carries_fails_its_step_at_once(
    command_line: CommandLine,
) -> None:
    fields = ("a", "b", "c", "d")
    selected = ", ".join(f"{{path: {name}, as: {name}}}" for name in fields)
    steps = ["executor: {spec: {entry_step: s0}}", "workflow:"]
    for number in range(11):
        steps += [
            f"  - step: s{number}",
            "    tool:",
            "      kind: python",
            "      code: \"result = {name: 'x' * 7000 for name in 'abcd'}\"",
            f"      output: {{select: [{selected}]}}",
            f"    next: {{arcs: [{{step: s{number + 1}}}]}}",
        ]
    steps += ["  - step: s11", '    tool: {kind: python, input: {n: "{{ steps }}"}, code: pass}']
    answer = command_line.type("run", command_line.write("burdened", "\n".join(steps) + "\n"))
    assert answer.code == 1, answer
    assert "payload_too_large: the command of step 's11' takes" in answer.err
    execution_id = answer.err.split()[1]
    command_line.wait_for(execution_id, "FAILED")
    kinds = command_line.kinds(execution_id)
    assert kinds[0] == "playbook.initialized"
    assert kinds.count("playbook.failed") == 1
    assert kinds[-1] == "playbook.failed"
