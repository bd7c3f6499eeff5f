"""Business objects over HTTP: what they are, where they came from, what they were."""

from typing import Any

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld
from tests.support.builders import a_shop
from tests.support.storage import an_execution

from noetl_contracts.ids import ExecutionId, OrganizationId

Api = AsyncTestClient[Litestar]


async def a_sale(world: ApiWorld) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [envelope.event for envelope in a_shop().envelopes])
    await world.project(execution_id)
    return execution_id


async def ask(api: Api, path: str = "", **params: Any) -> Any:
    answer = await api.get(f"/api/objects{path}", params=params)
    return answer.json() | {"http": answer.status_code}


async def test_objects_are_listed_by_pages(api: Api, world: ApiWorld) -> None:
    execution_id = await a_sale(world)
    whole = await ask(api)
    assert (whole["http"], whole["next_after"]) == (200, None)
    assert whole["objects"]
    assert {item["execution_id"] for item in whole["objects"]} == {execution_id}
    found, after = [], ""
    while after is not None:
        part = await ask(api, limit=1, **({"after": after} if after else {}))
        found += part["objects"]
        after = part["next_after"]
    assert found == whole["objects"]
    kind = whole["objects"][0]["object_type"]
    typed = await ask(api, type=kind, execution_id=execution_id)
    assert {item["object_type"] for item in typed["objects"]} == {kind}
    there = await ask(api, deleted=False)
    assert not any(item["is_deleted"] for item in there["objects"])


async def test_an_object_is_shown_as_it_is_and_as_it_was(api: Api, world: ApiWorld) -> None:
    execution_id = await a_sale(world)
    listed = (await ask(api))["objects"]
    changed = max(listed, key=lambda one: one["version"])
    assert changed["version"] > 1
    path = f"/{changed['object_type']}/{changed['key']}"
    now = await ask(api, path)
    assert now["latest"] == changed
    assert now["executions"] == [changed]
    history = world.store.history_by_execution[execution_id]
    first = next(item for item in history if item.event_id == changed["first_event_id"])
    at = first.stream_version
    past = await ask(api, path, execution_id=execution_id, as_of_position=at)
    assert (past["as_of_position"], past["latest"]["version"]) == (at, 1)
    same = await ask(api, path, execution_id=execution_id, as_of_event_id=first.event_id)
    assert same == past
    before = await ask(api, path, execution_id=execution_id, as_of_position=at - 1)
    assert (before["http"], before["code"]) == (404, "not_found")
    end = await ask(api, path, execution_id=execution_id)
    assert end["latest"] == changed


async def test_what_cannot_be_shown_says_why(api: Api, world: ApiWorld) -> None:
    execution_id = await a_sale(world)
    assert (await ask(api, "/order/none"))["http"] == 404
    assert (await ask(api, "/order/1", as_of_position=1))["http"] == 400
    assert (await ask(api, "/order/1", execution_id=execution_id, as_of_position=999))[
        "http"
    ] == 400
    assert (await ask(api, execution_id=str(an_execution())))["http"] == 404
    assert (await ask(api, limit=0))["http"] == 400


async def test_another_organization_sees_none_of_them(api: Api, world: ApiWorld) -> None:
    await a_sale(world)
    rows = world.store.row_by_key_by_surface["business_object"]
    for key, row in rows.items():
        rows[key] = row | {"organization_id": OrganizationId("other")}
    assert (await ask(api))["objects"] == []
