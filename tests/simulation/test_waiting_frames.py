# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Rows of frames, and groups of a reduce, that call playbooks: all services in one process."""

from pathlib import Path

import pytest
from tests.simulation.test_child_playbooks import (
    DOUBLE,
    FAILS,
    SETTINGS,
    begun,
    children,
    ended,
    running,
    types,
)
from tests.support.polling import eventually

from noetl_cli.local.system import LocalSystem
from noetl_contracts.events.loop_events import StageOpened
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.executions import control_requests

pytestmark = pytest.mark.timeout(180)

CALLED = "{kind: playbook, path: family/double, return_step: calculate, input: {n: N}}"
EACH = """\
workflow:
  - step: each
    loop: {in: "{{ range(6) | list }}", iterator: it, spec: SPEC}
    tool:
      - {name: before, kind: noop, result: {seen: SEEN}, set: {kept: "{{ output.seen }}"}}
      - {name: ask, CALLED}
      - {name: after, kind: noop, result: "{{ kept }}+{{ ask.doubled }}"}
    set: {ctx.all: "{{ each.results }}", ctx.stats: "{{ each.stats }}"}
""".replace("CALLED", CALLED[1:-1])
SLOW = """\
workflow:
  - {step: calculate, tool: {kind: python, code: "import asyncio\\nawait asyncio.sleep(30)\\nresult = 1"}}
"""
REDUCED = """\
workflow:
  - step: each
    loop: {in: "{{ 5 }}", iterator: it, spec: {mode: fanout}}
    tool: {kind: noop, result: "{{ iter.it }}"}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: each, iterator: parts, spec: {mode: tree, fan_in: 3}}
    tool:
      - {name: ask, kind: playbook, path: family/double, return_step: calculate, input: {n: "{{ iter.parts | map(attribute='data') | sum }}"}}
      - {name: half, kind: noop, result: "{{ ask.doubled // 2 }}"}
    set: {ctx.total: "{{ total }}"}
"""


def each(spec: str, *, n: str, seen: str = "1") -> str:
    return EACH.replace("SPEC", spec).replace("n: N", f"n: {n}").replace("SEEN", seen)


RESTS = """\
workflow:
  - step: each
    loop: {in: "{{ range(6) | list }}", iterator: it, spec: SPEC}
    tool:
      - {name: before, kind: noop, result: {seen: "{{ iter.it }}"}, spec: {policy: {rules: [{else: {then: {do: continue, delay: "{{ 0.5 - iter.it / 20 }}"}}}]}}}
      - {name: after, kind: noop, result: "{{ before.seen }}"}
    set: {ctx.all: "{{ each.results }}"}
"""


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: parallel}",
        "{mode: chunked, chunk_size: 6, frame: {row_concurrency: 3}}",
        "{mode: fanout, fanout: {shard_size: 2}}",
    ],
)
async def test_rows_of_a_frame_let_time_pass_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    monkeypatch.setitem(SETTINGS, "NOETL_WORKER_HELD_WAIT_S", "0.05")
    async with running(tmp_path, rests=RESTS.replace("SPEC", spec)) as opened:
        execution_id = await begun(opened, "rests")
        state = await ended(opened, execution_id)
        told = await types(opened, execution_id)
    assert str(state.status) == "COMPLETED", state.failure
    assert state.ctx["all"] == list(range(6))
    assert 2 <= told.count("command.parked") == told.count("command.resumed") <= 6


@pytest.mark.parametrize(
    "spec",
    [
        "{mode: chunked, chunk_size: 2, max_in_flight: 3}",
        "{mode: chunked, chunk_size: 6, frame: {row_concurrency: 3}}",
        "{mode: fanout, fanout: {shard_size: 2}}",
    ],
)
async def test_rows_of_a_frame_wait_for_children_and_go_on_where_they_waited(
    tmp_path: Path, spec: str
) -> None:
    body = each(spec, n='"{{ iter.it }}"', seen='"{{ iter.it }}"')
    async with running(tmp_path, double=DOUBLE, parent=body) as opened:
        execution_id = await begun(opened, "parent")
        state = await ended(opened, execution_id)
        found = await children(opened, execution_id)
        told = await types(opened, execution_id)
    assert str(state.status) == "COMPLETED", state.failure
    shown = state.ctx["all"]
    assert shown == [f"{number}+{2 * number}" for number in range(6)]
    assert state.ctx["stats"]["success"] == 6
    assert len(found) == 6
    assert told.count("command.parked") == told.count("command.resumed") == 6
    frames = {told.count(f"frame.{kind}") for kind in ("dispatched", "started", "committed")}
    assert len(frames) == 1


