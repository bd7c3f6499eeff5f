"""A payload store without room holds up what needs it, and nothing else, until it has room."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.inprocess import begin_of
from tests.support.polling import eventually

from noetl_cli.local import system
from noetl_cli.local.system import LocalSystem
from noetl_contracts.ids import ExecutionId
from noetl_contracts.status import ExecutionStatus
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState
from noetl_storage.ports.errors import StorageFull
from noetl_worker.payloads import payload_retry

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 90.0
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: simulation/NAME}\n"
SMALL = "workflow:\n  - {step: a, tool: {kind: noop, result: 1}}\n"
# What needs the store: a worker's result, a planner's variable, collection, and a loop's results.
NEEDING = {
    "result": """
workflow:
  - {step: a, tool: {kind: noop, result: {rows: "{{ range(60000) | list }}"}}}
""",
    "variable": """
workflow:
  - step: a
    tool: {kind: noop, result: 1}
    set: {ctx.large: "{{ 'x' * 300000 }}"}
    next: b
  - {step: b, tool: {kind: noop}}
""",
    "collection": """
workflow:
  - step: each
    loop:
      in: "{{ range(20000) | list }}"
      iterator: one
      spec: {mode: chunked, chunk_size: 10000}
    tool: {kind: noop, result: 1}
""",
    "after-a-loop": """
workflow:
  - step: each
    loop: {in: [1, 2, 3], iterator: one, spec: {mode: parallel}}
    tool: {kind: noop, result: "{{ iter.one }}"}
    set: {ctx.large: "{{ 'x' * 300000 }}"}
    next: b
  - {step: b, tool: {kind: noop}}
""",
}


class FullStore:
    """A payload store that refuses writes while its disk is full; reads go on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_full = False
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put_payload(self, *values: Any, **names: Any) -> Any:
        self._check()
        return await self._inner.put_payload(*values, **names)

    async def put_named(self, *values: Any, **names: Any) -> Any:
        self._check()
        return await self._inner.put_named(*values, **names)

    def _check(self) -> None:
        if self.is_full:
            self.refusals += 1
            raise StorageFull("no space left on device")


@asynccontextmanager
async def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[LocalSystem, FullStore]]:
    """Every service in this process, over a store that can be filled."""
    stores: list[FullStore] = []
    open_payloads = system.open_payloads

    @asynccontextmanager
    async def open_full(url: str) -> AsyncIterator[FullStore]:
        async with open_payloads(url) as inner:
            stores.append(FullStore(inner))
            yield stores[-1]

    monkeypatch.setattr(system, "open_payloads", open_full)
    async with (
        system.open_system(system.load_settings({}, tmp_path)) as opened,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(system.run_services(opened))
        try:
            yield opened, stores[0]
        finally:
            opened.process.stop.set()


async def begin(opened: LocalSystem, name: str, text: str) -> ExecutionId:
    content = HEAD.replace("NAME", name) + text
    await playbooks.register_text(opened.services, content, level=Level.TOLERANT)
    body = ExecuteBody(path=f"simulation/{name}")
    return (await start_requests.execute_playbook(opened.services, body, None)).execution_id


async def state_of(opened: LocalSystem, execution_id: ExecutionId) -> ExecutionState | None:
    events = await opened.adapters.ledger.read_events(execution_id, events_max=5000)
    return fold_history(begin_of(events), events) if events else None


async def ended(opened: LocalSystem, execution_id: ExecutionId) -> ExecutionState:
    async def has_ended() -> ExecutionState | None:
        state = await state_of(opened, execution_id)
        return state if state is not None and state.is_terminal() else None

    state = await eventually(has_ended, timeout_s=PATIENCE_S)
    assert state is not None
    return state


@pytest.mark.parametrize("name", NEEDING)
async def test_an_execution_goes_on_when_a_full_store_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with capture_logs() as logged:
        async with running(tmp_path, monkeypatch) as (opened, store):
            store.is_full = True
            waiting = await begin(opened, name, NEEDING[name])

            async def is_refused() -> bool:
                return store.refusals >= 3

            assert await eventually(is_refused, timeout_s=PATIENCE_S)
            # Others of the same shard go on meanwhile.
            small = await ended(opened, await begin(opened, "small", SMALL))
            assert small.status is ExecutionStatus.COMPLETED
            held = await state_of(opened, waiting)
            assert held is None or not held.is_terminal()
            reason = opened.services.shards.store_waits.find_reason(waiting)
            in_worker = payload_retry.WAITS.list_executions()
            store.is_full = False
            state = await ended(opened, waiting)
            assert opened.services.shards.store_waits.find_reason(waiting) is None
            assert payload_retry.WAITS.list_executions() == ()
    # Who asks how it stands is told who waits: the planner, or the worker that has its result.
    if name == "result":
        assert (reason, in_worker) == (None, (waiting,))
    else:
        assert (reason, in_worker) == ("no space left on device", ())
    assert state.status is ExecutionStatus.COMPLETED, state.failure
    events = [item["event"] for item in logged]
    assert events.count("shard lease acquired") == 1
    # No turn of the shard fails of it: only the execution waits, and the log says for what.
    assert "turn failed" not in events
    if name != "result":
        waits = [
            item for item in logged if item["event"] == "execution waits for the payload store"
        ]
        assert {wait["execution_id"] for wait in waits} == {waiting}
        assert {wait["reason"] for wait in waits} == {"no space left on device"}
