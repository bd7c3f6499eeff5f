# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Playbooks that call playbooks, with every service in one process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_one_process import shaken
from tests.support.asking import ENDS
from tests.support.polling import eventually
from tests.support.surface_comparison import compare_surfaces

from noetl_cli.local import system
from noetl_cli.local.system import LocalSystem
from noetl_contracts import codec
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import control_requests, start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level
from noetl_replay import rows
from noetl_replay.comparison import index_live_surfaces, replay_surfaces
from noetl_replay.state import ExecutionState, build_empty_state

PATIENCE_S = 60.0
# A wish to stop may come before a worker listens for it; then the grace period ends the work.
SETTINGS = {"NOETL_AUTH": "off-on-loopback", "NOETL_PLANNER_CANCEL_GRACE_S": "1"}
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: family/{name}}}
"""
DOUBLE = """\
workload: {n: 0}
workflow:
  - step: calculate
    tool: {kind: noop, result: {doubled: "{{ workload.n * 2 }}"}}
    next: {arcs: [{step: tidy}]}
  - {step: tidy, tool: {kind: noop, result: tidied}}
"""
FAILS = """\
workflow:
  - step: calculate
    tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: fail, message: as planned}}}]}}}
"""
DEEPER = """\
workload: {left: 0}
workflow:
  - step: choose
    tool: {kind: noop}
    next: {arcs: [{step: call, when: "{{ workload.left > 0 }}"}, {step: say}]}
  - step: call
    tool: {kind: playbook, path: family/deeper, return_step: say, input: {left: "{{ workload.left - 1 }}"}}
    next: {arcs: [{step: say}]}
  - step: say
    tool: {kind: noop, result: {levels: "{{ 1 + (call.levels | default(0)) }}"}}
"""


def named(name: str, body: str) -> str:
    return HEAD.format(name=name) + body


@asynccontextmanager
async def running(folder: Path, **playbooks_by_name: str) -> AsyncIterator[LocalSystem]:
    configs = system.load_settings(SETTINGS, folder)
    async with system.open_system(configs) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(system.run_services(opened))
        try:
            for name, body in playbooks_by_name.items():
                await playbooks.register_text(
                    opened.services, named(name, body), level=Level.TOLERANT
                )
            yield opened
        finally:
            opened.process.stop.set()


async def begun(opened: LocalSystem, name: str, **workload: Any) -> ExecutionId:
    body = ExecuteBody(path=f"family/{name}", workload=workload)
    return (await start_requests.execute_playbook(opened.services, body, None)).execution_id


async def ended(opened: LocalSystem, execution_id: ExecutionId) -> ExecutionState:
    """The folded state, once it has its end and the projection shows all of it."""

    async def is_projected() -> list[Envelope] | None:
        events = await opened.adapters.ledger.read_events(execution_id, events_max=5000)
        positions = await opened.adapters.projections.list_positions([execution_id])
        is_over = any(get_event_type(event.event) in ENDS for event in events)
        return events if is_over and positions.get(execution_id) == len(events) else None

    found = await eventually(is_projected, timeout_s=PATIENCE_S)
    assert found is not None
    first = found[0]
    begins = build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    state, replayed = replay_surfaces(begins, found)
    live = {
        surface: await opened.adapters.projections.list_rows(surface, execution_id)
        for surface in rows.SURFACES
    }
    assert compare_surfaces(index_live_surfaces(live), replayed) == []
    return state


async def types(opened: LocalSystem, execution_id: ExecutionId) -> list[str]:
    events = await opened.adapters.ledger.read_events(execution_id, events_max=5000)
    return [get_event_type(event.event) for event in events]


async def children(opened: LocalSystem, parent: ExecutionId) -> list[dict[str, Any]]:
    executions = await opened.adapters.projections.list_executions(
        **opened.services.tenant_scope, status=None, path=None, before=None, executions_max=1000
    )
    return [row for row in executions if row["parent_execution_id"] == parent]


async def run(opened: LocalSystem, name: str, **workload: Any) -> ExecutionState:
    return await ended(opened, await begun(opened, name, **workload))


CALL = """\
workload: {path: family/double, n: 21}
workflow:
  - step: call
    tool:
      - {name: before, kind: noop, result: {seen: 1}, set: {kept: "{{ output.seen }}", ctx.early: 5, iter.mark: m}}
      - name: ask
        kind: playbook
        path: "{{ workload.path }}"
        return_step: calculate
        input: {n: "{{ workload.n }}"}
        set: {ctx.answer: "{{ output.doubled }}", ctx.who: "{{ output.execution_id }}", ctx.status: "{{ output.status }}"}
      - {name: after, kind: noop, result: {all: "{{ [kept, ctx.early, iter.mark, before.seen, ask.doubled, _prev.doubled] }}"}}
    set: {ctx.all: "{{ call.all }}"}
