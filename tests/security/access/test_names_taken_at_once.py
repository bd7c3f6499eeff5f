"""Two who take one name at once: the database lets one of them, and nobody's is overwritten."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
from tests.security.access.test_folders_and_tenants import register
from tests.support.api import ApiWorld
from tests.support.identities import Caller, make_caller, make_guarded_app, open_client
from tests.support.storage import emptied, migrated, postgres_stores

NAMES = 12
BODY_BY_KIND: dict[str, dict[str, Any]] = {
    "webhooks": {"unsigned": True},
    "schedules": {"cron": "0 3 * * *"},
    "triggers": {"subject": "orders.*"},
}


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


@pytest.fixture
async def app(world: ApiWorld, database: str) -> AsyncIterator[Any]:
    """An API whose webhooks, schedules and triggers are on a real server."""
    async with migrated(database), emptied(database) as opened:
        stores = postgres_stores(opened)
        app = make_guarded_app(
            world,
            administration=stores.administration,
            webhooks=stores.webhooks,
            schedules=stores.schedules,
            triggers=stores.triggers,
        )
        for path in ("sales/load", "salesforce/load"):
            assert (await register(app, path)).status_code == HTTPStatus.OK
        yield app


async def put(app: Any, caller: Caller, address: str, body: dict[str, Any]) -> tuple[int, str]:
    async with open_client(app, caller) as client:
        answer = await client.put(address, json=body)
    return answer.status_code, answer.json()["path" if answer.is_success else "code"]


@pytest.mark.parametrize("kind", BODY_BY_KIND)
async def test_one_of_two_folders_gets_a_name(app: Any, world: ApiWorld, kind: str) -> None:
    ann = await make_caller(world, "author", path_prefix="sales")
    bob = await make_caller(world, "author", path_prefix="salesforce")
    for number in range(NAMES):
        address = f"/api/{kind}/name-{number}"
        body = BODY_BY_KIND[kind]
        if kind == "triggers":
            body = {"subject": f"orders-{number}.*"}
        answers = await asyncio.gather(
            put(app, ann, address, {**body, "path": "sales/load"}),
            put(app, bob, address, {**body, "path": "salesforce/load"}),
        )
        assert sorted(code for code, _ in answers) == [HTTPStatus.OK, HTTPStatus.CONFLICT], answers
        kept = next(path for code, path in answers if code == HTTPStatus.OK)
        owner = ann if kept == "sales/load" else bob
        async with open_client(app, owner) as client:
            assert (await client.get(address)).json()["path"] == kept


async def test_a_schedule_is_made_once(app: Any, world: ApiWorld) -> None:
    ann = await make_caller(world, "author")
    body = {"name": "nightly", "cron": "0 3 * * *", "path": "sales/load"}
    async with open_client(app, ann) as client:
        answers = await asyncio.gather(
            *(client.post("/api/schedules", json=body) for _ in range(6))
        )
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [HTTPStatus.OK, *[HTTPStatus.CONFLICT] * 5]
