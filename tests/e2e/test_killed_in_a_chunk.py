# ruff: noqa: E501 - a playbook reads best with one task to a line
"""A worker is killed while it runs chunks and shards: the same rows run again, none is missing."""

from collections import defaultdict

import pytest
from tests.e2e.command_line import CommandLine
from tests.support.parity import assert_parity
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(150)

PLAYBOOK = """\
workflow:
  - step: start
    loop: {in: "{{ range(12) | list }}", iterator: n, spec: SPEC}
    tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "import time; time.sleep(0.1 if n % 4 else 2); result = n * n"}
    set: {ctx.all: "{{ start.results }}", ctx.stats: "{{ start.stats }}"}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: start, iterator: parts, spec: {mode: tree, fan_in: 2}}
    tool: {kind: noop, result: "{{ iter.parts | map(attribute='data') | flatten | sum }}"}
    set: {ctx.total: "{{ total }}"}
"""
SQUARES = [number * number for number in range(12)]


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: chunked, chunk_size: 4, max_in_flight: 2}",
        "{mode: fanout, max_in_flight: 2, fanout: {shard_size: 4}, frame: {row_concurrency: 2}}",
    ],
)
def test_a_killed_workers_frames_run_again_with_the_same_rows(
    command_line: CommandLine, stack: Stack, spec: str
) -> None:
    execution_id = command_line.begin(command_line.write("killed", PLAYBOOK.replace("SPEC", spec)))
    command_line.wait_for_event(execution_id, "frame.started")
    stack.kill("worker-1")
    found = command_line.wait_for(execution_id, "COMPLETED")
    assert found["variables"]["all"] == SQUARES
    assert found["variables"]["total"] == sum(SQUARES)
    assert found["variables"]["stats"]["success"] == len(SQUARES)
    events = command_line.events(execution_id)
    kinds = [event["event_type"] for event in events]
    assert "frame.abandoned" in kinds
    assert kinds.count("stage.closed") == 2
    rows_by_frame = defaultdict(set)
    for event in events:
        if event["event_type"] == "frame.dispatched":
            context = event["context"]
            rows_by_frame[context["frame_id"]].add((context["start"], context["row_count"]))
    assert all(len(rows) == 1 for rows in rows_by_frame.values())
    assert_parity(stack, execution_id)
