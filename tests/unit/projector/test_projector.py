"""The projection equals the replay of the ledger, whatever the bus did."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.support.builders import (
    History,
    Slots,
    a_batch,
    a_cancelled_run,
    a_cursor_loop,
    a_single_step,
)
from tests.support.bus import memory_bus
from tests.support.projecting import ProjectorHarness, run_dry
from tests.support.storage import memory_stores

from noetl_contracts import codec, ids
from noetl_contracts.events import command_events
from noetl_contracts.ids import ExecutionId
from noetl_messaging.streams import topology
from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.ports.ledger_ports import Projections


@pytest.fixture
async def harness() -> AsyncIterator[ProjectorHarness]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield ProjectorHarness(memory_stores(), bus)


def other(history: History) -> History:
    """The same story under another identity."""
    twin = History(ExecutionId(str(int(history.execution_id) + (1 << 22))))
    twin.add(*(envelope.event for envelope in history.envelopes))
    return twin


class FailingProjections:
    """Projections that fail so many times before or after they wrote."""

    def __init__(self, inner: Projections, *, before: int = 0, after: int = 0) -> None:
        self._inner = inner
        self._before, self._after = before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply_rows(
        self,
        *,
        shard: int,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        positions: Mapping[str, tuple[int, int]],
        results: Sequence[Mapping[str, Any]] = (),
    ) -> list[str]:
        if self._before:
            self._before -= 1
            raise StorageUnavailable("no answer before the commit")
        left_out = await self._inner.apply_rows(
            shard=shard, rows=rows, positions=positions, results=results
        )
        if self._after:
            self._after -= 1
            raise StorageUnavailable("no answer after the commit")
        return left_out


async def test_a_history_is_projected_as_a_replay_shows_it(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send(history.batches(size=4))
    await run_dry(harness.projector())
    assert await harness.list_differences(history.envelopes) == []
    assert await harness.find_position(history) == len(history.envelopes)


async def test_executions_of_one_fetch_do_not_mix(harness: ProjectorHarness) -> None:
    cursor_loop = a_cursor_loop()
    two = other(a_single_step())
    for history in (cursor_loop, two):
        await harness.append(history)
    mixed = [
        batch
        for pair in zip(cursor_loop.batches(size=9), two.batches(size=3), strict=False)
        for batch in pair
    ]
    await harness.send(mixed)
    await harness.send(cursor_loop.batches(size=9))
    await harness.send(two.batches(size=3))
    await run_dry(harness.projector())
    for history in (cursor_loop, two):
        assert await harness.list_differences(history.envelopes) == []


async def test_messages_that_come_twice_are_projected_once(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    for _ in range(2):
        await harness.send(history.batches(size=3))
    await run_dry(harness.projector(batch_messages_max=5))
    assert await harness.list_differences(history.envelopes) == []


async def test_messages_in_the_wrong_order_are_projected_in_order(
    harness: ProjectorHarness,
) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send(reversed(history.batches(size=3)))
    await run_dry(harness.projector(batch_messages_max=1))
    assert await harness.list_differences(history.envelopes) == []


async def test_lost_messages_are_read_from_the_ledger(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send(history.batches(size=2)[1::3])
    await harness.send(history.batches(size=2)[-1:])
    await run_dry(harness.projector(gap_page_events=3))
    assert await harness.list_differences(history.envelopes) == []


async def test_a_wiped_bus_is_made_up_for_by_the_ledger(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    projector = harness.projector(gap_page_events=7)
    assert await projector.catch_up() == len(history.envelopes)
    assert await projector.catch_up() == 0
    assert await harness.list_differences(history.envelopes) == []


async def test_catching_up_goes_on_where_the_messages_ended(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send([a_batch(history.envelopes[:8])])
    projector = harness.projector()
    await run_dry(projector)
    assert await projector.catch_up() == len(history.envelopes) - 8
    await harness.send(history.batches(size=5))
    await run_dry(projector)
    assert await harness.list_differences(history.envelopes) == []


async def test_a_cleared_projection_is_built_again(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    projector = harness.projector()
    await projector.catch_up()
    await harness.stores.projections.clear_execution(history.execution_id)
    await projector.catch_up()
    assert await harness.list_differences(history.envelopes) == []


async def test_a_new_projector_goes_on_from_snapshot_and_ledger(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    batches = history.batches(size=6)
    for batch in batches:
        await harness.send([batch])
        await run_dry(harness.projector())
    assert await harness.list_differences(history.envelopes) == []


async def test_states_that_do_not_fit_the_cache_are_loaded_again(harness: ProjectorHarness) -> None:
    histories = [a_cursor_loop(), other(a_cursor_loop())]
    for history in histories:
        await harness.append(history)
    projector = harness.projector(states_max=1, batch_messages_max=1)
    for pair in zip(*(history.batches(size=5) for history in histories), strict=True):
        await harness.send(pair)
    await run_dry(projector)
    for history in histories:
        assert await harness.list_differences(history.envelopes) == []


async def test_two_projectors_of_one_shard_do_no_harm(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    item, two = (harness.projector(batch_messages_max=1) for _ in range(2))
    await harness.send(history.batches(size=2))
    while await item.project_batches() + await two.project_batches():
        harness.bus.elapse(0.1)
    assert await harness.list_differences(history.envelopes) == []


async def test_a_projector_whose_position_was_moved_loads_the_state_again(
    harness: ProjectorHarness,
) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    item, two = harness.projector(), harness.projector()
    batches = history.batches(size=6)
    await harness.send(batches[:1])
    await run_dry(item)
    await two.catch_up()
    # The first projector still believes that version 6 is the position.
    await harness.send(batches[1:2])
    await item.project_batches()
    harness.bus.elapse(0.1)
    await run_dry(item)
    assert await harness.find_position(history) == len(history.envelopes)
    assert await harness.list_differences(history.envelopes) == []


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_failed_transaction_settles_nothing_and_is_made_again(
    harness: ProjectorHarness, moment: str
) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send(history.batches(size=4))
    failing = FailingProjections(harness.stores.projections, **{moment: 1})
    projector = harness.projector(projections=failing)
    with pytest.raises(StorageUnavailable):
        await projector.project_batches()
    harness.bus.elapse(0.1)
    await run_dry(projector)
    assert await harness.list_differences(history.envelopes) == []


async def test_what_lies_behind_a_full_fetch_is_projected_in_the_same_turn(
    harness: ProjectorHarness,
) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    batches = history.batches(size=3)
    await harness.send(batches)
    projector = harness.projector(batch_messages_max=2)
    assert await projector.project_batches() == min(len(batches), 16)
    assert projector.summarize_state()["gaps"] == 0
    await run_dry(projector)
    assert await harness.list_differences(history.envelopes) == []


async def test_what_was_read_meanwhile_comes_again_after_a_failed_transaction(
    harness: ProjectorHarness,
) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send(history.batches(size=5))
    failing = FailingProjections(harness.stores.projections, before=1)
    projector = harness.projector(projections=failing, batch_messages_max=2)
    with pytest.raises(StorageUnavailable):
        await projector.project_batches()
    consumer = harness.bus.consumer(
        topology.EVENTS, topology.build_projector_consumer(index=0, count=1)
    )
    harness.bus.elapse(0.1)
    returned = await consumer.fetch_batch(messages_max=4, wait_s=1.0)
    assert [item.delivery_count for item in returned] == [2, 2, 2, 2]


async def test_an_unknown_event_type_is_buried_and_the_ledger_fills_in(
    harness: ProjectorHarness,
) -> None:
    history = a_single_step()
    await harness.append(history)
    bad = codec.encode_json(a_batch(history.envelopes[:2])).replace(b"step.enter", b"step.leapt")
    await harness.send_bytes(bad, execution_id=history.execution_id)
    await harness.send([a_batch(history.envelopes[2:])])
    await run_dry(harness.projector())
    (dead_letter,) = await harness.bus.letters.list_letters(letters_max=10)
    assert "'step.leapt' is not known to this release" in dead_letter.reason
    assert await harness.list_differences(history.envelopes) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"execution_id": 1}', b"\xff\xfe"])
async def test_what_is_not_a_batch_is_buried(harness: ProjectorHarness, data: bytes) -> None:
    history = a_single_step()
    await harness.append(history)
    await harness.send_bytes(data, execution_id=history.execution_id)
    await harness.send(history.batches(size=4))
    await run_dry(harness.projector())
    assert await harness.bus.letters.count_letters() == 1
    assert await harness.list_differences(history.envelopes) == []


async def test_a_history_that_cannot_be_folded_stops_no_other(harness: ProjectorHarness) -> None:
    broken = History()
    broken.start()
    broken.add(
        command_events.CommandHeartbeat(
            command_id=ids.derive_command_id(ids.derive_run_id(broken.execution_id, 1), "step"),
            run_id=ids.derive_run_id(broken.execution_id, 1),
            step="fetch",
            attempt=1,
            worker_id=ids.WorkerId("worker-1"),
        )
    )
    sound = other(a_single_step())
    for history in (broken, sound):
        await harness.append(history)
        await harness.send(history.batches(size=10))
    projector = harness.projector()
    await run_dry(projector)
    assert await projector.catch_up() == 0
    (dead_letter,) = await harness.bus.letters.list_letters(letters_max=10)
    assert broken.execution_id in dead_letter.reason
    assert await harness.list_differences(sound.envelopes) == []


async def test_snapshots_are_kept_on_the_way_and_at_the_end(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    projector = harness.projector(batch_messages_max=1, snapshot_at_end_versions=2)
    kept = set()
    for batch in history.batches(size=4):
        await harness.send([batch])
        await run_dry(projector)
        snapshot = await harness.stores.snapshots.find_snapshot(history.execution_id)
        kept.add(snapshot.version if snapshot is not None else 0)
    assert len(history.envelopes) in kept
    assert len(kept) > 2


async def test_a_snapshot_beyond_the_position_is_not_used(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.projector().catch_up()
    assert await harness.stores.snapshots.find_snapshot(history.execution_id) is not None
    await harness.stores.projections.clear_execution(history.execution_id)
    await harness.send([a_batch(history.envelopes[:20])])
    await run_dry(harness.projector())
    await harness.projector().catch_up()
    assert await harness.list_differences(history.envelopes) == []


async def test_a_damaged_snapshot_changes_nothing(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send(history.batches(size=8)[:4])
    await run_dry(harness.projector())
    snapshot = await harness.stores.snapshots.find_snapshot(history.execution_id)
    assert snapshot is not None
    await harness.stores.snapshots.put_snapshot(msgspec.structs.replace(snapshot, state=b"{}"))
    await harness.send(history.batches(size=8)[4:])
    await run_dry(harness.projector())
    await harness.projector().catch_up()
    assert await harness.list_differences(history.envelopes) == []


async def test_a_message_under_a_wrong_subject_is_projected_all_the_same(
    harness: ProjectorHarness,
) -> None:
    history = a_cancelled_run()
    await harness.append(history)
    wrong = next(
        ExecutionId(str(number))
        for number in range(1, 100)
        if ids.find_shard(ExecutionId(str(number)), 2) != ids.find_shard(history.execution_id, 2)
    )
    await harness.send_bytes(codec.encode_json(a_batch(history.envelopes)), execution_id=wrong)
    await run_dry(harness.projector())
    assert await harness.list_differences(history.envelopes) == []


async def test_a_long_history_is_projected_in_bounded_pages(harness: ProjectorHarness) -> None:
    history = History()
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=2)
    for index in range(150):
        slots.take(index % 2, index // 2, rows=3)
    slots.close()
    history.finish(last="drain")
    await harness.append(history)
    projector = harness.projector(gap_page_events=20, catch_up_pages_max=4)
    turns = [await projector.catch_up() for _ in range(8)]
    assert max(turns) == 80
    assert sum(turns) == len(history.envelopes)
    assert await harness.list_differences(history.envelopes) == []