async def test_a_body_that_takes_whole_frames_waits_too(tmp_path: Path) -> None:
    spec = "{mode: fanout, fanout: {shard_size: 3}, frame: {process: frame}}"
    body = each(spec, n='"{{ iter.it | sum }}"', seen='"{{ iter.it | length }}"')
    async with running(tmp_path, double=DOUBLE, parent=body) as opened:
        state = await ended(opened, await begun(opened, "parent"))
    assert str(state.status) == "COMPLETED", state.failure
    assert state.ctx["all"] == ["3+6", "3+24"]


async def test_groups_of_a_reduce_wait_too(tmp_path: Path) -> None:
    async with running(tmp_path, double=DOUBLE, parent=REDUCED) as opened:
        state = await ended(opened, await begun(opened, "parent"))
    assert str(state.status) == "COMPLETED", state.failure
    assert state.ctx["total"] == 10


async def test_a_shard_whose_child_fails_begins_anew_when_it_is_tried_again(
    tmp_path: Path,
) -> None:
    spec = "{mode: fanout, fanout: {shard_size: 6, max_shard_retries: 1, allow_partial: true}}"
    body = each(spec, n='"{{ iter.it }}"')
    async with running(tmp_path, double=FAILS, parent=body) as opened:
        execution_id = await begun(opened, "parent")
        state = await ended(opened, execution_id)
        found = await children(opened, execution_id)
    assert state.ctx["stats"]["failed"] == 6
    assert len(found) == 12


async def test_cancelling_stops_the_children_of_frames(tmp_path: Path) -> None:
    body = each("{mode: chunked, chunk_size: 3}", n="1")
    async with running(tmp_path, double=SLOW, parent=body) as opened:
        execution_id = await begun(opened, "parent")

        async def is_parked() -> bool:
            return "command.parked" in await types(opened, execution_id)

        await eventually(is_parked, timeout_s=30)
        await control_requests.request_cancel(opened.services, execution_id, "enough", cascade=True)
        state = await ended(opened, execution_id)
        (child,) = await children(opened, execution_id)
        over = await ended(opened, ExecutionId(child["execution_id"]))
    assert (str(state.status), str(over.status)) == ("CANCELLED", "CANCELLED")
    assert not state.stages


INNER = """\
workload: {n: 0}
workflow:
  - step: split
    loop: {in: "{{ workload.n + 1 }}", iterator: it, spec: {mode: fanout}}
    tool: {kind: noop, result: 1}
    next: {arcs: [{step: calculate}]}
  - step: calculate
    reduce: {from: split, iterator: parts}
    tool: {kind: noop, result: {doubled: "{{ iter.parts | length }}"}}
"""


async def test_stages_of_children_know_the_stage_that_called_them(tmp_path: Path) -> None:
    body = each("{mode: fanout, fanout: {shard_size: 3}}", n='"{{ iter.it }}"')
    async with running(tmp_path, double=INNER, parent=body) as opened:
        execution_id = await begun(opened, "parent")
        state = await ended(opened, execution_id)
        (outer,) = await stages(opened, execution_id)
        inner = [
            await stages(opened, item["execution_id"])
            for item in await children(opened, execution_id)
        ]
    assert state.ctx["all"] == [f"1+{number + 1}" for number in range(6)]
    assert outer.parent_stage_id is None
    assert len(inner) == 6
    for split, reduced in inner:
        assert split.parent_stage_id == outer.stage_id
        assert reduced.parent_stage_id == split.stage_id


async def stages(opened: LocalSystem, execution_id: ExecutionId) -> list[StageOpened]:
    """Every stage of an execution, as it opened; its row names the same parent."""
    history = await opened.adapters.ledger.read_events(execution_id, events_max=5000)
    stages = [item.event for item in history if isinstance(item.event, StageOpened)]
    rows = await opened.adapters.projections.list_rows("stage", execution_id)
    assert {row["stage_id"]: row["parent_stage_id"] for row in rows} == {
        stage.stage_id: stage.parent_stage_id for stage in stages
    }
    return stages
