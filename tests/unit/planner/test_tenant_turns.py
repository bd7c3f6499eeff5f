"""A tenant that floods a shard holds up no other tenant with a share of its own."""

import asyncio
from pathlib import Path

import pytest
from tests.support.one_shard import World

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import facts
from noetl_messaging.streams import topology
from noetl_planner.facts import share_turns
from noetl_planner.facts.share_turns import DEBT_S_MAX, TURNS_AT_ONCE, ShareTurns

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


class Timer:
    """Time that passes as a test says; what waits for it waits no real time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waited_s = 0.0

    def get_time(self) -> float:
        """The seconds by now."""
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        """Let that time pass."""
        self.waited_s += seconds
        self.now_s += seconds


async def use_time(
    timer: Timer, turns: ShareTurns, tenant: TenantId | None, *, for_s: float
) -> float:
    """Take a turn of so many seconds; return how long it waited before."""
    before_s = timer.waited_s
    async with turns.take_turn(tenant):
        timer.now_s += for_s
    return timer.waited_s - before_s


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    timer = Timer()
    monkeypatch.setattr(share_turns.asyncio, "sleep", timer.sleep)
    return timer


async def test_a_share_that_is_alone_never_waits(timer: Timer) -> None:
    turns = ShareTurns({NOISY, QUIET}, get_time=timer.get_time)
    assert [await use_time(timer, turns, NOISY, for_s=3.0) for _ in range(9)] == [0.0] * 9


async def test_a_flood_gets_half_of_the_time_while_another_tenant_has_work(timer: Timer) -> None:
    turns = ShareTurns({NOISY, QUIET}, get_time=timer.get_time)
    for _ in range(200):
        assert await use_time(timer, turns, QUIET, for_s=0.001) == 0.0
        await use_time(timer, turns, NOISY, for_s=0.05)
    used_s = 200 * 0.05
    assert used_s * 0.9 <= timer.waited_s <= used_s


async def test_the_part_of_a_tenant_that_has_no_work_any_more_is_given_back(timer: Timer) -> None:
    turns = ShareTurns({NOISY, QUIET}, get_time=timer.get_time)
    await use_time(timer, turns, QUIET, for_s=0.001)
    await use_time(timer, turns, NOISY, for_s=0.5)
    assert await use_time(timer, turns, NOISY, for_s=0.5) > 0
    timer.now_s += share_turns.KEPT_S
    assert await use_time(timer, turns, NOISY, for_s=0.5) == 0.0


async def test_a_long_turn_is_not_held_against_its_tenant_for_long(timer: Timer) -> None:
    turns = ShareTurns({NOISY, QUIET}, get_time=timer.get_time)
    await use_time(timer, turns, QUIET, for_s=0.001)
    await use_time(timer, turns, NOISY, for_s=1.5)
    assert 0 < await use_time(timer, turns, NOISY, for_s=0.0) <= DEBT_S_MAX


async def test_tenants_without_a_share_of_their_own_are_one_of_them(timer: Timer) -> None:
    turns = ShareTurns({QUIET}, get_time=timer.get_time)
    assert (turns.find_share(QUIET), turns.find_share(NOISY)) == (QUIET, None)
    await use_time(timer, turns, QUIET, for_s=0.001)
    await use_time(timer, turns, None, for_s=0.5)
    assert await use_time(timer, turns, None, for_s=0.5) > 0
