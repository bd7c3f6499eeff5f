"""What the API tells of pools, and of commands that wait for somebody to serve them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld, beginning
from tests.support.identities import (
    OTHER,
    OWNER,
    make_caller,
    make_guarded_app,
    open_client,
)
from tests.support.storage import ORGANIZATION, TENANT, an_execution

from noetl_chassis.clock import SystemClock
from noetl_contracts import subjects
from noetl_contracts.commands.worker_pools import Pools, Priority, WorkerHeartbeat
from noetl_contracts.events.command_events import CommandIssued, CommandStarted
from noetl_contracts.ids import CommandId, ExecutionId, RunId, WorkerId
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryBacklogs
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Backlog, Message
from noetl_planner.api.app import create_app
from noetl_planner.domain.decision.draft import Limits

Api = AsyncTestClient[Litestar]
POOLS = Pools(by_stream=("default", "gpu"), by_http=("edge",))


@asynccontextmanager
async def opened(
    world: ApiWorld, *, backlogs: type[MemoryBacklogs] = MemoryBacklogs
) -> AsyncIterator[tuple[Api, MemoryBroker]]:
    broker = MemoryBroker(
        topology.declare_topology(shard_count=1, pools=POOLS.by_stream), SystemClock()
    )
    await broker.ensure_streams()
    services = world.services(limits=Limits(pools=POOLS), backlogs=backlogs(broker))
    async with AsyncTestClient(create_app(services)) as api:
        yield api, broker


def issue_command(pool: str) -> CommandIssued:
    """The event by which a step's command waits in a pool."""
    return CommandIssued(
        command_id=CommandId("5"),
        run_id=RunId("11"),
        step="start",
        unit="step",
        pool=pool,
        lane="io",
        attempts_max=3,
    )


async def waiting(world: ApiWorld, pool: str) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), issue_command(pool)])
    await world.project(execution_id)
    return execution_id


@pytest.mark.parametrize(
    ("pool", "is_served", "reason"),
    [
        ("gpu", False, "no worker serves pool 'gpu'"),
        ("gone", False, "no worker serves pool 'gone'"),
        ("edge", True, "claims it over HTTP"),
    ],
)
async def test_a_status_says_why_a_command_waits(
    world: ApiWorld, pool: str, *, is_served: bool, reason: str
) -> None:
    execution_id = await waiting(world, pool)
    async with opened(world) as (api, _):
        status = (await api.get(f"/api/executions/{execution_id}/status")).json()
    (found,) = status["waiting"]
    assert (found["pool"], found["commands"], found["is_served"]) == (pool, 1, is_served)
    assert reason in found["reason"]


async def test_a_pool_with_workers_lets_commands_wait_behind_others(world: ApiWorld) -> None:
    execution_id = await waiting(world, "gpu")
    async with opened(world) as (api, broker):
        broker.asking[topology.COMMANDS, "worker-gpu-io"] += 1
        status = (await api.get(f"/api/executions/{execution_id}/status")).json()
        pools = (await api.get("/api/pools")).json()["pools"]
    assert "behind other work" in status["waiting"][0]["reason"]
    assert [(pool["name"], pool["transport"], pool["served"]) for pool in pools] == [
        ("default", "jetstream", False),
        ("gpu", "jetstream", True),
        ("edge", "http", True),
    ]


async def test_what_waits_in_a_tenants_share_is_told_of_its_own_work_alone(
    world: ApiWorld,
) -> None:
    execution_id = await waiting(world, "gpu")
    shares = topology.declare_topology(shard_count=1, pools=POOLS.by_stream, tenants=[TENANT])
    broker = MemoryBroker(shares, SystemClock())
    await broker.ensure_streams()
    limits = Limits(pools=POOLS, tenants=frozenset({TENANT}))
    services = world.services(limits=limits, backlogs=MemoryBacklogs(broker))
    for number, owner in enumerate([(TENANT, ORGANIZATION), (TENANT, ORGANIZATION), OTHER]):
        command = subjects.build_command_subject("gpu", "io", *owner, is_own=owner != OTHER)
        await broker.publish_message(Message(subject=command, message_id=str(number), data=b"{}"))
    own_consumer = topology.build_worker_consumer("gpu", "io", TENANT)
    reasons = []
    async with AsyncTestClient(create_app(services)) as api:
        for consumer in ("worker-gpu-io", own_consumer):
            broker.asking[topology.COMMANDS, consumer] += 1
            status = (await api.get(f"/api/executions/{execution_id}/status")).json()
            (found,) = status["waiting"]
            reasons.append((found["is_share"], found["is_served"], found["reason"]))
    share = f"the share of tenant '{TENANT}' in pool 'gpu'"
    start = f"start one with NOETL_WORKER_POOL=gpu and {TENANT} in NOETL_WORKER_TENANTS"
    places = "2 commands of it wait, 0 are with workers"
    assert reasons == [
        (True, False, f"no worker serves {share}: {start}"),
        (True, True, f"until {share} has a free place: {places}"),
    ]


class LostBacklogs(MemoryBacklogs):
    """A bus that does not answer."""

    async def find_backlog(self, *, stream: str, consumer: str) -> Backlog | None:
        raise MessagingUnavailable(f"asking about {stream}/{consumer}")


