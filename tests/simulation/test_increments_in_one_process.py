"""Overlapping runs that read increments, over a broker that shakes: no state is moved twice."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_one_process import running, shaken
from tests.support.polling import eventually

from noetl_cli.local.system import LocalSystem
from noetl_contracts.commands.state_values import StateChange
from noetl_contracts.events import get_event_type
from noetl_contracts.events.execution_events import PlaybookFailed
from noetl_contracts.events.state_events import StateChanged, StateRead
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level

pytestmark = pytest.mark.timeout(180)

PATH = "simulation/increments"
RUNS = 6
# What has come by each run; it reads from its bound on.
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: increments, path: {PATH}}}
workload: {{rows: 0}}
workflow:
  - step: load
    incremental: {{cursor: id, from: state.orders, initial: 0, lag: 2}}
    tool:
      kind: python
      input: {{since: "{{{{ increment.since }}}}", rows: "{{{{ workload.rows }}}}"}}
      code: "result = [{{'id': number}} for number in range(max(since, 0), rows + 1)]"
    next: again
  - step: again
    incremental: {{cursor: id, from: state.orders, initial: 0, lag: 2}}
    tool:
      kind: python
      input: {{since: "{{{{ increment.since }}}}", rows: "{{{{ workload.rows }}}}"}}
      code: "result = [{{'id': number}} for number in range(max(since, 0), rows + 2)]"
"""
ENDS = {"playbook.completed", "playbook.failed"}


async def run_overlapping(opened: LocalSystem, chance: random.Random) -> list[list[Envelope]]:
    """Run the playbook several times at once, each with more rows; return the histories."""
    await playbooks.register_text(opened.services, PLAYBOOK, level=Level.STRICT)
    begun: list[ExecutionId] = []
    for number in range(RUNS):
        body = ExecuteBody(path=PATH, workload={"rows": 10 * number + chance.randint(1, 5)})
        accepted = await start_requests.execute_playbook(opened.services, body, None)
        begun.append(accepted.execution_id)
    return [await _wait_for_end(opened, execution_id) for execution_id in begun]


async def _wait_for_end(opened: LocalSystem, execution_id: ExecutionId) -> list[Envelope]:
    async def has_ended() -> list[Envelope] | None:
        history = await opened.adapters.ledger.read_events(execution_id)
        return history if history and get_event_type(history[-1].event) in ENDS else None

    envelopes = await eventually(has_ended, timeout_s=60)
    assert envelopes is not None
    return envelopes


@pytest.mark.parametrize("seed", range(4))
async def test_overlapping_runs_move_the_state_forward_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    shaken(monkeypatch, seed)
    async with running(tmp_path) as opened:
        histories = await run_overlapping(opened, random.Random(seed))
        scope = opened.services.tenant_scope
        changes = await opened.adapters.states.list_changes(PATH, "orders", **scope, changes_max=99)
        last = await opened.adapters.states.find_state(PATH, "orders", **scope)
    changes.reverse()
    assert [change.revision for change in changes] == list(range(1, len(changes) + 1))
    values = [int(change.value.value) for change in changes]
    assert values == sorted(set(values))
    assert last is not None
    assert last.value == changes[-1].value
    events = [item.event for history in histories for item in history]
    assert _rows_of(events, histories) == {(item.execution_id, item.revision) for item in changes}
    _assert_read_without_gap(events, changes)
    ends = [event for event in events if isinstance(event, PlaybookFailed)]
    assert {end.error.kind for end in ends} <= {"state_conflict"}


def _rows_of(
    events: list[Any], histories: list[list[Envelope]]
) -> set[tuple[ExecutionId | None, int]]:
    """Name what the table of changes has to hold by the events alone."""
    assert sum(isinstance(event, StateChanged) for event in events) >= 1
    return {
        (item.execution_id, item.event.revision)
        for history in histories
        for item in history
        if isinstance(item.event, StateChanged)
    }


def _assert_read_without_gap(events: list[Any], changes: list[StateChange]) -> None:
    """A run that moved the state has begun at or before the state that it moved."""
    value_by_revision = {0: 0, **{change.revision: int(change.value.value) for change in changes}}
    for event in events:
        if isinstance(event, StateRead):
            increment = event.increment
            assert int(increment.since) <= value_by_revision[increment.revision]
