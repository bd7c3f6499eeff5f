"""Whose history is another's is as unknown as one that never was, wherever it is asked for."""

from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import ORGANIZATION, TENANT, an_execution

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_planner.api.app import create_app
from noetl_storage.memory.ledger import MemoryLedgerAudit
from noetl_storage.ports.errors import HistoryDropped

STRANGERS = [(TENANT, "other"), ("other", ORGANIZATION), ("other", "other")]
ROUTES = [
    ("GET", "/api/executions/{}"),
    ("GET", "/api/executions/{}/events"),
    ("GET", "/api/executions/{}/status"),
    ("GET", "/api/executions/{}/logs"),
    ("GET", "/api/executions/{}/logs/stream"),
    ("GET", "/api/executions/{}/moment/stream"),
    ("GET", "/api/executions/{}/lineage"),
    ("POST", "/api/executions/{}/cancel"),
    ("POST", "/api/executions/{}/rerun"),
    ("GET", "/api/vars/{}"),
    ("GET", "/api/audit/executions/{}"),
    ("GET", "/api/replay/state"),
    ("GET", "/api/replay/live"),
    ("POST", "/api/retention/holds"),
]


class DroppedAudit(MemoryLedgerAudit):
    """Histories of which the events were dropped, and the heads are there."""

    async def read_stored_events(self, *_args: object, **_rest: object) -> list[StoredEvent]:
        raise HistoryDropped("its owner's policy has removed it")


async def a_run(world: ApiWorld) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    await world.project(execution_id)
    return execution_id


async def ask(
    world: ApiWorld, place: tuple[str, str], method: str, path: str, execution_id: str, **rest: Any
) -> Any:
    tenant_id, organization_id = place
    named = {"tenant_id": tenant_id, "organization_id": organization_id}
    body = {**named, "reason": "case 7", "who": "ann", "execution_id": execution_id}
    params: dict[str, str] = {}
    if path.startswith(("/api/replay", "/api/audit")):
        params = named
    if path.startswith("/api/replay"):
        params = {**named, "execution_id": execution_id}
    services = world.services(**named, **rest)
    async with AsyncTestClient(create_app(services)) as api:
        return await api.request(
            method,
            path.format(execution_id),
            params=params,
            json=body if path.endswith("holds") else None,
        )


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_stranger_finds_nothing(stranger: tuple[str, str], method: str, path: str) -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    answer = await ask(world, stranger, method, path, execution_id)
    never = await ask(world, stranger, method, path, "7")
    assert (answer.status_code, never.status_code) == (404, 404)
    assert answer.text.replace(execution_id, "7") == never.text


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[0] == "GET"])
async def test_the_owner_finds_it(method: str, path: str) -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    assert (await ask(world, (TENANT, ORGANIZATION), method, path, execution_id)).is_success


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_stranger_is_not_told_where_a_dropped_history_ended(
    stranger: tuple[str, str],
) -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    path = "/api/audit/executions/{}"
    audit = DroppedAudit(world.store)
    assert (await ask(world, stranger, "GET", path, execution_id, audit=audit)).status_code == 404
    answer = await ask(world, (TENANT, ORGANIZATION), "GET", path, execution_id, audit=audit)
    assert answer.json()["dropped"]


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_history_without_a_head_is_its_events_owners(stranger: tuple[str, str]) -> None:
    world = ApiWorld()
    execution_id = await a_run(world)

    class Headless(MemoryLedgerAudit):
        async def find_owner(self, execution_id: ExecutionId) -> None:
            return None

    path = "/api/audit/executions/{}"
    audit = Headless(world.store)
    assert (await ask(world, stranger, "GET", path, execution_id, audit=audit)).status_code == 404
    answer = await ask(world, (TENANT, ORGANIZATION), "GET", path, execution_id, audit=audit)
    assert answer.is_success
