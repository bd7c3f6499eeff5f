"""Callers who prefer to wait for the end (RFC 7240)."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.api import PLAYBOOK, ApiWorld, beginning, ending
from tests.support.polling import eventually

from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.execution_events import PlaybookFailed
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.requests import facts
from noetl_planner.api.app import create_app
from noetl_planner.api.executions.end_wait import parse_wait_s
from noetl_planner.api.http.limiters import FollowerLimits
from noetl_planner.api.watch import event_stream
from noetl_storage.memory.ledger import MemoryLedger

# A test that waited so long would be over its time.
LONG = {"Prefer": "respond-async, wait=60"}
ASKED = {"path": "demo/hello"}


def serve(world: ApiWorld, **changes: object) -> httpx.AsyncClient:
    """An API in the loop of the test, which goes on while a request waits."""
    transport = httpx.ASGITransport(app=create_app(world.services(**changes)))
    return httpx.AsyncClient(transport=transport, base_url="http://api")


@pytest.fixture
async def api(world: ApiWorld) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(world) as client:
        await register(client)
        yield client


async def register(api: httpx.AsyncClient) -> None:
    answer = await api.post(
        "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
    )
    assert answer.status_code == 200, answer.text


async def asked_for(world: ApiWorld) -> ExecutionId:
    """Wait until an execution is asked for; return its id."""

    async def find() -> list[ExecutionId]:
        messages = world.store.message_by_id.values()
        return [facts.decode_fact_batch(message.row.data).execution_id for message in messages]

    (execution_id,) = await eventually(find)
    return execution_id


async def test_who_waits_is_answered_with_the_end(api: httpx.AsyncClient, world: ApiWorld) -> None:
    headers = {**LONG, "Idempotency-Key": "k"}
    waiting = asyncio.create_task(api.post("/api/execute", json=ASKED, headers=headers))
    execution_id = await asked_for(world)
    await world.append(execution_id, [*beginning(), *ending()])
    answer = await waiting
    assert answer.status_code == 200, answer.text
    assert answer.headers["Preference-Applied"] == "wait=60"
    assert (answer.json()["execution_id"], answer.json()["status"]) == (execution_id, "COMPLETED")
    assert answer.json()["end"]["event_type"] == "playbook.completed"
    # Whoever has lost the answer asks again with the same key.
    await world.project(execution_id)
    again = await api.post("/api/execute", json=ASKED, headers=headers)
    assert (again.status_code, again.json()["deduplicated"]) == (200, True)
    assert again.json()["end"] == answer.json()["end"]
    # Of a history that is gone nothing is waited for.
    world.forget_history(execution_id)
    async with asyncio.timeout(60):
        gone = await api.post("/api/execute", json=ASKED, headers=headers)
    assert (gone.status_code, gone.json()["status"]) == (202, "COMPLETED")


async def test_what_was_just_accepted_is_not_asked_of_the_ledger(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a commit the ledger is looked at now and then: not within this test.
    monkeypatch.setattr(event_stream, "POLL_FIRST_S", 60.0)
    reads: list[ExecutionId] = []

    class Watched(MemoryLedger):
        async def read_events(
            self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 500
        ) -> list[Envelope]:
            reads.append(execution_id)
            return await super().read_events(
                execution_id, after_version=after_version, events_max=events_max
            )

        async def find_by_key(self, execution_id: ExecutionId, key: str) -> Envelope | None:
            reads.append(execution_id)
            return await super().find_by_key(execution_id, key)

    services = world.services(ledger=Watched(world.store))
    transport = httpx.ASGITransport(app=create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
        await register(api)
        waiting = asyncio.create_task(api.post("/api/execute", json=ASKED, headers=LONG))
        execution_id = await asked_for(world)
        await world.append(execution_id, [*beginning(), *ending()])
        history = await world.ledger.read_events(execution_id, after_version=0, events_max=500)

        async def shown() -> bool:
            services.shards.commit_feed.put_commits(execution_id, history, services.clock.now())
            return waiting.done()

        await eventually(shown)
        assert ((await waiting).status_code, reads) == (200, [])


async def test_a_failure_is_an_end_as_well(api: httpx.AsyncClient, world: ApiWorld) -> None:
    waiting = asyncio.create_task(api.post("/api/execute", json=ASKED, headers=LONG))
    error = ErrorObject(kind="assertion", message="no")
    failed = [*beginning(), PlaybookFailed(error=error)]
    await world.append(await asked_for(world), failed)
    answer = await waiting
    assert (answer.status_code, answer.json()["status"]) == (200, "FAILED")
    assert answer.json()["end"]["error"]["message"] == "no"


async def test_who_waits_in_vain_is_told_what_goes_on(api: httpx.AsyncClient) -> None:
    answer = await api.post("/api/execute", json=ASKED, headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["status"]) == (202, "PENDING")
    assert "Preference-Applied" not in answer.headers


async def test_a_planner_that_ends_keeps_nobody_waiting(
    api: httpx.AsyncClient, world: ApiWorld
) -> None:
    waiting = asyncio.create_task(api.post("/api/execute", json=ASKED, headers=LONG))
    await asked_for(world)
    world.stop.set()
    async with asyncio.timeout(60):
        assert (await waiting).status_code == 202


async def test_with_too_many_clients_nobody_waits(world: ApiWorld) -> None:
    async with serve(world, follower_limits=FollowerLimits(all=0)) as api:
        await register(api)
        async with asyncio.timeout(60):
            answer = await api.post("/api/execute", json=ASKED, headers=LONG)
        assert answer.status_code == 202


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("wait=5", 5),
        ("Wait = 5", 5),
        ('return=minimal; x="7", wait="5"', 5),
        ("respond-async,wait=100000", 60),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("wait", 0),
        ("await=5", 0),
        ("wait=99999999999999999999", 0),
    ],
)
def test_how_long_to_wait_is_read_from_the_header(prefer: str | None, seconds: int) -> None:
    assert parse_wait_s(prefer) == seconds
