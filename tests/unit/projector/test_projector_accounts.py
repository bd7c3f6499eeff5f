"""What a projector says of itself, and what it must not survive."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs
from tests.support.builders import ORGANIZATION, TENANT, History, a_batch, a_cursor_loop, stories
from tests.support.bus import memory_bus
from tests.support.projecting import SHARD_COUNT, ProjectorHarness, run_dry
from tests.support.storage import memory_stores

from noetl_contracts import codec, ids, subjects
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.envelope import Envelope
from noetl_messaging.streams.ports import Message
from noetl_projector.projection.histories import LedgerWentBack
from noetl_projector.service import Projector
from noetl_storage.ports.errors import HistoryDropped
from noetl_storage.ports.ledger_ports import LedgerReader


@pytest.fixture
async def harness() -> AsyncIterator[ProjectorHarness]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield ProjectorHarness(memory_stores(), bus)


async def test_each_kind_of_trouble_is_counted_apart(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    last = len(history.envelopes)
    await harness.append(history)
    batches = history.batches(size=5)
    await harness.send([batches[0], batches[0], batches[2]])
    await harness.send_bytes(b"{", execution_id=history.execution_id)
    other = (ids.find_shard(history.execution_id, SHARD_COUNT) + 1) % SHARD_COUNT
    await harness.bus.publisher.publish_message(
        Message(
            subject=subjects.build_events_subject(other, TENANT, ORGANIZATION),
            message_id="astray",
            data=codec.encode_json(batches[1]),
        )
    )
    await harness.send(batches[3:])
    projector = harness.projector(batch_messages_max=3)
    await run_dry(projector)
    state = projector.summarize_state()
    counts = {name: state[name] for name in ("events", "gaps", "gap_events", "duplicates")}
    assert counts == {"events": last, "gaps": 1, "gap_events": 5, "duplicates": 10}
    assert (state["undecodable"], state["misplaced"], state["unowned"]) == (1, 1, 0)
    assert (state["stale"], state["poisoned"], state["set_aside"]) == (0, 0, [])
    assert state["last_event_id"] == history.envelopes[-1].event_id
    assert state["last_batch"]["messages"] > 0
    assert state["shards"] == (0, 1)
    assert codec.decode_json(codec.encode_json(state))["count"] == 1


async def test_messages_of_another_projectors_shards_are_projected_and_counted(
    harness: ProjectorHarness,
) -> None:
    history = a_cursor_loop()
    stranger = (ids.find_shard(history.execution_id, SHARD_COUNT) + 1) % SHARD_COUNT
    await harness.append(history)
    await harness.send([a_batch(history.envelopes)])
    projector = harness.projector(index=stranger, count=SHARD_COUNT)
    await run_dry(projector)
    assert projector.summarize_state()["unowned"] == 1
    assert await harness.list_differences(history.envelopes) == []


async def test_writes_that_came_too_late_are_counted_as_stale(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    slow = harness.projector()
    await harness.send([a_batch(history.envelopes[:5])])
    await run_dry(slow)
    fast = harness.projector()
    await fast.catch_up()
    await harness.send([a_batch(history.envelopes[5:])])
    await slow.project_batches()
    assert slow.summarize_state()["stale"] == 1
    assert await harness.list_differences(history.envelopes) == []


async def stopped(projector: Projector) -> str:
    """The sentence with which a projector ends."""
    with pytest.raises(LedgerWentBack) as ended:
        async with asyncio.timeout(60):
            await projector.guard.watch_for_failure(asyncio.Event())
    return str(ended.value)


async def test_a_projection_ahead_of_the_ledger_stops_the_projector_loudly(
    harness: ProjectorHarness,
) -> None:
    history = a_cursor_loop()
    await harness.append(history, until=3)
    await harness.stores.projections.apply_rows(
        shard=0, rows={}, positions={history.execution_id: (0, 9)}
    )
    await harness.send([a_batch(history.envelopes[:3])])
    projector = harness.projector()
    with pytest.raises(LedgerWentBack):
        await projector.project_batches()
    said = await stopped(projector)
    assert "the ledger went backwards" in said
    assert "noetl projection rebuild --all" in said
    assert await harness.bus.letters.count_letters() == 0


async def test_a_ledger_that_went_backwards_is_found_at_the_start(
    harness: ProjectorHarness,
) -> None:
    await harness.stores.projections.apply_rows(
        shard=0, rows={}, positions={ExecutionId("77"): (0, 9)}
    )
    projector = harness.projector()
    with pytest.raises(LedgerWentBack, match="execution 77"):
        await projector.guard.check_positions()
    assert "execution 77" in await stopped(projector)


async def test_a_ledger_with_another_history_stops_the_projector(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send([a_batch(history.envelopes[:6])])
    await run_dry(harness.projector())
    twin = History(history.execution_id)
    for event_envelope in history.envelopes:
        twin.add(event_envelope.event)
    twin.envelopes[:] = resealed(twin)
    ledger = harness.stores.ledger
    ledger._store.history_by_execution[history.execution_id] = twin.envelopes  # type: ignore[attr-defined]  # a ledger cannot be rewritten by its port
    await harness.send([a_batch(twin.envelopes[6:])])
    projector = harness.projector()
    with pytest.raises(LedgerWentBack, match="another version 6"):
        await projector.project_batches()


def resealed(history: History) -> list[Envelope]:
    """The same events as somebody else would have written them."""
    done: list[Envelope] = []
    before = codec.CHECKSUM_NONE
    for item in history.envelopes:
        done.append(envelope.seal_envelope(structs.replace(item, producer="other"), before))
        before = done[-1].envelope_checksum
    return done


async def test_a_projector_that_is_told_to_stop_stops_without_a_word(
    harness: ProjectorHarness,
) -> None:
    stop = asyncio.Event()
    stop.set()
    await harness.projector().guard.watch_for_failure(stop)


@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (2, 2)])
async def test_the_number_of_projectors_may_change_under_way(
    harness: ProjectorHarness, counts: tuple[int, int]
) -> None:
    """Old and new overlap, then the old ones end: every version is projected once."""
    before, after = counts
    histories = [History(ExecutionId(str(264905529753600000 + (n << 22)))) for n in range(4)]
    for history in histories:
        history.add(*(envelope.event for envelope in a_cursor_loop().envelopes))
        await harness.append(history, until=8)
        await harness.send([a_batch(history.envelopes[:8])])
    old = [harness.projector(index=index, count=before) for index in range(before)]
    for projector in old:
        await run_dry(projector)
    new = [harness.projector(index=index, count=after) for index in range(after)]
    for history in histories:
        await harness.append(history, after=8)
        await harness.send([*history.batches(size=4), *history.batches(size=3)])
    for projector in (*new, *old, *new):
        await projector.project_batches()
        await projector.catch_up()
    for projector in new:
        await run_dry(projector)
    for history in histories:
        assert await harness.list_differences(history.envelopes) == []
    assert sum(item.summarize_state()["events"] for item in (*old, *new)) == sum(
        len(history.envelopes) for history in histories
    )


@pytest.mark.parametrize("name", [name for name, _ in stories()])
async def test_a_prefix_replays_to_what_a_projector_that_stopped_there_holds(
    harness: ProjectorHarness, name: str
) -> None:
    """At every position: fifty of them chosen by chance would be fewer."""
    history = dict(stories())[name]
    projector = harness.projector()
    for place in range(len(history.envelopes)):
        await harness.append(history, after=place, until=place + 1)
        await projector.catch_up()
        assert await harness.find_position(history) == place + 1
        assert await harness.list_differences(history.envelopes[: place + 1]) == [], place


async def test_the_past_is_remembered_on_the_way(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    projector = harness.projector(snapshot_every_versions=4, batch_messages_max=1)
    for batch in history.batches(size=4):
        await harness.send([batch])
        await run_dry(projector)
    snapshot = await harness.stores.past.find_snapshot_before(history.execution_id, 9)
    assert snapshot is not None
    assert snapshot.version == 8
    assert snapshot.event_id == history.envelopes[7].event_id
    assert snapshot.encryption == {
        "tenant_id": TENANT,
        "organization_id": ORGANIZATION,
        "key_ids": [],
    }


class Dropped:
    """A ledger whose histories were all removed by a policy."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def read_events(self, execution_id: ExecutionId, **_: object) -> list[Envelope]:
        raise HistoryDropped(f"execution {execution_id} was removed by the retention policy")


async def test_a_repeated_message_of_a_dropped_history_is_let_go(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send([a_batch(history.envelopes)])
    await run_dry(harness.projector())
    await harness.send([a_batch(history.envelopes[:5])])
    ledger: Any = Dropped(harness.stores.ledger_reader)
    # No snapshot is so far along: the history itself would have to be read.
    projector = harness.projector(ledger=ledger, snapshot_at_end_versions=10_000)
    await run_dry(projector)
    state = projector.summarize_state()
    assert (state["duplicates"], state["poisoned"], state["set_aside"]) == (5, 0, [])
