"""An execution whose next step depends on a payload that is damaged ends with an error."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import eventually

from noetl_cli.local import system
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_planner.loops.collector import LoopCollector
from noetl_planner.shards.caches import PayloadCache
from noetl_playbook.source.problems import Level
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, build_empty_state
from noetl_storage.ports.errors import PayloadCorrupt

pytestmark = pytest.mark.timeout(120)

PATIENCE_S = 60.0
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: damaged, path: simulation/damaged}
workflow:
  - step: large
    tool: {kind: noop, result: {rows: "{{ range(2000) | list }}"}}
    next: {arcs: [{step: more, when: "{{ large.rows[7] == 7 }}"}]}
  - step: more
    tool: {kind: noop}
"""


LOOP = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: damaged-loop, path: simulation/damaged-loop}
workflow:
  - step: each
    loop: {in: "{{ range(8) | list }}", iterator: one, spec: SPEC}
    tool: {kind: noop, result: "{{ iter.one }}"}
    next:
      arcs:
        - step: seen
          on: loop.failed
          set: {ctx.kind: "{{ event.error.kind }}", ctx.said: "{{ event.error.message }}"}
  - {step: seen, tool: {kind: noop}}
"""


async def ended(tmp_path: Path, text: str, path: str) -> ExecutionState:
    """Run a playbook in one process until its end."""
    configs = system.load_settings({}, tmp_path)
    async with system.open_system(configs) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(system.run_services(opened))
        try:
            await playbooks.register_text(opened.services, text, level=Level.TOLERANT)
            body = ExecuteBody(path=path)
            execution_id = (
                await start_requests.execute_playbook(opened.services, body, None)
            ).execution_id

            async def has_ended() -> ExecutionState | None:
                events = await opened.adapters.ledger.read_events(execution_id)
                services = opened.services
                begun = build_empty_state(
                    execution_id, services.tenant_id, services.organization_id
                )
                state = fold_history(begun, events)
                return state if state.is_terminal() else None

            state = await eventually(has_ended, timeout_s=PATIENCE_S)
        finally:
            opened.process.stop.set()
    assert state is not None
    return state


async def test_a_damaged_payload_ends_the_execution_that_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    async def load(_: PayloadCache, ref: PayloadRef) -> None:
        reads.append(ref.uri)
        raise PayloadCorrupt(f"{ref.uri} was altered")

    monkeypatch.setattr(PayloadCache, "load_payload", load)
    state = await ended(tmp_path, PLAYBOOK, "simulation/damaged")
    assert state.failure is not None
    assert (state.failure.kind, state.failure.code) == ("storage_quota", "STORE")
    assert reads[0] in state.failure.message
    # A busy machine may lose the shard before the end is committed; nothing else asks again.
    assert set(reads) == {reads[0]}


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("{mode: parallel}", "damaged"),
        ("{mode: chunked, chunk_size: 2}", "damaged"),
        ("{mode: chunked, chunk_size: 2}", {"context": 1}),
        ("{mode: fanout, fanout: {partitions: 2, partition_by: a}}", {"results": [1] * 9}),
    ],
)
async def test_a_loop_whose_results_cannot_be_read_fails_and_its_failure_can_be_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, given: Any
) -> None:
    async def found(_: LoopCollector, results: list[ResultEnvelope | None]) -> Any:
        raise PayloadCorrupt(f"one of {len(results)} results was altered")

    async def value(_: LoopCollector, result: ResultEnvelope) -> Any:
        assert result.status == "ok"
        return given

    if given == "damaged":
        monkeypatch.setattr(LoopCollector, "_load_results", found)
    else:
        monkeypatch.setattr(LoopCollector, "_read_result", value)
    state = await ended(tmp_path, LOOP.replace("SPEC", spec), "simulation/damaged-loop")
    assert state.failure is None, state.failure
    assert state.ctx["kind"] == "storage_quota"
    assert "cannot be read" in state.ctx["said"]
