# ruff: noqa: E501 - a playbook reads best with one line to an idea
"""A stream whose worker is killed in the middle, on a real stack."""

import pytest
from tests.e2e.command_line import CommandLine
from tests.support.parity import assert_parity
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(180)

PLAYBOOK = """\
workflow:
  - step: prepare
    tool: {kind: postgres, auth: pg_target, query: "CREATE TABLE IF NOT EXISTS shipped (run text, chunk int, n int, PRIMARY KEY (run, chunk))"}
    next: {arcs: [{step: export}]}
  - step: export
    tool:
      kind: postgres
      auth: pg_target
      query: "SELECT i, pg_sleep(0.02)::text AS slept FROM generate_series(0, 199) i"
      stream: {chunk_rows: 20}
    next:
      arcs:
        - {step: ship, on: call.partial, spec: {max_in_flight: 2}}
        - {step: count, on: call.done, set: {ctx.chunks: "{{ event.chunks }}"}}
  - step: ship
    tool:
      kind: postgres
      auth: pg_target
      params: ["{{ execution_id }}", "{{ chunk.index }}", "{{ chunk.rows | length }}"]
      query: "INSERT INTO shipped VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
  - step: count
    tool:
      kind: postgres
      auth: pg_target
      params: ["{{ execution_id }}"]
      query: "SELECT count(*) AS chunks, sum(n) AS rows FROM shipped WHERE run = $1"
    set: {ctx.shipped: "{{ output.data.rows[0] }}", ctx.rows: "{{ export.row_count }}"}
"""


def test_a_killed_worker_loses_no_chunk_and_repeats_none(
    command_line: CommandLine, stack: Stack
) -> None:
    execution_id = command_line.begin(command_line.write("streaming", PLAYBOOK))
    command_line.wait_for_event(execution_id, "call.partial", 3)
    stack.kill("worker-1")
    shown = command_line.wait_for(execution_id, "COMPLETED")
    assert shown["variables"] == {
        "chunks": {"total": 10, "done": 10, "failed": 0},
        "shipped": {"chunks": 10, "rows": 200},
        "rows": 200,
    }
    events = command_line.events(execution_id)
    partial = [event for event in events if event["event_type"] == "call.partial"]
    assert len(partial) == 10
    assert "command.reissued" in command_line.kinds(execution_id)
    assert_parity(stack, execution_id)
