"""Streams with every service in one process: rows in, chunks out, over a broker that shakes too."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_one_process import ShakyBroker, ended, running
from tests.support.polling import eventually

from noetl_cli.local import system
from noetl_cli.local.system import LocalSystem
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import control_requests, start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, build_empty_state
from noetl_worker.pipeline import chunk_emitter

pytestmark = pytest.mark.timeout(180)

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: streamed, path: simulation/streamed}
workload: {rows: 10000, size: 1000}
workflow:
  - step: export
    tool:
      kind: python
      input: {n: "{{ workload.rows }}"}
      code: |
        for i in range(n):
          yield {"i": i}
      stream: {chunk_rows: SIZE}
    next:
      arcs:
        - {step: ship, on: call.partial, spec: {max_in_flight: FLIGHT}}
        - {step: wrap_up, on: call.done, set: {ctx.chunks: "{{ event.chunks }}"}}
        - {step: repair, on: call.error, set: {ctx.error: "{{ event.error.kind }}"}}
  - step: ship
    tool: {kind: python, input: {rows: "{{ chunk.rows }}"}, code: "BODY"}
  - step: wrap_up
    tool:
      kind: python
      input:
        shipped: "{{ ship.results }}"
        stats: "{{ ship.stats }}"
        count: "{{ export.row_count }}"
        columns: "{{ export.columns }}"
        is_kept: "{{ export._ref is defined }}"
        last: "{{ export.rows[-1].i }}"
      code: >-
        result = {'shipped': shipped, 'stats': stats, 'about': [count, columns, is_kept, last]}
    set: {ctx.seen: "{{ output.data }}"}
  - {step: repair, tool: {kind: noop}, set: {ctx.failed: "{{ ship.stats.failed }}"}}
"""
COUNTED = "result = len(rows)"


def playbook(*, size: int, in_flight: int = 2, body: str = COUNTED) -> str:
    text = PLAYBOOK.replace("SIZE", str(size)).replace("FLIGHT", str(in_flight))
    return text.replace("BODY", body)


async def begin(opened: LocalSystem, text: str, **workload: Any) -> ExecutionId:
    await playbooks.register_text(opened.services, text, level=Level.STRICT)
    body = ExecuteBody(path="simulation/streamed", workload=workload)
    return (await start_requests.execute_playbook(opened.services, body, None)).execution_id


def state_of(history: list[Envelope]) -> ExecutionState:
    first = history[0]
    return fold_history(
        build_empty_state(first.execution_id, first.tenant_id, first.organization_id), history
    )


def of(history: list[Envelope], kind: str) -> list[Any]:
    return [item.event for item in history if get_event_type(item.event) == kind]


@asynccontextmanager
async def quiet(folder: Path, **settings: str) -> AsyncIterator[LocalSystem]:
    async with (
        system.open_system(system.load_settings(settings, folder)) as opened,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(system.run_services(opened))
        try:
            yield opened
        finally:
            opened.process.stop.set()


async def test_ten_thousand_rows_go_in_ten_chunks(tmp_path: Path) -> None:
    async with quiet(tmp_path) as opened:
        execution_id = await begin(opened, playbook(size=1_000))
        history = await ended(opened, execution_id)
    state = state_of(history)
    assert state.status == "COMPLETED", state.failure
    partial = of(history, "call.partial")
    assert [(item.chunk.index, item.chunk.row_count) for item in partial] == [
        (index, 1_000) for index in range(10)
    ]
    assert [item.chunk.has_more for item in partial] == [True] * 9 + [False]
    assert state.ctx["chunks"] == {"total": 10, "done": 10, "failed": 0}
    seen = state.ctx["seen"]
    assert seen["shipped"] == [1_000] * 10
    assert (seen["stats"]["total"], seen["stats"]["success"]) == (10, 10)
    assert seen["about"] == [10_000, ["i"], True, 9_999]
    last = max(
        item.stream_version for item in history if get_event_type(item.event) == "call.partial"
    )
    begun = [item for item in history if get_event_type(item.event) == "step.enter"]
    assert [item.event.step for item in begun] == ["export", "ship", "wrap_up"]
    assert begun[-1].stream_version > last


INTO_ITSELF = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: streamed, path: simulation/streamed}
workflow:
  - step: fill
    tool:
      kind: duckdb
      query: >-
        create table source as select i from range(50) r(i); create table target(i int)
    next: {arcs: [{step: export}]}
  - step: export
    tool: {kind: duckdb, query: from source order by i, stream: {chunk_rows: 10, max_ahead: 1}}
    next: {arcs: [{step: save, on: call.partial}, {step: check, on: call.done}]}
  - step: save
    tool:
      kind: duckdb
      inputs: {rows: "{{ chunk.rows }}"}
      query: insert into target from rows
  - step: check
    tool: {kind: duckdb, query: "select count(*) as n, sum(i) as total from target"}
    set: {ctx.seen: "{{ output.data.rows[0] }}"}
"""


async def test_a_database_streams_into_itself(tmp_path: Path) -> None:
    async with quiet(tmp_path) as opened:
        execution_id = await begin(opened, INTO_ITSELF)
        history = await ended(opened, execution_id)
    state = state_of(history)
    assert state.status == "COMPLETED", state.failure
    assert state.ctx["seen"] == {"n": 50, "total": 1_225}


async def test_a_chunk_that_fails_is_counted_and_handled(tmp_path: Path) -> None:
    body = "assert rows[0]['i'] != 40\\nresult = len(rows)"
    async with quiet(tmp_path) as opened:
        execution_id = await begin(opened, playbook(size=20, body=body), rows=100)
        history = await ended(opened, execution_id)
    state = state_of(history)
    assert state.status == "COMPLETED", state.failure
    assert (state.ctx["error"], state.ctx["failed"]) == ("chunk_failed", 1)


async def test_cancelling_ends_the_producer_and_its_targets(tmp_path: Path) -> None:
    body = "await asyncio.sleep(60)\\nresult = 1"
    async with quiet(tmp_path, NOETL_PLANNER_CANCEL_GRACE_S="20") as opened:
        execution_id = await begin(opened, playbook(size=10, body=body), rows=10_000_000)
        ledger = opened.adapters.ledger

        async def is_busy() -> bool:
            events = await ledger.read_events(execution_id, after_version=0, events_max=1_000)
            return len(of(events, "call.partial")) >= 3

        await eventually(is_busy, timeout_s=30)
        await control_requests.request_cancel(opened.services, execution_id, None, cascade=True)

        async def is_over() -> list[Envelope] | None:
            events = await ledger.read_events(execution_id, after_version=0, events_max=1_000)
            return events if of(events, "execution.cancelled") else None

        history = await eventually(is_over, timeout_s=60)
    assert history is not None
    assert state_of(history).status == "CANCELLED"
    assert len(of(history, "call.partial")) < 20


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_chunk_is_lost_or_taken_twice_whatever_the_broker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(
        system, "MemoryBroker", lambda declared, clock: ShakyBroker(declared, clock, chance=chance)
    )
    monkeypatch.setattr(chunk_emitter, "_RESEND_S", 0.1)
    async with running(tmp_path) as opened:
        execution_id = await begin(opened, playbook(size=10), rows=45)
        history = await ended(opened, execution_id)
    state = state_of(history)
    assert state.status == "COMPLETED", state.failure
    assert [item.chunk.index for item in of(history, "call.partial")] == list(range(5))
    assert state.ctx["seen"]["shipped"] == [10] * 4 + [5]
