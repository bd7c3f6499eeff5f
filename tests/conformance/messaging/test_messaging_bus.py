"""What every broker does."""

import asyncio

import pytest
from tests.support.bus import LEASE_S, Bus, wait_for_pending
from tests.support.polling import PATIENCE_S, eventually

from noetl_contracts import subjects
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessageTooLarge, MessagingUnavailable
from noetl_messaging.streams.ports import (
    MESSAGE_BYTES_MAX,
    Backlog,
    Consumer,
    Delivery,
    Message,
    QueueSnapshot,
)

ACME, OPS = TenantId("acme"), OrganizationId("ops")
WORKER = topology.build_worker_consumer("default", "io")


def a_command(number: int = 1, *, pool: str = "default", data: bytes = b"work") -> Message:
    return Message(
        subject=subjects.build_command_subject(pool, "io", ACME, OPS),
        message_id=f"c/{number}",
        data=data,
    )


def a_fact(number: int, *, shard: int = 0) -> Message:
    return Message(
        subject=subjects.build_ingest_subject(shard, ACME, OPS),
        message_id=f"f/{number}",
        data=b"%d" % number,
    )


def worker(bus: Bus) -> Consumer:
    return bus.consumer(topology.COMMANDS, WORKER)


async def one(consumer: Consumer) -> Delivery:
    (delivery,) = await consumer.fetch_batch(messages_max=1, wait_s=PATIENCE_S)
    return delivery


async def bury(bus: Bus, delivery: Delivery) -> None:
    await bus.letters.bury_delivery(
        delivery, stream=topology.COMMANDS, consumer=WORKER, reason="odd"
    )


async def exhaust(bus: Bus, consumer: Consumer) -> None:
    """Let a message run out of its three deliveries."""
    for _ in range(3):
        await one(consumer)
        bus.elapse(LEASE_S + 0.1)
    assert await consumer.fetch_batch(messages_max=1, wait_s=LEASE_S * 2) == []


async def test_a_message_arrives_as_it_was_sent(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command(data=b"\x00\xff"))
    delivery = await one(worker(bus))
    assert delivery.data == b"\x00\xff"
    assert delivery.subject == "noetl.commands.default.io.acme.ops"
    assert delivery.delivery_count == 1
    await delivery.ack()


async def test_a_settled_message_never_comes_again(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command())
    consumer = worker(bus)
    await (await one(consumer)).ack()
    bus.elapse(LEASE_S * 2)
    assert await consumer.fetch_batch(messages_max=1, wait_s=LEASE_S * 1.5) == []
    await wait_for_pending(consumer, 0, 0)


async def test_a_delivery_is_no_older_than_it_says(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command())
    consumer = worker(bus)
    held = await one(consumer)
    age_s = held.age_s
    bus.elapse(LEASE_S / 2)
    assert await consumer.fetch_batch(messages_max=1, wait_s=LEASE_S / 2) == []
    assert held.age_s - age_s > LEASE_S / 2 * 0.9


async def test_who_is_called_back_from_a_fetch_loses_nothing(bus: Bus) -> None:
    consumer = worker(bus)
    # The first asks what there is, the others wait.
    for _ in range(3):
        fetching = asyncio.create_task(consumer.fetch_batch(messages_max=1, wait_s=LEASE_S))
        await asyncio.sleep(0)
        consumer.wake_fetch()
        assert await fetching == []
    await bus.publisher.publish_message(a_command())
    consumer.wake_fetch()
    found = await consumer.fetch_batch(messages_max=1, wait_s=LEASE_S)
    found = found or await consumer.fetch_batch(messages_max=1, wait_s=PATIENCE_S)
    assert [item.delivery_count for item in found] == [1]
    await found[0].ack()


async def test_an_unsettled_message_comes_again_after_the_ack_wait(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command())
    consumer = worker(bus)
    first = await one(consumer)
    bus.elapse(LEASE_S + 0.1)
    second = await one(consumer)
    assert (first.delivery_count, second.delivery_count) == (1, 2)
    assert second.stream_sequence == first.stream_sequence