"""


async def test_a_step_calls_a_playbook_and_goes_on_with_all_that_it_knew(tmp_path: Path) -> None:
    async with running(tmp_path, call=CALL, double=DOUBLE) as opened:
        state = await run(opened, "call")
        assert state.status == "COMPLETED", state.failure
        (child,) = await children(opened, state.execution_id)
        assert state.ctx == {
            "early": 5,
            "answer": 42,
            "who": child["execution_id"],
            "status": "COMPLETED",
            "all": [1, 5, "m", 1, 42, 42],
        }
        seen = await types(opened, state.execution_id)
        for once in ("command.parked", "child.started", "child.ended", "command.resumed"):
            assert seen.count(once) == 1, once


async def test_without_return_step_the_last_step_speaks(tmp_path: Path) -> None:
    call = """\
workflow:
  - step: call
    tool: {kind: playbook, path: family/double}
    set: {ctx.said: "{{ call }}"}
"""
    async with running(tmp_path, call=call, double=DOUBLE) as opened:
        assert (await run(opened, "call")).ctx == {"said": "tidied"}


async def test_a_failed_child_fails_its_task_with_its_own_error_inside(tmp_path: Path) -> None:
    async with running(tmp_path, call=CALL, fails=FAILS) as opened:
        state = await run(opened, "call", path="family/fails")
        assert state.failure is not None
        assert state.failure.kind == "child_failed"
        assert (state.failure.step, state.failure.task) == ("call", "ask")
        assert state.failure.details is not None
        assert state.failure.details["error"]["message"] == "as planned"


async def test_a_child_that_is_not_registered_fails_its_task(tmp_path: Path) -> None:
    async with running(tmp_path, call=CALL) as opened:
        state = await run(opened, "call", path="family/nobody")
        assert state.failure is not None
        assert "family/nobody" in state.failure.message
        assert await opened.adapters.dead_letters.count_letters() == 0


async def test_a_retry_starts_another_child_under_the_same_attempt_counter(tmp_path: Path) -> None:
    call = """\
workflow:
  - step: call
    tool:
      name: ask
      kind: playbook
      path: family/fails
      spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 3, set: {ctx.tries: "{{ _attempt }}"}}}, {when: "{{ output.error.kind == 'child_failed' }}", then: {do: continue}}]}}
"""
    async with running(tmp_path, call=call, fails=FAILS) as opened:
        state = await run(opened, "call")
        assert state.status == "COMPLETED"
        assert state.ctx == {"tries": 2}
        assert len(await children(opened, state.execution_id)) == 3


async def test_nobody_waits_for_a_child_that_is_only_started(tmp_path: Path) -> None:
    call = """\
workflow:
  - step: call
    tool: {kind: playbook, path: family/double, wait: false}
    set: {ctx.said: "{{ call.status }}", ctx.who: "{{ call.execution_id }}"}
"""
    async with running(tmp_path, call=call, double=DOUBLE) as opened:
        state = await run(opened, "call")
        assert state.ctx["said"] == "started"
        child = await ended(opened, ExecutionId(state.ctx["who"]))
        assert child.parent_execution_id == state.execution_id


async def test_playbooks_nest_and_the_depth_has_a_limit(tmp_path: Path) -> None:
    three = """\
workflow:
  - step: call
    tool: {kind: playbook, path: family/deeper, return_step: say, input: {left: 2}}
    set: {ctx.levels: "{{ call.levels }}"}
"""
    async with running(tmp_path, deeper=DEEPER, three=three) as opened:
        state = await run(opened, "three")
        assert state.ctx == {"levels": 3}, state.failure
        state = await run(opened, "deeper", left=17)
        assert state.failure is not None
        error = codec.to_builtins(state.failure)
        for _ in range(16):
            assert error["kind"] == "child_failed"
            error = error["details"]["error"]
        assert (error["kind"], error["code"]) == ("limit", "child_depth")


EACH = """\
workload: {items: []}
workflow:
  - step: each
    loop: {in: "{{ workload.items }}", iterator: n, spec: {mode: parallel, max_in_flight: 6}}
    tool: {kind: playbook, path: family/double, return_step: calculate, input: {n: "{{ iter.n }}"}}
    set: {ctx.doubled: "{{ each.results | map(attribute='doubled') | list }}"}
"""


async def test_every_item_of_a_parallel_loop_has_a_child_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, each=EACH, double=DOUBLE) as opened:
        state = await run(opened, "each", items=list(range(20)))
        assert state.ctx == {"doubled": [2 * n for n in range(20)]}, state.failure
        assert len(await children(opened, state.execution_id)) == 20
        seen = await types(opened, state.execution_id)
        assert seen.count("child.started") == seen.count("child.ended") == 20


async def test_large_inputs_and_results_travel_by_reference(tmp_path: Path) -> None:
    big = """\
