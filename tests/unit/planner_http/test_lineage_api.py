"""Lineage over HTTP: the same events that a projector keeps, by pages."""

from typing import Any

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support import openlineage
from tests.support.api import ApiWorld, beginning
from tests.support.builders import a_failed_run
from tests.support.storage import an_execution

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId

Api = AsyncTestClient[Litestar]


async def a_failure(world: ApiWorld) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [envelope.event for envelope in a_failed_run().envelopes])
    await world.project(execution_id)
    return execution_id


async def page(api: Api, execution_id: str, **params: Any) -> Any:
    answer = await api.get(f"/api/executions/{execution_id}/lineage", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_run_is_told_from_the_ledger(api: Api, world: ApiWorld) -> None:
    execution_id = await a_failure(world)
    found = await page(api, execution_id)
    assert (found["execution_id"], found["has_more"]) == (execution_id, False)
    events = [openlineage.check(codec.encode_json(event)) for event in found["events"]]
    assert [events[0]["eventType"], events[-1]["eventType"]] == ["START", "FAIL"]


async def test_pages_make_the_whole(api: Api, world: ApiWorld) -> None:
    execution_id = await a_failure(world)
    whole = await page(api, execution_id)
    found, after, has_more = [], 0, True
    while has_more:
        part = await page(api, execution_id, after=after, limit=1)
        found += part["events"]
        after, has_more = part["next_after"], part["has_more"]
    assert found == whole["events"]


async def test_what_is_not_there_is_not_told(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    assert len((await page(api, execution_id))["events"]) == 2
    for stranger in (an_execution(), "x"):
        answer = await api.get(f"/api/executions/{stranger}/lineage")
        assert answer.status_code == 404