async def test_a_refused_message_comes_again_at_once(bus: Bus) -> None:
    await bus.publisher.publish_batch([a_command(1), a_command(2)])
    consumer = worker(bus)
    _, refused = await one(consumer), await one(consumer)
    await refused.nak()
    again = await one(consumer)
    # Not when its lease is over: the other one's, which was handed over first, would end before.
    assert (again.stream_sequence, again.delivery_count) == (refused.stream_sequence, 2)


async def test_a_refusal_can_ask_for_a_pause(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command())
    consumer = worker(bus)
    await (await one(consumer)).nak(LEASE_S)
    assert await consumer.fetch_batch(messages_max=1, wait_s=0.1) == []
    bus.elapse(LEASE_S + 0.1)
    assert (await one(consumer)).delivery_count == 2


async def test_a_terminated_message_never_comes_again(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command())
    consumer = worker(bus)
    await (await one(consumer)).term()
    bus.elapse(LEASE_S + 0.1)
    assert await consumer.fetch_batch(messages_max=1, wait_s=LEASE_S * 1.5) == []


async def test_an_extension_is_confirmed_and_holds_the_message(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command())
    consumer = worker(bus)
    held = await one(consumer)
    for _ in range(6):
        bus.elapse(LEASE_S / 4)
        assert await consumer.fetch_batch(messages_max=1, wait_s=LEASE_S / 4) == []
        assert await held.extend_ack_wait() is True
    bus.elapse(LEASE_S + 0.1)
    assert (await one(consumer)).delivery_count == 2


async def test_the_same_message_is_stored_once(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command(7))
    await bus.publisher.publish_message(a_command(7))
    assert await bus.publisher.publish_batch([a_command(7), a_command(8)]) == [True, True]
    consumer = worker(bus)
    assert [(await one(consumer)).message_id for _ in range(2)] == ["c/7", "c/8"]


async def test_messages_arrive_in_order_and_at_most_as_many_as_asked_for(bus: Bus) -> None:
    assert all(await bus.publisher.publish_batch([a_fact(number) for number in range(700)]))
    consumer = bus.consumer(topology.INGEST, topology.build_planner_consumer(0))
    await wait_for_pending(consumer, 700, 0)
    first = await consumer.fetch_batch(messages_max=300, wait_s=PATIENCE_S)
    for delivery in first:
        await delivery.ack()
    rest = await consumer.fetch_batch(messages_max=1000, wait_s=PATIENCE_S)
    assert [int(item.data) for item in [*first, *rest]] == list(range(700))
    assert len(first) == 300


async def test_a_consumer_sees_only_what_its_filter_admits(bus: Bus) -> None:
    await bus.publisher.publish_batch([a_fact(1, shard=1), a_fact(2), a_command(1, pool="other")])
    zero = bus.consumer(topology.INGEST, topology.build_planner_consumer(0))
    assert (await one(zero)).data == b"2"
    await wait_for_pending(zero, 0, 1)
    assert await worker(bus).count_pending() == (0, 0)


async def test_a_waiting_fetch_returns_with_the_first_message(bus: Bus) -> None:
    consumer = worker(bus)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(consumer.fetch_batch(messages_max=10, wait_s=PATIENCE_S))
        await asyncio.sleep(0)
        await bus.publisher.publish_message(a_command())
    assert len(waiting.result()) == 1


async def test_nothing_there_and_no_time_to_wait_returns_nothing(bus: Bus) -> None:
    assert await worker(bus).fetch_batch(messages_max=10, wait_s=0) == []


async def test_a_cancelled_fetch_leaves_messages_to_others(bus: Bus) -> None:
    consumer = worker(bus)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await consumer.fetch_batch(messages_max=1, wait_s=30)
    await bus.publisher.publish_message(a_command())
    assert (await one(bus.consumer(topology.COMMANDS, WORKER))).delivery_count == 1


async def test_two_readers_of_one_consumer_share_the_messages(bus: Bus) -> None:
    await bus.publisher.publish_batch([a_command(number) for number in range(20)])
    await wait_for_pending(worker(bus), 20, 0)
    batches = await asyncio.gather(
        *(worker(bus).fetch_batch(messages_max=10, wait_s=PATIENCE_S) for _ in range(2))
    )
    sequences = [item.stream_sequence for batch in batches for item in batch]
    assert len(set(sequences)) == len(sequences) == 20


