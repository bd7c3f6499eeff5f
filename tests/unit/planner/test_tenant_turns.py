"""A tenant that floods a shard holds up no other tenant with a share of its own."""

import asyncio
from pathlib import Path

from tests.support.one_shard import World

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import facts
from noetl_messaging.streams import topology
from noetl_planner.shards.shard_context import TURNS_AT_ONCE, ShareTurns

QUIET, NOISY = TenantId("quiet"), TenantId("noisy")
ORGANIZATION = OrganizationId("default")
FLOOD = 60


def send_fact(world: World, tenant: TenantId, tenants: frozenset[str]) -> ExecutionId:
    """Have a tenant ask for the playbook `good`."""
    execution_id = ExecutionId(str(world.adapters.snowflake.next_id()))
    batch = world.batch(execution_id, facts.ExecutionRequested(path="good"), tenant_id=tenant)
    subject = IngestRoutes(shard_count=1, tenants=tenants).build_subject(
        execution_id, tenant, ORGANIZATION
    )
    world.send(codec.encode_json(batch), subject=subject)
    return execution_id


def count_decided_before(world: World, tenants: frozenset[str]) -> int:
    """Let one tenant flood the shard; return how much of that was decided before the other's."""
    flood = [send_fact(world, NOISY, tenants) for _ in range(FLOOD)]
    quiet = send_fact(world, QUIET, tenants)
    # No playbook of theirs is registered: what cannot begin is buried, in the order of decisions.
    world.run(run_turns(world))
    order = [codec.decode_json(dead_letter.data)["execution_id"] for dead_letter in world.buried()]
    assert set(order) == {*flood, quiet}
    return order.index(quiet)


async def run_turns(world: World) -> None:
    """Take a turn of every share, at once as a process does."""
    await asyncio.gather(*(planner.run_turn() for planner in world.planners))


def test_the_turns_of_shares_alternate_decision_by_decision(tmp_path: Path) -> None:
    world = World(tmp_path, {}, tenants=(NOISY, QUIET))
    assert count_decided_before(world, frozenset({NOISY, QUIET})) <= len(world.planners)
    world.close()


def test_who_has_no_share_waits_for_all_that_came_before(tmp_path: Path) -> None:
    world = World(tmp_path, {})
    assert count_decided_before(world, frozenset()) == FLOOD
    world.close()


def test_a_queue_of_its_own_and_the_common_one_hold_no_fact_twice(tmp_path: Path) -> None:
    world = World(tmp_path, {}, tenants=(NOISY,))
    for tenants in (frozenset({NOISY}), frozenset[str]()):
        send_fact(world, NOISY, tenants)
    world.run(run_turns(world))
    assert sorted(dead_letter.consumer for dead_letter in world.buried()) == [
        topology.build_planner_consumer(0),
        topology.build_planner_consumer(0, NOISY),
    ]
    world.close()


async def test_of_one_share_few_shards_are_decided_on_at_once() -> None:
    turns, running, most = ShareTurns({NOISY, QUIET}), 0, 0

    async def take_turn() -> None:
        nonlocal running, most
        async with turns.take_turn(NOISY):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            async with turns.take_turn(QUIET):
                running -= 1

    await asyncio.gather(*(take_turn() for _ in range(16)))
    assert most == TURNS_AT_ONCE
