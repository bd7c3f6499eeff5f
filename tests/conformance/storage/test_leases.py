import asyncio

import pytest
from tests.support.storage import SHARD_COUNT, Stores, eventually

from noetl_storage.ports.errors import NodeNumbersExhausted

LONG_S = 60.0
SHORT_S = 0.2


async def test_shards_are_divided_and_never_shared(stores: Stores) -> None:
    ours = await stores.shards.claim_shards(
        owner="a", lease_s=LONG_S, shards_max=3, shard_count=SHARD_COUNT
    )
    theirs = await stores.shards.claim_shards(
        owner="b", lease_s=LONG_S, shards_max=3, shard_count=SHARD_COUNT
    )
    assert [lease.shard for lease in ours] == [0, 1, 2]
    assert [lease.shard for lease in theirs] == [3]
    assert {lease.owner for lease in ours} == {"a"}
    assert await stores.shards.list_owners() == {"a": 3, "b": 1}


async def test_claimers_at_the_same_time_share_nothing(stores: Stores) -> None:
    claims = await asyncio.gather(
        *(
            stores.shards.claim_shards(owner=str(n), lease_s=LONG_S, shards_max=2, shard_count=16)
            for n in range(8)
        )
    )
    shards = [lease.shard for claim in claims for lease in claim]
    assert len(shards) == len(set(shards))
    rest = await stores.shards.claim_shards(
        owner="z", lease_s=LONG_S, shards_max=16, shard_count=16
    )
    assert sorted([*shards, *(lease.shard for lease in rest)]) == list(range(16))


async def test_claiming_again_keeps_what_is_held(stores: Stores) -> None:
    first = await stores.shards.claim_shards(owner="a", lease_s=LONG_S, shards_max=2, shard_count=4)
    again = await stores.shards.claim_shards(owner="a", lease_s=LONG_S, shards_max=2, shard_count=4)
    more = await stores.shards.claim_shards(owner="a", lease_s=LONG_S, shards_max=3, shard_count=4)
    assert again == first
    assert more[:2] == first
    assert len(more) == 3


async def test_a_takeover_raises_the_epoch(stores: Stores) -> None:
    (before,) = await stores.shards.claim_shards(
        owner="a", lease_s=SHORT_S, shards_max=1, shard_count=1
    )
    (after,) = await eventually(
        lambda: stores.shards.claim_shards(owner="b", lease_s=LONG_S, shards_max=1, shard_count=1),
        what="the lease ends",
    )
    assert after.shard == before.shard
    assert after.epoch > before.epoch
    assert await stores.shards.extend_leases(owner="a", lease_s=LONG_S) == []


async def test_extending_keeps_the_epoch_and_moves_the_end(stores: Stores) -> None:
    before = await stores.shards.claim_shards(owner="a", lease_s=30.0, shards_max=2, shard_count=4)
    after = await stores.shards.extend_leases(owner="a", lease_s=LONG_S)
    assert [(lease.shard, lease.epoch) for lease in after] == [
        (lease.shard, lease.epoch) for lease in before
    ]
    assert after[0].leased_until > before[0].leased_until


async def test_a_released_shard_is_free_at_once(stores: Stores) -> None:
    (before,) = await stores.shards.claim_shards(
        owner="a", lease_s=LONG_S, shards_max=1, shard_count=1
    )
    await stores.shards.release_shards(owner="b", shards=[before.shard])
    assert await stores.shards.list_owners() == {"a": 1}
    await stores.shards.release_shards(owner="a", shards=[before.shard, 99])
    assert await stores.shards.list_owners() == {}
    (after,) = await stores.shards.claim_shards(
        owner="b", lease_s=LONG_S, shards_max=1, shard_count=1
    )
    assert after.epoch > before.epoch


async def test_live_instances_hold_different_numbers(stores: Stores) -> None:
    numbers = await asyncio.gather(
        *(
            stores.instances.register_instance(
                instance=f"planner-{n}", kind="planner", lease_s=LONG_S
            )
            for n in range(10)
        )
    )
    assert len(set(numbers)) == 10
    assert all(0 <= number < 1024 for number in numbers)
    for n, number in enumerate(numbers):
        again = await stores.instances.register_instance(
            instance=f"planner-{n}", kind="planner", lease_s=LONG_S
        )
        assert again == number


async def test_an_unused_number_is_preferred_to_one_just_given_up(stores: Stores) -> None:
    first = await stores.instances.register_instance(instance="a", kind="planner", lease_s=SHORT_S)

    async def is_gone() -> bool:
        return await stores.instances.list_live_instances("planner") == []

    await eventually(is_gone, what="the lease ends")
    assert (
        await stores.instances.register_instance(instance="b", kind="planner", lease_s=LONG_S)
        != first
    )


async def test_live_instances_are_listed_by_kind(stores: Stores) -> None:
    for name, kind in (("p2", "planner"), ("p1", "planner"), ("o1", "outbox")):
        await stores.instances.register_instance(instance=name, kind=kind, lease_s=LONG_S)
    assert await stores.instances.list_live_instances("planner") == ["p1", "p2"]
    assert await stores.instances.list_live_instances("reaper") == []


async def test_more_instances_than_numbers_are_refused(stores: Stores) -> None:
    for n in range(1024):
        await stores.instances.register_instance(instance=str(n), kind="planner", lease_s=LONG_S)
    with pytest.raises(NodeNumbersExhausted):
        await stores.instances.register_instance(instance="late", kind="planner", lease_s=LONG_S)


async def test_a_role_has_one_leader(stores: Stores) -> None:
    answers = await asyncio.gather(
        *(
            stores.instances.claim_role(role="reaper", owner=str(n), lease_s=LONG_S)
            for n in range(6)
        )
    )
    assert sum(answers) == 1
    leader = str(answers.index(True))
    assert await stores.instances.claim_role(role="reaper", owner=leader, lease_s=LONG_S)
    assert await stores.instances.claim_role(role="other", owner="x", lease_s=LONG_S)


async def test_a_role_passes_on_when_its_lease_ends(stores: Stores) -> None:
    assert await stores.instances.claim_role(role="reaper", owner="a", lease_s=LONG_S)
    assert not await stores.instances.claim_role(role="reaper", owner="b", lease_s=LONG_S)
    assert await stores.instances.claim_role(role="reaper", owner="a", lease_s=SHORT_S)
    await eventually(
        lambda: stores.instances.claim_role(role="reaper", owner="b", lease_s=LONG_S),
        what="the lease ends",
    )
    assert not await stores.instances.claim_role(role="reaper", owner="a", lease_s=LONG_S)