async def test_a_message_that_is_too_large_is_refused_with_a_way_out(bus: Bus) -> None:
    large = a_command(data=b"x" * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(MessageTooLarge, match=str(MESSAGE_BYTES_MAX)):
        await bus.publisher.publish_message(large)
    assert await bus.publisher.publish_batch([large, a_command(2)]) == [False, True]


async def test_the_largest_message_is_taken_and_can_become_a_dead_letter(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command(data=b"x" * MESSAGE_BYTES_MAX))
    delivery = await one(worker(bus))
    await bus.letters.bury_delivery(
        delivery, stream=topology.COMMANDS, consumer=WORKER, reason="nobody can read it"
    )
    (dead_letter,) = await bus.letters.list_letters(letters_max=10)
    assert len(dead_letter.data) == MESSAGE_BYTES_MAX


async def test_without_a_stream_publishing_says_so(bus: Bus) -> None:
    nowhere = Message(subject="noetl.nowhere.at.all", message_id="n", data=b"")
    with pytest.raises(MessagingUnavailable):
        await bus.publisher.publish_message(nowhere)
    assert await bus.publisher.publish_batch([nowhere, a_command()]) == [False, True]


async def test_each_of_many_publishers_hears_of_its_own_message(bus: Bus) -> None:
    nowhere = Message(subject="noetl.nowhere.at.all", message_id="n", data=b"")
    messages = [nowhere if number % 7 == 3 else a_command(number) for number in range(50)]
    told = await asyncio.gather(
        *(bus.publisher.publish_message(message) for message in messages), return_exceptions=True
    )
    assert [isinstance(item, MessagingUnavailable) for item in told] == [
        message is nowhere for message in messages
    ]
    assert await bus.publisher.publish_batch([]) == []
    await wait_for_pending(worker(bus), sum(message is not nowhere for message in messages), 0)


async def test_a_missing_consumer_is_unavailable_not_fatal(bus: Bus) -> None:
    absent = bus.consumer(topology.COMMANDS, "worker-none-io")
    with pytest.raises(MessagingUnavailable):
        await absent.fetch_batch(messages_max=1, wait_s=0.5)
    with pytest.raises(MessagingUnavailable):
        await absent.count_pending()


async def test_a_buried_message_is_a_letter_that_can_be_sent_again(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command(data=b"poison"))
    consumer = worker(bus)
    reason = "line one\nline two: ünknown " + "x" * 1000
    await bus.letters.bury_delivery(
        await one(consumer), stream=topology.COMMANDS, consumer=WORKER, reason=reason
    )
    (dead_letter,) = await bus.letters.list_letters(letters_max=10)
    assert (dead_letter.data, dead_letter.stream, dead_letter.consumer) == (
        b"poison",
        "NOETL_COMMANDS",
        WORKER,
    )
    assert dead_letter.subject == "noetl.commands.default.io.acme.ops"
    assert dead_letter.reason.startswith("line one")
    assert await bus.letters.count_letters() == 1
    assert await bus.letters.get_letter(dead_letter.sequence) == dead_letter

    await bus.letters.requeue_letter(dead_letter.sequence)
    assert (await one(consumer)).data == b"poison"
    assert await bus.letters.count_letters() == 0
    with pytest.raises(KeyError):
        await bus.letters.requeue_letter(dead_letter.sequence)


async def test_letters_are_listed_from_a_number_on_and_removed_for_good(bus: Bus) -> None:
    consumer = worker(bus)
    for number in range(3):
        await bus.publisher.publish_message(a_command(number, data=b"%d" % number))
        await bury(bus, await one(consumer))
    first, second, third = await bus.letters.list_letters(letters_max=10)
    assert await bus.letters.list_letters(letters_max=1, after=first.sequence) == [second]
    assert await bus.letters.list_letters(letters_max=9, after=third.sequence) == []
    await bus.letters.remove_letter(second.sequence)
    assert await bus.letters.list_letters(letters_max=10) == [first, third]
    with pytest.raises(KeyError):
        await bus.letters.remove_letter(second.sequence)
    await wait_for_pending(consumer, 0, 0)


async def test_a_message_that_is_given_up_again_says_how_often_it_was_sent_again(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command(data=b"poison"))
    consumer, buried = worker(bus), []
    for _ in range(3):
        await bury(bus, await one(consumer))
        (dead_letter,) = await bus.letters.list_letters(letters_max=10)
        buried.append(dead_letter)
        await bus.letters.requeue_letter(dead_letter.sequence)
    await exhaust(bus, consumer)
    (last,) = await eventually(lambda: bus.letters.collect_given_up(letters_max=10))
    assert [dead_letter.requeued for dead_letter in (*buried, last)] == [0, 1, 2, 3]
    assert all(dead_letter.buried_at is not None for dead_letter in buried)


@pytest.mark.parametrize("stream", [topology.INGEST, topology.DEAD_LETTERS, "NOETL_OTHER"])
async def test_a_letter_is_sent_to_its_own_stream_alone(bus: Bus, stream: str) -> None:
    """Whoever may write letters says in them where their messages were."""
    await bus.publisher.publish_message(a_command(data=b"poison"))
    await bus.letters.bury_delivery(
        await one(worker(bus)), stream=stream, consumer="c", reason="odd"
    )
    (dead_letter,) = await bus.letters.list_letters(letters_max=10)
    with pytest.raises(MalformedMessage, match="cannot be sent again"):
        await bus.letters.requeue_letter(dead_letter.sequence)
    assert await bus.letters.count_letters() == 1


async def test_a_message_out_of_deliveries_becomes_a_letter_and_leaves_its_queue(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command(data=b"stubborn"))
    consumer = worker(bus)
    await exhaust(bus, consumer)
    dead_letters = await eventually(lambda: bus.letters.collect_given_up(letters_max=10))
    assert [(dead_letter.data, dead_letter.delivered) for dead_letter in dead_letters] == [
        (b"stubborn", 3)
    ]
    assert await bus.letters.collect_given_up(letters_max=10) == []
    assert await bus.letters.count_letters() == 1
    await bus.publisher.publish_message(a_command(2, data=b"next"))
    assert (await one(consumer)).data == b"next"


async def test_applying_twice_changes_nothing(bus: Bus) -> None:
    assert await bus.streams.ensure_streams() == []
    assert await bus.streams.list_mismatches() == []


async def test_queues_tell_what_waits_and_what_is_held(bus: Bus) -> None:
    await bus.publisher.publish_batch([a_command(number) for number in range(3)])
    await one(worker(bus))
    queues = {queue.consumer: queue for queue in await bus.streams.list_queues()}
    assert (queues[WORKER].pending, queues[WORKER].unsettled) == (2, 1)
    assert (queues["planner-0"].pending, queues["planner-0"].unsettled) == (0, 0)
    assert queues[WORKER].last_delivered_at is not None
    assert queues["planner-0"].last_delivered_at is None


async def test_queues_tell_up_to_where_all_is_settled(bus: Bus) -> None:
    async def queue() -> QueueSnapshot:
        queues = {queue.consumer: queue for queue in await bus.streams.list_queues()}
        return queues[WORKER]

    await bus.publisher.publish_batch([a_command(number) for number in range(3)])
    first, second, third = [await one(worker(bus)) for _ in range(3)]
    for later in (third, first):
        await later.ack()

    async def is_settled(sequence: int) -> bool:
        return (await queue()).settled_sequence == sequence

    # The second holds it back, whatever was settled behind.
    await eventually(lambda: is_settled(first.stream_sequence))
    await second.ack()
    await eventually(lambda: is_settled(third.stream_sequence))
    assert (await queue()).last_sequence == third.stream_sequence


async def test_a_hint_wakes_a_listener_and_many_wake_it_once(bus: Bus) -> None:
    heard: list[int] = []
    ready = asyncio.Event()

    async def listen() -> None:
        async for _ in bus.hints.listen_for_hints(subjects.build_hint_subject("test")):
            heard.append(1)
            ready.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        listener = group.create_task(listen())
        while not ready.is_set():
            await bus.hints.notify(subjects.build_hint_subject("test"))
            await asyncio.sleep(0.01)
        listener.cancel()
    assert heard


async def test_a_hint_sets_the_event_that_it_is_given(bus: Bus) -> None:
    mine = asyncio.Event()

    async def is_set() -> bool:
        await bus.hints.notify(subjects.build_hint_subject("test"))
        return mine.is_set()

    async with bus.hints.watch_hints(subjects.build_hint_subject("test"), mine) as woken:
        assert woken is mine
        await eventually(is_set)


async def test_hints_below_a_prefix_are_told_apart(bus: Bus) -> None:
    heard: list[str] = []
    enough = asyncio.Event()

    async def listen() -> None:
        async for token in bus.hints.subscribe_tokens(subjects.HALTED):
            heard.append(token)
            if {"1", "2"} <= set(heard):
                enough.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        listener = group.create_task(listen())
        while not enough.is_set():
            for execution_id in ("1", "2"):
                await bus.hints.notify(subjects.build_halted_hint(execution_id))
            await bus.hints.notify(subjects.build_hint_subject("test"))
            await asyncio.sleep(0.01)
        listener.cancel()
    assert set(heard) == {"1", "2"}


async def test_what_is_said_is_heard_word_for_word(bus: Bus) -> None:
    heard: list[bytes] = []
    enough = asyncio.Event()

    async def listen() -> None:
        async for data in bus.hints.subscribe(subjects.build_offer_subject("worker.1")):
            heard.append(data)
            if {b"one", b"two"} <= set(heard):
                enough.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        listener = group.create_task(listen())
        while not enough.is_set():
            for data in (b"one", b"two"):
                await bus.hints.broadcast(subjects.build_offer_subject("worker.1"), data)
            await bus.hints.broadcast(subjects.build_offer_subject("worker.2"), b"not for you")
            await asyncio.sleep(0.01)
        listener.cancel()
    assert set(heard) == {b"one", b"two"}


async def test_a_hint_that_nobody_hears_is_no_error(bus: Bus) -> None:
    await bus.hints.notify(subjects.build_hint_subject("nobody"))
    await bus.hints.broadcast(subjects.WORKERS, b"nobody")


async def test_a_consumer_says_whether_anybody_serves_it(bus: Bus) -> None:
    async def find() -> Backlog:
        backlog = await bus.backlogs.find_backlog(stream=topology.COMMANDS, consumer=WORKER)
        assert backlog is not None
        return backlog

    await bus.publisher.publish_message(a_command())

    async def is_waiting() -> bool:
        # A consumer counts a message a moment after the stream has it.
        return await find() == Backlog(pending=1, unsettled=0, asking=0)

    await eventually(is_waiting)
    assert not (await find()).is_served
    consumer = worker(bus)
    delivery = await one(consumer)
    assert (await find()).unsettled == 1
    await delivery.ack()
    asking = asyncio.ensure_future(consumer.fetch_batch(messages_max=1, wait_s=LEASE_S * 2))

    async def is_asked() -> bool:
        return (await find()).is_served

    await eventually(is_asked)
    await asking
    assert await bus.backlogs.find_backlog(stream=topology.COMMANDS, consumer="nobody") is None


async def test_all_consumers_of_a_stream_are_listed_as_each_is_found(bus: Bus) -> None:
    await bus.publisher.publish_message(a_command())

    async def is_counted() -> bool:
        listed = await bus.backlogs.list_backlogs(topology.COMMANDS)
        return listed[WORKER] == Backlog(pending=1, unsettled=0, asking=0)

    # A consumer counts a message a moment after the stream has it.
    await eventually(is_counted)
    listed = await bus.backlogs.list_backlogs(topology.COMMANDS)
    for consumer in listed:
        found = await bus.backlogs.find_backlog(stream=topology.COMMANDS, consumer=consumer)
        assert found == listed[consumer]
    assert {queue.consumer for queue in await bus.streams.list_queues()} >= listed.keys()
    assert await bus.backlogs.list_backlogs("NOETL_NOBODY") == {}


async def test_each_pool_and_priority_has_a_queue_of_its_own(bus: Bus) -> None:
    high = subjects.build_command_subject("default", "io-high", ACME, OPS)
    await bus.publisher.publish_message(a_command())
    await bus.publisher.publish_message(Message(subject=high, message_id="high", data=b"now"))
    await bus.publisher.publish_message(a_command(3, pool="elsewhere"))
    urgent = bus.consumer(topology.COMMANDS, topology.build_worker_consumer("default", "io-high"))
    usual = worker(bus)
    assert [(await one(consumer)).data for consumer in (urgent, usual)] == [b"now", b"work"]
    for consumer in (urgent, usual):
        await wait_for_pending(consumer, 0, 1)
