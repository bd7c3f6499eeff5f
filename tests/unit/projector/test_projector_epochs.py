"""What a restarted projector looks at: what changed since its shards' latest epochs."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support.builders import History, a_batch, a_cursor_loop, a_single_step
from tests.support.bus import memory_bus
from tests.support.projecting import ProjectorHarness, run_dry
from tests.support.storage import memory_stores

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_storage.memory.projections import MemoryProjections


@pytest.fixture
async def harness() -> AsyncIterator[ProjectorHarness]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield ProjectorHarness(memory_stores(), bus)


class Watched(MemoryProjections):
    """Remembers from when on histories were compared."""

    def __init__(self, harness: ProjectorHarness) -> None:
        inner = harness.stores.projections
        assert isinstance(inner, MemoryProjections)
        super().__init__(inner._store)
        self.since: list[datetime | None] = []

    async def list_executions_behind(self, **wanted: Any) -> list[ExecutionId]:  # type: ignore[override]  # all by name
        self.since.append(wanted["since"])
        return await super().list_executions_behind(**wanted)


async def test_without_an_epoch_everything_is_compared_and_then_only_what_is_recent(
    harness: ProjectorHarness,
) -> None:
    watched = Watched(harness)
    projector = harness.projector(projections=watched)
    await projector.begin_projection()
    await projector.catch_up()
    await projector.commit_epoch()
    await projector.catch_up()
    state = projector.summarize_state()
    assert watched.since == [None, state["through_at"]]
    assert state["epochs"] == {0: 1, 1: 1}
    assert codec.decode_json(codec.encode_json(state))["epochs"] == {"0": 1, "1": 1}
    await projector.compare_all()
    assert watched.since[-1] is None


async def test_a_restart_goes_on_from_the_latest_epochs(harness: ProjectorHarness) -> None:
    first = harness.projector()
    await first.begin_projection()
    await first.commit_epoch()
    history = a_cursor_loop()
    await harness.append(history)
    watched = Watched(harness)
    second = harness.projector(projections=watched)
    await second.begin_projection()
    await second.catch_up()
    assert watched.since == [first.summarize_state()["through_at"]]
    assert await harness.list_differences(history.envelopes) == []
    await second.commit_epoch()
    assert second.summarize_state()["epochs"] == {0: 2, 1: 2}


async def test_an_epoch_knows_the_latest_event_of_its_shard(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    projector = harness.projector()
    await projector.catch_up()
    await projector.commit_epoch()
    latest_epochs = await harness.stores.checkpoints.list_latest_epochs([0, 1], shard_count=2)
    assert max(latest_epoch.last_event_id for latest_epoch in latest_epochs) == int(
        history.envelopes[-1].event_id
    )
    assert min(latest_epoch.last_event_id for latest_epoch in latest_epochs) == 0


async def test_what_was_set_aside_is_tried_again_by_the_next_process(
    harness: ProjectorHarness,
) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    events = harness.stores.ledger._store.history_by_execution[history.execution_id]  # type: ignore[attr-defined]  # a ledger cannot be damaged by its port
    sound = events[5]
    events[5] = events[4]
    first = harness.projector()
    await first.catch_up()
    assert first.summarize_state()["set_aside"] == [history.execution_id]
    await first.commit_epoch()
    events[5] = sound
    second = harness.projector()
    await second.begin_projection()
    # An epoch that comes before the first look vouches for it no more than the one before.
    await second.commit_epoch()
    third = harness.projector()
    await third.begin_projection()
    await third.catch_up()
    assert await harness.list_differences(history.envelopes) == []
    await third.commit_epoch()
    latest_epochs = await harness.stores.checkpoints.list_latest_epochs([0, 1], shard_count=2)
    assert [latest_epoch.set_aside for latest_epoch in latest_epochs] == [[], []]


async def test_wiped_positions_and_epochs_heal(harness: ProjectorHarness) -> None:
    """A projector that runs on, and one that is started anew."""
    history = a_cursor_loop()
    await harness.append(history)
    running = harness.projector()
    await running.catch_up()
    for projector in (running, harness.projector()):
        store = harness.stores.projections._store  # type: ignore[attr-defined]  # no port wipes it
        store.position_by_execution.clear()
        store.epochs_by_shard.clear()
        await projector.begin_projection()
        await projector.catch_up()
        assert await harness.find_position(history) == len(history.envelopes)
        assert await harness.list_differences(history.envelopes) == []


async def test_a_full_comparison_finds_what_an_epoch_passed_over(harness: ProjectorHarness) -> None:
    """As a transaction would be that began before the horizon and was committed after."""
    projector = harness.projector()
    await projector.begin_projection()
    await projector.commit_epoch()
    history = a_single_step()
    await harness.append(history)
    store = harness.stores.projections._store  # type: ignore[attr-defined]  # no port turns time back
    store.head_moved_at[history.execution_id] -= timedelta(hours=1)
    await projector.catch_up()
    assert await harness.find_position(history) == 0
    await projector.compare_all()
    assert await harness.list_differences(history.envelopes) == []


async def test_an_epoch_is_no_event_of_an_execution(harness: ProjectorHarness) -> None:
    history = History(ExecutionId("77"))
    history.add(*(envelope.event for envelope in a_cursor_loop().envelopes))
    await harness.append(history)
    await harness.send([a_batch(history.envelopes)])
    projector = harness.projector()
    await run_dry(projector)
    for _ in range(3):
        await projector.commit_epoch()
    head = await harness.stores.ledger_reader.find_head(history.execution_id)
    assert head is not None
    assert head.version == len(history.envelopes)
    assert await harness.list_differences(history.envelopes) == []