workload: {text: ""}
workflow:
  - {step: echo, tool: {kind: noop, result: {text: "{{ workload.text }}", length: "{{ workload.text | length }}"}}}
"""
    call = """\
workflow:
  - step: call
    tool: {kind: playbook, path: family/big, input: {text: "{{ 'x' * 50000 }}"}}
    set: {ctx.length: "{{ call.text | length }}"}
"""
    async with running(tmp_path, call=call, big=big) as opened:
        assert (await run(opened, "call")).ctx == {"length": 50000}


ENDLESS = """\
workflow:
  - step: hold
    loop: {in: [1], iterator: i, spec: {mode: sequential}}
    tool: {kind: playbook, path: family/sleeps, timeout: 3600}
"""
SLEEPS = """\
workflow:
  - {step: sleep, tool: {kind: python, code: "import asyncio\\nasync def main():\\n    await asyncio.sleep(3600)"}}
"""


@pytest.mark.parametrize("cascade", [True, False])
async def test_cancelling_a_parent_cancels_its_children_unless_told_otherwise(
    tmp_path: Path, *, cascade: bool
) -> None:
    top = """\
workflow:
  - {step: call, tool: {kind: playbook, path: family/endless}}
"""
    async with running(tmp_path, top=top, endless=ENDLESS, sleeps=SLEEPS) as opened:
        parent = await begun(opened, "top")

        async def grandchild() -> list[dict[str, Any]]:
            found = await children(opened, parent)
            return await children(opened, found[0]["execution_id"]) if found else []

        (lowest,) = await eventually(grandchild, timeout_s=PATIENCE_S)
        (child,) = await children(opened, parent)
        await control_requests.request_cancel(opened.services, parent, "enough", cascade=cascade)
        assert (await ended(opened, parent)).status == "CANCELLED"
        if not cascade:
            assert "execution.cancelling" not in await types(opened, child["execution_id"])
            await control_requests.request_cancel(opened.services, child["execution_id"], "enough")
        for item in (child, lowest):
            assert (await ended(opened, item["execution_id"])).status == "CANCELLED"


async def test_a_wait_that_takes_too_long_fails_and_calls_the_child_off(tmp_path: Path) -> None:
    call = """\
workflow:
  - step: call
    tool: {kind: playbook, path: family/sleeps, timeout: 0.2}
    next: {arcs: [{step: late, when: "{{ event.name == 'call.error' }}", set: {ctx.kind: "{{ output.error.kind }}"}}]}
  - {step: late, tool: {kind: noop}}
"""
    async with running(tmp_path, call=call, sleeps=SLEEPS) as opened:
        state = await run(opened, "call")
        assert state.ctx == {"kind": "timeout"}, state.failure
        (child,) = await children(opened, state.execution_id)
        assert (await ended(opened, child["execution_id"])).status == "CANCELLED"


SHAKEN = {
    "NOETL_WORKER_LEASE_S": "0.6",
    "NOETL_PLANNER_COMMAND_LEASE_S": "0.6",
    "NOETL_PLANNER_COMMAND_HEARTBEAT_S": "0.1",
    "NOETL_PLANNER_STEP_ATTEMPTS_MAX": "100",
}
TWO_LEVELS = """\
workload: {items: [1, 2, 3, 4, 5]}
workflow:
  - step: each
    loop: {in: "{{ workload.items }}", iterator: n, spec: {mode: parallel, max_in_flight: 3, max_attempts: 100}}
    tool: {kind: playbook, path: family/middle, input: {n: "{{ iter.n }}"}}
    set: {ctx.doubled: "{{ each.results | map(attribute='doubled') | list }}"}
"""
MIDDLE = """\
workload: {n: 0}
workflow:
  - step: call
    tool: {kind: playbook, path: family/double, return_step: calculate, input: {n: "{{ workload.n }}"}}
"""


@pytest.mark.parametrize("seed", range(3))
async def test_lost_late_and_repeated_messages_start_no_child_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    brokers = shaken(monkeypatch, seed)
    monkeypatch.setitem(globals(), "SETTINGS", SHAKEN)
    family = {"two": TWO_LEVELS, "middle": MIDDLE, "double": DOUBLE}
    async with running(tmp_path, **family) as opened:
        state = await run(opened, "two")
        assert state.ctx == {"doubled": [2, 4, 6, 8, 10]}, state.failure
        middles = await children(opened, state.execution_id)
        assert len(middles) == 5
        for middle in middles:
            assert len(await children(opened, middle["execution_id"])) == 1
    assert min(brokers[0].shaken[what] for what in ("repeated", "delayed", "lost")) > 0
