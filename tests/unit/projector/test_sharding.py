"""Every execution has exactly one projector."""

import pytest

from noetl_contracts import ids
from noetl_contracts.ids import ExecutionId
from noetl_messaging import topology
from noetl_projector.domain import sharding

SHARDS = 16


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16])
def test_every_shard_has_exactly_one_projector(count: int) -> None:
    owned = [
        shard
        for index in range(count)
        for shard in sharding.owned_shards(index=index, count=count, shard_count=SHARDS)
    ]
    assert sorted(owned) == list(range(SHARDS))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_the_shards_are_those_that_the_consumer_filters(count: int) -> None:
    for index in range(count):
        own = sharding.owned_shards(index=index, count=count, shard_count=SHARDS)
        assert own == topology.projector_shards(index=index, count=count, shard_count=SHARDS)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 16])
def test_the_ledger_is_asked_for_the_same_executions_as_the_bus(count: int) -> None:
    for number in range(300):
        execution = ExecutionId(str(264905529753600000 + number))
        shard = ids.shard_of(execution, SHARDS)
        for index in range(count):
            asked = any(
                ids.shard_of(execution, of) == wanted
                for wanted, of in sharding.ledger_shards(
                    index=index, count=count, shard_count=SHARDS
                )
            )
            assert asked == (
                shard in sharding.owned_shards(index=index, count=count, shard_count=SHARDS)
            )


def test_a_message_under_another_shard_is_noticed() -> None:
    execution = ExecutionId("264905529753600000")
    own = ids.shard_of(execution, SHARDS)
    other = (own + 1) % SHARDS
    assert sharding.misplacement(f"noetl.events.{own}.acme.west", execution, SHARDS) is None
    reason = sharding.misplacement(f"noetl.events.{other}.acme.west", execution, SHARDS)
    assert f"belongs to shard {own}" in str(reason)


def test_a_subject_without_a_shard_is_noticed() -> None:
    assert sharding.misplacement("noetl.events.x", ExecutionId("1"), SHARDS) is not None
