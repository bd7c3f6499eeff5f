"""Deliveries and consumers of the broker in the process."""

import asyncio

from noetl_messaging.memory.broker import MemoryBroker, StoredMessage
from noetl_messaging.streams.ports import TRACE_HEADER, Backlog, Delivery

_LOOK_S = 0.05


class MemoryDelivery:
    """One handing-over of a message."""

    def __init__(
        self, broker: MemoryBroker, *, key: tuple[str, str], stored: StoredMessage, delivered: int
    ) -> None:
        self._broker = broker
        self._key = key
        self._stored = stored
        self._delivered = delivered
        self._handed_over_at = broker.monotonic_s()

    @property
    def subject(self) -> str:
        """Return the subject under which the message was published."""
        return self._stored.subject

    @property
    def data(self) -> bytes:
        """Return the message's bytes."""
        return self._stored.data

    @property
    def message_id(self) -> str:
        """Return the publisher's own identity of the message; empty when it gave none."""
        return self._stored.message_id

    @property
    def traceparent(self) -> str | None:
        """Return the span that published the message, as its headers name it."""
        return self._stored.headers.get(TRACE_HEADER)

    @property
    def delivery_count(self) -> int:
        """Return how often this message has been handed over, this time included."""
        return self._delivered

    @property
    def stream_sequence(self) -> int:
        """Return the message's place in its stream."""
        return self._stored.sequence

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been handed over, at most."""
        return self._broker.monotonic_s() - self._handed_over_at

    async def ack(self) -> None:
        """Settle: done."""
        self._broker.settle_delivery(*self._key, self._stored.sequence)

    async def nak(self, delay_s: float = 0.0) -> None:
        """Settle: hand it over again, not before the delay has passed."""
        self._broker.postpone_delivery(*self._key, self._stored.sequence, delay_s)

    async def term(self) -> None:
        """Settle: never hand it over again."""
        self._broker.settle_delivery(*self._key, self._stored.sequence)

    async def extend_ack_wait(self) -> bool:
        """Ask for another ack wait; True only when the server confirmed it."""
        return self._broker.postpone_delivery(*self._key, self._stored.sequence, None)


class MemoryConsumer:
    """One durable consumer."""

    def __init__(self, broker: MemoryBroker, *, stream: str, name: str) -> None:
        self._broker = broker
        self._key = (stream, name)
        self._is_called = False

    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        """Return what is there, waiting up to `wait_s` for the first."""
        self._broker.asking[self._key] += 1
        try:
            return await self._fetch_until(messages_max=messages_max, wait_s=wait_s)
        finally:
            self._is_called = False
            self._broker.asking[self._key] -= 1

    async def _fetch_until(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        while True:
            due_messages = self._broker.take_due(*self._key, messages_max)
            remaining_s = deadline - clock()
            if due_messages or self._is_called or remaining_s <= 0:
                return [
                    MemoryDelivery(self._broker, key=self._key, stored=stored, delivered=delivered)
                    for stored, delivered in due_messages
                ]
            # Redeliveries become due without any event, so the wait is cut into short looks.
            await self._broker.wait_for_change(min(remaining_s, _LOOK_S))

    def wake_fetch(self) -> None:
        """Have the fetch that waits, else the next one, return with what there is."""
        self._is_called = True
        self._broker.signal_change()

    async def count_pending(self) -> tuple[int, int]:
        """Return how many messages are undelivered and how many are delivered and unsettled."""
        self._broker.get_durable(*self._key)
        for queue in await self._broker.list_queues():
            if (queue.stream, queue.consumer) == self._key:
                return queue.pending, queue.unsettled
        return 0, 0

    async def close(self) -> None:
        """Stop listening for messages: nothing comes that is not fetched."""


class MemoryBacklogs:
    """Asks the broker about its consumers."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def list_backlogs(self, stream: str) -> dict[str, Backlog]:
        """Return how every consumer of a stream stands, by name."""
        return {
            queue.consumer: Backlog(
                pending=queue.pending,
                unsettled=queue.unsettled,
                asking=self._broker.asking[stream, queue.consumer],
            )
            for queue in await self._broker.list_queues()
            if queue.stream == stream
        }

    async def find_backlog(self, *, stream: str, consumer: str) -> Backlog | None:
        """Return how a consumer stands, None when there is none by this name."""
        return (await self.list_backlogs(stream)).get(consumer)
