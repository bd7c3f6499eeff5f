"""A stored result whose bytes have changed is refused by whoever reads it."""

from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command_line import CommandLine
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(120)

PLAYBOOK = """\
workflow:
  - step: make
    tool: {kind: python, code: "result = {'rows': [{'i': i, 'pad': 'p' * 40} for i in range(200)]}"}
    next: {arcs: [{step: wait}]}
  - step: wait
    tool: {kind: external, mode: signal, correlation_key: damaged}
    next: {arcs: [{step: use}]}
  - step: use
    tool: {kind: python, input: {rows: "{{ make.data.rows }}"}, code: "result = len(rows)"}
"""


def reference_of(command_line: CommandLine, execution_id: str, step: str) -> Any:
    for event in command_line.events(execution_id):
        if event["event_type"] == "call.done" and event["node_name"] == step:
            return event["result"]["reference"]
    raise AssertionError(f"{step} has no result")


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def test_a_flipped_byte_fails_the_step_that_reads_it_and_the_api_says_so(
    command_line: CommandLine, stack: Stack
) -> None:
    execution_id = command_line.begin(command_line.write("damaged", PLAYBOOK))
    command_line.wait_for_event(execution_id, "step.exit")
    reference = reference_of(command_line, execution_id, "make")
    (file,) = (stack.folder / "payloads").rglob(reference["sha256"])
    sound = command_line.get("/api/result/resolve", ref=reference["uri"])
    assert sound.is_success, sound.text
    flip_a_byte(file)
    answer = command_line.get("/api/result/resolve", ref=reference["uri"])
    assert answer.status_code == 502
    assert answer.json()["code"] == "payload_corrupt"
    assert reference["sha256"] in answer.text
    assert "pppp" not in answer.text
    assert command_line.type("signal", "damaged").code == 0
    watched = command_line.type("run", "--attach", execution_id)
    assert watched.code == 1, watched
    error = command_line.wait_for(execution_id, "FAILED")["error"]
    assert error["step"] == "use"
    assert reference["sha256"] in error["message"], error
