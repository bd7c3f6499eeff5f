"""Epochs of shards: numbered, never vouching for what is behind, few of them kept."""

from collections.abc import Sequence

import pytest
from tests.support.storage import Stores, a_fence, a_run, a_stream, an_append, an_execution

from noetl_contracts import ids
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import CheckpointCommitted

SHARDS = 4


async def committed(
    stores: Stores,
    *shards: int,
    event_id: int = 0,
    set_aside: Sequence[ExecutionId] = (),
    horizon_s: float = 0.0,
    epochs_max: int = 10,
) -> list[CheckpointCommitted]:
    return await stores.checkpoints.commit_epochs(
        dict.fromkeys(shards or range(SHARDS), event_id),
        shard_count=SHARDS,
        set_aside=set_aside,
        horizon_s=horizon_s,
        epochs_max=epochs_max,
    )


async def latest(stores: Stores) -> list[CheckpointCommitted]:
    return await stores.checkpoints.list_latest_epochs(range(SHARDS), shard_count=SHARDS)


async def an_unprojected_execution(stores: Stores) -> ExecutionId:
    execution = an_execution()
    fence = await a_fence(stores)
    await stores.ledger.append(an_append(fence, a_stream(execution, [a_run()])))
    return execution


async def test_each_shard_counts_its_own_epochs(stores: Stores) -> None:
    assert await latest(stores) == []
    first = await committed(stores, 0, 2)
    assert [(item.shard, item.epoch) for item in first] == [(0, 1), (2, 1)]
    second = await committed(stores)
    assert [(item.shard, item.epoch) for item in second] == [(0, 2), (1, 1), (2, 2), (3, 1)]
    assert await latest(stores) == second
    assert await stores.checkpoints.list_latest_epochs([2, 1], shard_count=SHARDS) == second[1:3]
    assert await stores.checkpoints.list_latest_epochs([0], shard_count=SHARDS + 1) == []


async def test_an_epoch_vouches_for_nothing_young_and_never_goes_back(stores: Stores) -> None:
    (old,) = await committed(stores, 0, horizon_s=60.0)
    assert (old.committed_at - old.through_at).total_seconds() == pytest.approx(60.0)
    (new,) = await committed(stores, 0)
    assert new.through_at >= old.committed_at
    (same,) = await committed(stores, 0, horizon_s=60.0)
    assert same.through_at == new.through_at


async def test_the_latest_event_never_goes_back(stores: Stores) -> None:
    seen = [(await committed(stores, 0, event_id=event))[0] for event in (7, 9, 3)]
    assert [item.last_event_id for item in seen] == [7, 9, 9]


async def test_what_is_behind_is_not_vouched_for_until_it_is_projected(stores: Stores) -> None:
    before = await committed(stores)
    execution = await an_unprojected_execution(stores)
    home = ids.find_shard(execution, SHARDS)
    held = await committed(stores)
    again = await committed(stores)
    assert again[home].through_at == held[home].through_at < held[home].committed_at
    assert before[home].through_at <= held[home].through_at
    other = (home + 1) % SHARDS
    assert again[other].through_at > held[other].through_at
    await stores.projections.apply_rows(shard=0, rows={}, positions={execution: (0, 1)})
    freed = await committed(stores)
    assert freed[home].through_at == freed[home].committed_at


async def test_what_is_set_aside_is_named_and_does_not_hold_its_shard_up(stores: Stores) -> None:
    execution = await an_unprojected_execution(stores)
    home = ids.find_shard(execution, SHARDS)
    found = await committed(stores, set_aside=[execution])
    assert found[home].set_aside == [execution]
    assert found[home].through_at == found[home].committed_at
    assert [item.set_aside for item in found if item.shard != home] == [[]] * (SHARDS - 1)
    assert await latest(stores) == found


async def test_few_epochs_are_kept(stores: Stores) -> None:
    for _ in range(5):
        last = await committed(stores, 1, epochs_max=2)
    assert last[0].epoch == 5
    assert await stores.checkpoints.list_latest_epochs([1], shard_count=SHARDS) == last


async def test_histories_that_did_not_change_since_are_not_looked_at(stores: Stores) -> None:
    execution = await an_unprojected_execution(stores)
    (epoch,) = await committed(stores, ids.find_shard(execution, SHARDS))

    async def found(**since: object) -> list[ExecutionId]:
        return await stores.projections.list_executions_behind(
            shard=0,
            shard_count=1,
            older_than_s=-1.0,
            executions_max=9,
            **since,  # type: ignore[arg-type]  # one moment
        )

    assert await found() == [execution]
    assert await found(since=epoch.through_at) == [execution]
    assert await found(since=epoch.committed_at) == []
