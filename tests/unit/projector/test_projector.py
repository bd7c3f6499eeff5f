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
from tests.support.projecting import Desk, run_dry
from tests.support.storage import memory_stores

from noetl_contracts import codec, ids
from noetl_contracts.events import command_events
from noetl_contracts.ids import ExecutionId
from noetl_messaging.streams import topology
from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.ports.ledger_ports import Projections


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield Desk(memory_stores(), bus)


def other(history: History) -> History:
    """The same story under another identity."""
    twin = History(ExecutionId(str(int(history.execution_id) + (1 << 22))))
    twin.add(*(one.event for one in history.envelopes))
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


async def test_a_history_is_projected_as_a_replay_shows_it(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.send(history.batches(size=4))
    await run_dry(desk.projector())
    assert await desk.list_differences(history.envelopes) == []
    assert await desk.find_position(history) == len(history.envelopes)


async def test_executions_of_one_fetch_do_not_mix(desk: Desk) -> None:
    one = a_cursor_loop()
    two = other(a_single_step())
    for history in (one, two):
        await desk.append(history)
    mixed = [
        batch
        for pair in zip(one.batches(size=9), two.batches(size=3), strict=False)
        for batch in pair
    ]
    await desk.send(mixed)
    await desk.send(one.batches(size=9))
    await desk.send(two.batches(size=3))
    await run_dry(desk.projector())
    for history in (one, two):
        assert await desk.list_differences(history.envelopes) == []


async def test_messages_that_come_twice_are_projected_once(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    for _ in range(2):
        await desk.send(history.batches(size=3))
    await run_dry(desk.projector(batch_messages_max=5))
    assert await desk.list_differences(history.envelopes) == []


async def test_messages_in_the_wrong_order_are_projected_in_order(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.send(reversed(history.batches(size=3)))
    await run_dry(desk.projector(batch_messages_max=1))
    assert await desk.list_differences(history.envelopes) == []


async def test_lost_messages_are_read_from_the_ledger(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.send(history.batches(size=2)[1::3])
    await desk.send(history.batches(size=2)[-1:])
    await run_dry(desk.projector(gap_page_events=3))
    assert await desk.list_differences(history.envelopes) == []


async def test_a_wiped_bus_is_made_up_for_by_the_ledger(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    projector = desk.projector(gap_page_events=7)
    assert await projector.catch_up() == len(history.envelopes)
    assert await projector.catch_up() == 0
    assert await desk.list_differences(history.envelopes) == []


async def test_catching_up_goes_on_where_the_messages_ended(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.send([a_batch(history.envelopes[:8])])
    projector = desk.projector()
    await run_dry(projector)
    assert await projector.catch_up() == len(history.envelopes) - 8
    await desk.send(history.batches(size=5))
    await run_dry(projector)
    assert await desk.list_differences(history.envelopes) == []


async def test_a_cleared_projection_is_built_again(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    projector = desk.projector()
    await projector.catch_up()
    await desk.stores.projections.clear_execution(history.execution_id)
    await projector.catch_up()
    assert await desk.list_differences(history.envelopes) == []


async def test_a_new_projector_goes_on_from_snapshot_and_ledger(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    batches = history.batches(size=6)
    for batch in batches:
        await desk.send([batch])
        await run_dry(desk.projector())
    assert await desk.list_differences(history.envelopes) == []


async def test_states_that_do_not_fit_the_cache_are_loaded_again(desk: Desk) -> None:
    histories = [a_cursor_loop(), other(a_cursor_loop())]
    for history in histories:
        await desk.append(history)
    projector = desk.projector(states_max=1, batch_messages_max=1)
    for pair in zip(*(history.batches(size=5) for history in histories), strict=True):
        await desk.send(pair)
    await run_dry(projector)
    for history in histories:
        assert await desk.list_differences(history.envelopes) == []


async def test_two_projectors_of_one_shard_do_no_harm(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    one, two = (desk.projector(batch_messages_max=1) for _ in range(2))
    await desk.send(history.batches(size=2))
    while await one.project_batches() + await two.project_batches():
        desk.bus.elapse(0.1)
    assert await desk.list_differences(history.envelopes) == []


async def test_a_projector_whose_position_was_moved_loads_the_state_again(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    one, two = desk.projector(), desk.projector()
    batches = history.batches(size=6)
    await desk.send(batches[:1])
    await run_dry(one)
    await two.catch_up()
    # The first projector still believes that version 6 is the position.
    await desk.send(batches[1:2])
    await one.project_batches()
    desk.bus.elapse(0.1)
    await run_dry(one)
    assert await desk.find_position(history) == len(history.envelopes)
    assert await desk.list_differences(history.envelopes) == []


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_failed_transaction_settles_nothing_and_is_made_again(
    desk: Desk, moment: str
) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.send(history.batches(size=4))
    failing = FailingProjections(desk.stores.projections, **{moment: 1})
    projector = desk.projector(projections=failing)
    with pytest.raises(StorageUnavailable):
        await projector.project_batches()
    desk.bus.elapse(0.1)
    await run_dry(projector)
    assert await desk.list_differences(history.envelopes) == []


async def test_what_lies_behind_a_full_fetch_is_projected_in_the_same_turn(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    batches = history.batches(size=3)
    await desk.send(batches)
    projector = desk.projector(batch_messages_max=2)
    assert await projector.project_batches() == min(len(batches), 16)
    assert projector.summarize_state()["gaps"] == 0
    await run_dry(projector)
    assert await desk.list_differences(history.envelopes) == []


async def test_what_was_read_meanwhile_comes_again_after_a_failed_transaction(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.send(history.batches(size=5))
    failing = FailingProjections(desk.stores.projections, before=1)
    projector = desk.projector(projections=failing, batch_messages_max=2)
    with pytest.raises(StorageUnavailable):
        await projector.project_batches()
    consumer = desk.bus.consumer(
        topology.EVENTS, topology.build_projector_consumer(index=0, count=1)
    )
    desk.bus.elapse(0.1)
    returned = await consumer.fetch_batch(messages_max=4, wait_s=1.0)
    assert [one.delivery_count for one in returned] == [2, 2, 2, 2]


async def test_an_unknown_event_type_is_buried_and_the_ledger_fills_in(desk: Desk) -> None:
    history = a_single_step()
    await desk.append(history)
    bad = codec.encode_json(a_batch(history.envelopes[:2])).replace(b"step.enter", b"step.leapt")
    await desk.send_bytes(bad, execution_id=history.execution_id)
    await desk.send([a_batch(history.envelopes[2:])])
    await run_dry(desk.projector())
    (letter,) = await desk.bus.letters.list_letters(letters_max=10)
    assert "'step.leapt' is not known to this release" in letter.reason
    assert await desk.list_differences(history.envelopes) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"execution_id": 1}', b"\xff\xfe"])
async def test_what_is_not_a_batch_is_buried(desk: Desk, data: bytes) -> None:
    history = a_single_step()
    await desk.append(history)
    await desk.send_bytes(data, execution_id=history.execution_id)
    await desk.send(history.batches(size=4))
    await run_dry(desk.projector())
    assert await desk.bus.letters.count_letters() == 1
    assert await desk.list_differences(history.envelopes) == []


async def test_a_history_that_cannot_be_folded_stops_no_other(desk: Desk) -> None:
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
        await desk.append(history)
        await desk.send(history.batches(size=10))
    projector = desk.projector()
    await run_dry(projector)
    assert await projector.catch_up() == 0
    (letter,) = await desk.bus.letters.list_letters(letters_max=10)
    assert broken.execution_id in letter.reason
    assert await desk.list_differences(sound.envelopes) == []


async def test_snapshots_are_kept_on_the_way_and_at_the_end(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    projector = desk.projector(batch_messages_max=1, snapshot_at_end_versions=2)
    kept = set()
    for batch in history.batches(size=4):
        await desk.send([batch])
        await run_dry(projector)
        found = await desk.stores.snapshots.find_snapshot(history.execution_id)
        kept.add(found.version if found is not None else 0)
    assert len(history.envelopes) in kept
    assert len(kept) > 2


async def test_a_snapshot_beyond_the_position_is_not_used(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.projector().catch_up()
    assert await desk.stores.snapshots.find_snapshot(history.execution_id) is not None
    await desk.stores.projections.clear_execution(history.execution_id)
    await desk.send([a_batch(history.envelopes[:20])])
    await run_dry(desk.projector())
    await desk.projector().catch_up()
    assert await desk.list_differences(history.envelopes) == []


async def test_a_damaged_snapshot_changes_nothing(desk: Desk) -> None:
    history = a_cursor_loop()
    await desk.append(history)
    await desk.send(history.batches(size=8)[:4])
    await run_dry(desk.projector())
    found = await desk.stores.snapshots.find_snapshot(history.execution_id)
    assert found is not None
    await desk.stores.snapshots.put_snapshot(msgspec.structs.replace(found, state=b"{}"))
    await desk.send(history.batches(size=8)[4:])
    await run_dry(desk.projector())
    await desk.projector().catch_up()
    assert await desk.list_differences(history.envelopes) == []


async def test_a_message_under_a_wrong_subject_is_projected_all_the_same(desk: Desk) -> None:
    history = a_cancelled_run()
    await desk.append(history)
    wrong = next(
        ExecutionId(str(number))
        for number in range(1, 100)
        if ids.find_shard(ExecutionId(str(number)), 2) != ids.find_shard(history.execution_id, 2)
    )
    await desk.send_bytes(codec.encode_json(a_batch(history.envelopes)), execution_id=wrong)
    await run_dry(desk.projector())
    assert await desk.list_differences(history.envelopes) == []


async def test_a_long_history_is_projected_in_bounded_pages(desk: Desk) -> None:
    history = History()
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=2)
    for index in range(150):
        slots.take(index % 2, index // 2, rows=3)
    slots.close()
    history.finish(last="drain")
    await desk.append(history)
    projector = desk.projector(gap_page_events=20, catch_up_pages_max=4)
    turns = [await projector.catch_up() for _ in range(8)]
    assert max(turns) == 80
    assert sum(turns) == len(history.envelopes)
    assert await desk.list_differences(history.envelopes) == []
