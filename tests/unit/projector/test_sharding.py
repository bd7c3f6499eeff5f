"""Every execution has exactly one projector."""

import pytest

from noetl_contracts import ids
from noetl_contracts.ids import ExecutionId
from noetl_messaging.streams import topology
from noetl_projector.domain import shard_ownership

SHARDS = 16


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16])
def test_every_shard_has_exactly_one_projector(count: int) -> None:
    owned = [
        shard
        for index in range(count)
        for shard in shard_ownership.list_owned_shards(index=index, count=count, shard_count=SHARDS)
    ]
    assert sorted(owned) == list(range(SHARDS))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_the_shards_are_those_that_the_consumer_filters(count: int) -> None:
    for index in range(count):
        owned_shards = shard_ownership.list_owned_shards(
            index=index, count=count, shard_count=SHARDS
        )
        assert owned_shards == topology.list_projector_shards(
            index=index, count=count, shard_count=SHARDS
        )


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 16])
def test_the_ledger_is_asked_for_the_same_executions_as_the_bus(count: int) -> None:
    for number in range(300):
        execution = ExecutionId(str(264905529753600000 + number))
        shard = ids.find_shard(execution, SHARDS)
        for index in range(count):
            asked = any(
                ids.find_shard(execution, of) == wanted
                for wanted, of in shard_ownership.list_ledger_shards(
                    index=index, count=count, shard_count=SHARDS
                )
            )
            assert asked == (
                shard
                in shard_ownership.list_owned_shards(index=index, count=count, shard_count=SHARDS)
            )


def place(subject: str, execution: ExecutionId, *, index: int = 0, count: int = 1) -> str | None:
    found = shard_ownership.find_misplaced_message(
        subject, execution, index=index, count=count, shard_count=SHARDS
    )
    return None if found is None else f"{found.kind}: {found.reason}"


def test_messages_astray_are_told_apart() -> None:
    execution = ExecutionId("264905529753600000")
    own = ids.find_shard(execution, SHARDS)
    other = (own + 1) % SHARDS
    right = f"noetl.events.{own}.acme.west"
    assert place(right, execution) is None
    assert place(right, execution, index=own % 2, count=2) is None
    wrong = place(f"noetl.events.{other}.acme.west", execution)
    assert str(wrong).startswith(f"misplaced: execution {execution} belongs to shard {own}")
    theirs = place(right, execution, index=(own + 1) % 2, count=2)
    assert str(theirs).startswith(f"unowned: shard {own} is kept by projector {own % 2} of 2")
    assert str(place("noetl.events.x", execution)).startswith("unshardable: ")
