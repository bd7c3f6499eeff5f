"""Executions that begin at a step of an earlier one, over HTTP."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld
from tests.support.storage import an_execution

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import Event
from noetl_contracts.events.execution_events import CtxPatched, PlaybookFailed, PlaybookInitialized
from noetl_contracts.events.step_events import CallDone, CallError, StepEnter, StepExit
from noetl_contracts.ids import CatalogId, CommandId, ExecutionId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.status import RunStatus

Api = AsyncTestClient[Litestar]
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chain, path: demo/chain, description: first}
workload: {n: 1, m: 0}
workflow:
  - step: split
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: fetch}, {step: side}]}
  - {step: fetch, tool: {kind: noop}, next: {arcs: [{step: merge}]}}
  - {step: side, tool: {kind: noop}, next: {arcs: [{step: merge}]}}
  - {step: merge, tool: {kind: noop}}
"""
FAILURE = ErrorObject(kind="timeout", message="no answer", step="fetch")


def run(step: str, number: int, value: Any, **ctx: Any) -> list[Event]:
    """A run of a step that went well and wrote to `ctx`."""
    run_id = RunId(str(number))
    result = ResultEnvelope(status="ok", context={"data": {"value": value}})
    return [
        StepEnter(step=step, run_id=run_id, activation=number, came_from="split"),
        CallDone(
            step=step, run_id=run_id, command_id=CommandId(str(number)), result=result, patch=ctx
        ),
        StepExit(step=step, run_id=run_id, status=RunStatus.COMPLETED),
    ]


def failed_history() -> list[Event]:
    """Two branches: `fetch` fails, after an entry before; `side` ends while it runs."""
    enter = StepEnter(step="fetch", run_id=RunId("4"), activation=4, came_from="split")
    return [
        PlaybookInitialized(
            path="demo/chain",
            catalog_id=CatalogId("1"),
            catalog_version=1,
            playbook_digest="d",
            entry_step="split",
            workload={"n": 7},
        ),
        *run("split", 1, "s", seen=1),
        *run("fetch", 2, "early"),
        enter,
        *run("side", 3, "late", seen=2),
        CtxPatched(patch={"after": True}),
        CallError(step="fetch", run_id=RunId("4"), command_id=CommandId("4"), error=FAILURE),
        StepExit(
            step="fetch",
            run_id=RunId("4"),
            status=RunStatus.FAILED,
            is_handled=False,
            error=FAILURE,
        ),
        PlaybookFailed(error=FAILURE, step="fetch"),
    ]


async def failed(api: Api, world: ApiWorld) -> ExecutionId:
    answer = await api.post(
        "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
    )
    assert answer.status_code == 200, answer.text
    execution = an_execution()
    await world.append(execution, failed_history())
    await world.project(execution)
    return execution


def asked(world: ApiWorld) -> facts.ExecutionRequested:
    (message,) = world.store.message_by_id.values()
    (fact,) = facts.decode_fact_batch(message.row.data).facts
    assert isinstance(fact, facts.ExecutionRequested)
    return fact


async def test_the_failed_step_is_the_default_and_what_was_before_it_is_taken_over(
    api: Api, world: ApiWorld
) -> None:
    known = await failed(api, world)
    answer = await api.post(f"/api/executions/{known}/rerun", json={"workload": {"m": 1}})
    assert answer.status_code == 202, answer.text
    fact = asked(world)
    assert (fact.path, fact.version, fact.workload) == ("demo/chain", 1, {"m": 1})
    rerun = fact.rerun
    assert rerun is not None
    assert (rerun.source.execution_id, rerun.source.step) == (known, "fetch")
    # Up to its latest entry: the events before it are seven.
    assert (rerun.source.version, rerun.came_from) == (7, "split")
    assert rerun.inherited is not None
    assert rerun.inherited.workload == {"n": 7}
    assert rerun.inherited.ctx == {"seen": 1}
    values = {item.step: item.result.context for item in rerun.inherited.steps if item.result}
    # What another branch did meanwhile need not be done again.
    assert {step: context["data"]["value"] for step, context in values.items()} == {
        "split": "s",
        "fetch": "early",
        "side": "late",
    }


async def test_any_step_may_be_named_and_one_never_entered_takes_over_everything(
    api: Api, world: ApiWorld
) -> None:
    known = await failed(api, world)
    answer = await api.post(f"/api/executions/{known}/rerun", json={"from_step": "merge"})
    assert answer.status_code == 202, answer.text
    rerun = asked(world).rerun
    assert rerun is not None
    assert rerun.inherited is not None
    assert rerun.inherited.ctx == {"seen": 2, "after": True}
    assert {step.step for step in rerun.inherited.steps} == {"split", "fetch", "side"}


@pytest.mark.parametrize(("pinned", "version"), [(True, 1), (False, 2)])
async def test_the_version_is_the_sources_or_the_latest(
    api: Api,
    world: ApiWorld,
    pinned: bool,  # noqa: FBT001 - what the test is about
    version: int,
) -> None:
    known = await failed(api, world)
    newer = PLAYBOOK.replace("first", "second")
    await api.post("/api/catalog/register", content=newer, headers={"Content-Type": "text/yaml"})
    answer = await api.post(f"/api/executions/{known}/rerun", json={"pinned": pinned})
    assert answer.json()["version"] == asked(world).version == version


async def test_one_key_is_one_rerun(api: Api, world: ApiWorld) -> None:
    known = await failed(api, world)
    headers = {"Idempotency-Key": "again"}
    first, again = [
        await api.post(f"/api/executions/{known}/rerun", headers=headers) for _ in range(2)
    ]
    assert first.json()["execution_id"] == again.json()["execution_id"]
    other = await api.post(
        f"/api/executions/{known}/rerun", headers=headers, json={"from_step": "merge"}
    )
    assert other.status_code == 409


async def test_much_that_is_taken_over_is_stored(api: Api, world: ApiWorld) -> None:
    await failed(api, world)
    execution = an_execution()
    history = failed_history()
    large = [CtxPatched(patch={f"k{n}": "x" * 10_000}) for n in range(20)]
    await world.append(execution, [history[0], *large, *history[1:]])
    await world.project(execution)
    await api.post(f"/api/executions/{execution}/rerun")
    rerun = asked(world).rerun
    assert rerun is not None
    assert rerun.inherited is None
    assert rerun.inherited_ref is not None
    kept = codec.decode_json(await world.payloads.read_payload(rerun.inherited_ref))
    assert len(kept["ctx"]) == 21


async def test_a_rerun_from_nowhere_is_refused(api: Api, world: ApiWorld) -> None:
    known = await failed(api, world)
    unknown = await api.post(f"/api/executions/{known}/rerun", json={"from_step": "fetsh"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_step")
    assert "fetch" in unknown.json()["hint"]
    unlike = await api.post(f"/api/executions/{known}/rerun", json={"from_step": "zzz"})
    assert unlike.json()["hint"].startswith("its steps are ")
    fine = an_execution()
    await world.append(fine, failed_history()[:7])
    await world.project(fine)
    without = await api.post(f"/api/executions/{fine}/rerun")
    assert (without.status_code, without.json()["code"]) == (422, "no_failed_step")
    assert (await api.post(f"/api/executions/{an_execution()}/rerun")).status_code == 404