async def test_a_bus_that_does_not_answer_leaves_unknown_whether_workers_serve_a_pool(
    world: ApiWorld,
) -> None:
    execution_id = await waiting(world, "gpu")
    async with opened(world, backlogs=LostBacklogs) as (api, _):
        status = (await api.get(f"/api/executions/{execution_id}/status")).json()
        pools = (await api.get("/api/pools")).json()["pools"]
    assert status["waiting"][0]["is_served"] is None
    assert status["waiting"][0]["reason"] == "not known: NATS does not tell how pool 'gpu' stands"
    assert [(pool["name"], pool["served"]) for pool in pools] == [
        ("default", None),
        ("gpu", None),
        ("edge", True),
    ]


async def test_what_a_pool_cannot_run_is_said_when_the_playbook_is_registered(
    world: ApiWorld,
) -> None:
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: demo/streams}
workflow:
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
  - step: b
    spec: {pool: edge}
    tool: {kind: python, code: "return []", stream: {}}
    next: {arcs: [{step: c}]}
  - {step: c, spec: {pool: gqu}, tool: {kind: noop}}
"""
    async with opened(world) as (api, _):
        answer = await api.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
    assert answer.status_code == 200
    streams, unknown = answer.json()["diagnostics"]
    assert (streams["code"], streams["severity"]) == ("requirement_missing", "warning")
    assert (streams["step"], unknown["step"]) == ("b", "c")
    assert "leave out 'stream'" in streams["message"]
    assert "did you mean 'gpu'" in unknown["message"]


async def test_a_request_may_name_a_pool_and_a_priority(world: ApiWorld) -> None:
    async with opened(world) as (api, _):
        text = {"Content-Type": "text/yaml"}
        await api.post("/api/catalog/register", content=PLAYBOOK, headers=text)

        async def ask(**body: Any) -> Any:
            return await api.post("/api/execute", json={"path": "demo/hello", **body})

        assert (await ask(pool="gpu", priority="high")).status_code == 202
        refused = await ask(pool="gqu")
        assert (refused.status_code, refused.json()["code"]) == (422, "requirement_missing")
        assert "did you mean 'gpu'" in refused.json()["detail"]
        assert (await ask(pool="a.b")).status_code == 400
        assert (await ask(priority="urgent")).status_code == 400
    (fact,) = [
        fact
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, ExecutionRequested)
    ]
    assert (fact.pool, fact.priority) == ("gpu", Priority.HIGH)


async def test_the_api_lists_workers_by_what_they_last_said(world: ApiWorld) -> None:
    services = world.services()
    services.shards.worker_presence.note_beat(
        WorkerHeartbeat(
            worker_id=WorkerId("w"),
            pool="gpu",
            lanes=("io",),
            running=3,
            capacity=4,
            locality={"node": "n1"},
            missing_walls=("network",),
        )
    )
    async with AsyncTestClient(create_app(services)) as api:
        (worker,) = (await api.get("/api/workers")).json()["workers"]
    assert (worker["worker_id"], worker["pool"], worker["free"]) == ("w", "gpu", 1)
    assert worker["locality"] == {"node": "n1"}
    assert worker["missing_walls"] == ["network"]


async def test_a_shared_pool_shows_what_waits_of_the_own_organization_alone() -> None:
    world = ApiWorld()
    await waiting(world, "gpu")
    broker = MemoryBroker(
        topology.declare_topology(shard_count=1, pools=POOLS.by_stream), SystemClock()
    )
    await broker.ensure_streams()
    for number in range(3):
        command = subjects.build_command_subject("gpu", "io", *OTHER)
        await broker.publish_message(Message(subject=command, message_id=str(number), data=b"{}"))
    app = make_guarded_app(world, limits=Limits(pools=POOLS), backlogs=MemoryBacklogs(broker))
    shown = {}
    other, own = await make_caller(world, "viewer", place=OTHER), await make_caller(world, "viewer")
    for caller in (OWNER, other, own):
        async with open_client(app, caller) as client:
            pools = (await client.get("/api/pools")).json()["pools"]
        (gpu,) = (pool for pool in pools if pool["name"] == "gpu")
        shown[caller.name] = {lane["lane"]: lane["pending"] for lane in gpu["lanes"]}["io"]
    assert list(shown.values()) == [3, 0, 1]


async def leased(world: ApiWorld, pool: str) -> ExecutionId:
    execution_id = an_execution()
    started = CommandStarted(
        command_id=CommandId("5"),
        run_id=RunId("11"),
        step="start",
        attempt=1,
        worker_id=WorkerId("w-1"),
    )
    await world.append(execution_id, [*beginning(), issue_command(pool), started])
    await world.project(execution_id)
    return execution_id


@pytest.mark.parametrize("pool", ["gpu", "edge"])
async def test_what_a_worker_holds_is_told_with_the_end_of_its_lease(
    world: ApiWorld, pool: str
) -> None:
    execution_id = await leased(world, pool)
    async with opened(world) as (api, _):
        found = (await api.get("/api/workers/leases")).json()
        of_others = (await api.get("/api/workers/leases", params={"worker": "w-2"})).json()
    (lease,) = found["leases"]
    assert (lease["execution_id"], lease["path"], lease["step"]) == (
        *(execution_id, "demo/hello", "start"),
    )
    assert (lease["worker_id"], lease["attempt"], lease["pool"]) == ("w-1", 1, pool)
    assert lease["since"] is not None
    # Of pools of JetStream the bus alone knows when a lease ends.
    assert (lease["ends_at"] is None) == (pool == "gpu")
    assert not found["has_more"]
    assert of_others["leases"] == []


async def test_leases_of_other_organizations_are_not_told(world: ApiWorld) -> None:
    await leased(world, "gpu")
    caller = await make_caller(world, "viewer", place=OTHER)
    async with open_client(make_guarded_app(world), caller) as client:
        assert (await client.get("/api/workers/leases")).json()["leases"] == []
