"""What a restarted projector looks at: what changed since its shards' latest epochs."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support.builders import History, a_batch, a_cursor_loop, a_single_step
from tests.support.bus import memory_bus
from tests.support.projecting import Desk, run_dry
from tests.support.storage import memory_stores

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_storage.memory.projections import MemoryProjections


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield Desk(memory_stores(), bus)


class Watched(MemoryProjections):
    """Remembers from when on histories were compared."""

    def __init__(self, desk: Desk) -> None:
        inner = desk.stores.projections
        assert isinstance(inner, MemoryProjections)
        super().__init__(inner._store)
        self.since: list[datetime | None] = []

    async def list_executions_behind(self, **wanted: Any) -> list[ExecutionId]:  # type: ignore[override]  # all by name
        self.since.append(wanted["since"])
        return await super().list_executions_behind(**wanted)


async def test_without_an_epoch_everything_is_compared_and_then_only_what_is_recent(
    desk: Desk,
) -> None:
    watched = Watched(desk)
    projector = desk.projector(projections=watched)
    await projector.begin_projection()
    await projector.catch_up()
    await projector.commit_epoch()
    await projector.catch_up()
    told = projector.summarize_state()
    assert watched.since == [None, told["through_at"]]
    assert told["epochs"] == {0: 1, 1: 1}
    assert codec.decode_json(codec.encode_json(told))["epochs"] == {"0": 1, "1": 1}
    await projector.compare_all()
    assert watched.since[-1] is None


async def test_a_restart_goes_on_from_the_latest_epochs(desk: Desk) -> None:
    first = desk.projector()
    await first.begin_projection()
    await first.commit_epoch()
    history = a_cursor_loop()
    await desk.append(history)
    watched = Watched(desk)
    second = desk.projector(projections=watched)
    await second.begin_projection()
    await second.catch_up()
    assert watched.since == [first.summarize_state()["through_at"]]
    assert await desk.list_differences(history.envelopes) == []
    await second.commit_epoch()
    assert second.summarize_state()["epochs"] == {0: 2, 1: 2}


async def test_an_epoch_knows_the_latest_event_of_its_shard(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    projector = desk.projector()
    await projector.catch_up()
    await projector.commit_epoch()
    found = await desk.stores.checkpoints.list_latest_epochs([0, 1], shard_count=2)
    assert max(one.last_event_id for one in found) == int(history.envelopes[-1].event_id)
    assert min(one.last_event_id for one in found) == 0


async def test_what_was_set_aside_is_tried_again_by_the_next_process(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    events = desk.stores.ledger._store.history_by_execution[history.execution_id]  # type: ignore[attr-defined]  # a ledger cannot be damaged by its port
    sound = events[5]
    events[5] = events[4]
    first = desk.projector()
    await first.catch_up()
    assert first.summarize_state()["set_aside"] == [history.execution_id]
    await first.commit_epoch()
    events[5] = sound
    second = desk.projector()
    await second.begin_projection()
    # An epoch that comes before the first look vouches for it no more than the one before.
    await second.commit_epoch()
    third = desk.projector()
    await third.begin_projection()
    await third.catch_up()
    assert await desk.list_differences(history.envelopes) == []
    await third.commit_epoch()
    found = await desk.stores.checkpoints.list_latest_epochs([0, 1], shard_count=2)
    assert [one.set_aside for one in found] == [[], []]


async def test_wiped_positions_and_epochs_heal(desk: Desk) -> None:
    """A projector that runs on, and one that is started anew."""
    history = a_cursor_loop()
    await desk.append(history)
    running = desk.projector()
    await running.catch_up()
    for projector in (running, desk.projector()):
        store = desk.stores.projections._store  # type: ignore[attr-defined]  # no port wipes it
        store.position_by_execution.clear()
        store.epochs_by_shard.clear()
        await projector.begin_projection()
        await projector.catch_up()
        assert await desk.find_position(history) == len(history.envelopes)
        assert await desk.list_differences(history.envelopes) == []


async def test_a_full_comparison_finds_what_an_epoch_passed_over(desk: Desk) -> None:
    """As a transaction would be that began before the horizon and was committed after."""
    projector = desk.projector()
    await projector.begin_projection()
    await projector.commit_epoch()
    history = a_single_step()
    await desk.append(history)
    store = desk.stores.projections._store  # type: ignore[attr-defined]  # no port turns time back
    store.head_moved_at[history.execution_id] -= timedelta(hours=1)
    await projector.catch_up()
    assert await desk.find_position(history) == 0
    await projector.compare_all()
    assert await desk.list_differences(history.envelopes) == []


async def test_an_epoch_is_no_event_of_an_execution(desk: Desk) -> None:
    history = History(ExecutionId("77"))
    history.add(*(one.event for one in a_cursor_loop().envelopes))
    await desk.append(history)
    await desk.send([a_batch(history.envelopes)])
    projector = desk.projector()
    await run_dry(projector)
    for _ in range(3):
        await projector.commit_epoch()
    head = await desk.stores.ledger_reader.find_head(history.execution_id)
    assert head is not None
    assert head.version == len(history.envelopes)
    assert await desk.list_differences(history.envelopes) == []
