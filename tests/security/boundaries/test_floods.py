"""Requests that are too much: long lists, long playbooks, streams by the hundred."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx
import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld, beginning

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.app import create_app
from noetl_planner.api.http.limiters import FollowerLimiter, FollowerLimits

Api = AsyncTestClient[Litestar]
YAML = {"Content-Type": "text/yaml"}
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: demo/long}\nworkflow:\n"
FOLLOWED = ExecutionId("7")
PATIENCE_S = 60.0


@pytest.fixture
async def world() -> ApiWorld:
    return ApiWorld()


@pytest.fixture
async def api(world: ApiWorld) -> AsyncIterator[Api]:
    async with AsyncTestClient(create_app(world.services())) as client:
        answer = await client.post("/api/catalog/register", content=PLAYBOOK, headers=YAML)
        assert answer.is_success, answer.text
        yield client


@pytest.mark.parametrize("item", ["1", "{}", '"x"', "[1]"])
async def test_a_list_of_a_million_items_is_stored_or_refused(
    api: Api, world: ApiWorld, item: str
) -> None:
    items = ",".join([item] * 1_000_000)
    body = '{"path": "demo/hello", "workload": {"deep": {"items": [' + items + "]}}}"
    answer = await api.post(
        "/api/execute", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (
        HTTPStatus.ACCEPTED,
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ), answer.text
    if answer.status_code == HTTPStatus.ACCEPTED:
        # The request refers to the list, and does not carry it.
        assert all(len(entry.row.data) < 100_000 for entry in world.store.message_by_id.values())
    else:
        assert answer.json()["code"]
        assert answer.json()["detail"]
    assert (await api.get("/api/health")).status_code == HTTPStatus.OK


@pytest.mark.parametrize("way", ["registered", "drafted"])
async def test_a_playbook_of_a_hundred_thousand_steps_is_refused_with_its_bound(
    api: Api, way: str
) -> None:
    steps = "".join(f"  - {{step: s{number}, tool: {{kind: noop}}}}\n" for number in range(100_000))
    if way == "registered":
        answer = await api.post("/api/catalog/register", content=HEAD + steps, headers=YAML)
    else:
        answer = await api.post("/api/execute", json={"content": HEAD + steps})
    assert HTTPStatus.BAD_REQUEST <= answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
    told = answer.json()
    assert any(word in str(told) for word in ("larger", "MiB", "bytes", "at most")), told
    assert (await api.get("/api/health")).status_code == HTTPStatus.OK


async def test_a_flood_of_streams_takes_no_more_than_its_places(world: ApiWorld) -> None:
    await world.append(FOLLOWED, beginning())
    await world.project(FOLLOWED)
    limits, limiter = FollowerLimits(all=100, client=12, execution=50), FollowerLimiter()
    app = create_app(world.services(follower_limits=limits, follower_limiter=limiter))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        address = f"/api/executions/{FOLLOWED}/stream"
        flood = [asyncio.ensure_future(client.get(address)) for _ in range(200)]
        # Those that are refused are answered at once; those with a place go on.
        refused: list[httpx.Response] = []
        for done in asyncio.as_completed(flood, timeout=PATIENCE_S):
            refused.append(await done)
            if len(refused) == len(flood) - limits.client:
                break
        other = await client.get("/api/executions")
        world.stop.set()
        followed = [
            answer for answer in await asyncio.gather(*flood) if answer.status_code == HTTPStatus.OK
        ]
    assert other.status_code == HTTPStatus.OK
    assert {answer.status_code for answer in refused} == {HTTPStatus.TOO_MANY_REQUESTS}
    assert "too_many_streams" in refused[0].text
    assert len(followed) == limits.client
    # Each place is free again.
    assert limiter.has_seat(FollowerLimits(all=1, client=1, execution=1))
