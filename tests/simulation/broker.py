"""The broker in memory with a broker's faults: late, twice, never, and a store that is gone."""

import asyncio
import contextvars
from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast

from msgspec import structs
from tests.simulation.fate import Fate
from tests.simulation.virtual import VirtualLoop

from noetl_messaging.memory.broker import MemoryBroker, StoredMessage
from noetl_messaging.memory.consumer import MemoryConsumer, MemoryDelivery
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Delivery, Message
from noetl_messaging.streams.topology import Topology

_LATE_S = 3.0
# NATS Server writes what its consumers know ten times a second at most.
_UNWRITTEN_S = 0.1
# Of these streams nothing may be lost but with all: they hold no work.
_KEPT = (topology.DEAD_LETTERS, topology.ADVISORIES)


class FaultyBroker(MemoryBroker):
    """Takes messages late or twice, loses some, and forgets acknowledgements and deliveries."""

    def __init__(
        self, declared: Topology, clock: Any, *, fate: Fate, on_death: Callable[[], None]
    ) -> None:
        super().__init__(declared, clock)
        self._fate = fate
        self._on_death = on_death
        self._copies = 0
        # Fetches that wait for something to take, by what ends their wait.
        self._waiting: dict[asyncio.Future[None], tuple[str, str]] = {}
        # Message ids that a stream took, ever.
        self.taken: set[str] = set()
        # What each consumer was handed, when, and for which time; and what is forgotten of that.
        self._handed: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
        self.forgotten: set[int] = set()

    def store_message(self, message: Message, headers: dict[str, str] | None = None) -> None:
        """Store a message: once, and perhaps later, twice or not at all."""
        fate = self._fate
        stream = self._stream_of(message.subject)
        if stream in _KEPT or stream is None:
            super().store_message(message, headers)
            return
        self.taken.add(message.message_id)
        if fate.happens("duplicate"):
            self._copies += 1
            copy = f"{message.message_id}/copy-{self._copies}"
            self._later(structs.replace(message, message_id=copy))
        if fate.happens("lost_message"):
            return
        if fate.happens("late"):
            self._later(message)
            return
        super().store_message(message, headers)

    def _try_store(self, message: Message) -> bool:
        """Store one of several messages; of each the answer may be lost."""
        if self._fate.happens("refused"):
            return False
        return super()._try_store(message) and not self._fate.happens("lost_reply")

    def settle_delivery(self, stream: str, name: str, sequence: int) -> None:
        """Forget a delivery, unless the word is lost."""
        if not self._fate.happens("lost_ack"):
            super().settle_delivery(stream, name, sequence)

    def take_due(
        self, stream: str, name: str, messages_max: int
    ) -> list[tuple[StoredMessage, int]]:
        """Hand over messages that are due; sometimes it is the last that the broker does."""
        taken = super().take_due(stream, name, messages_max)
        now_s = self.monotonic_s()
        self._handed[stream, name] += [(now_s, item.sequence, many) for item, many in taken]
        if taken and self._fate.happens("restart"):
            delay_s = self._fate.chance.random() * _UNWRITTEN_S
            asyncio.get_running_loop().call_later(
                delay_s, self._start_again, now_s, context=contextvars.Context()
            )
        return taken

    def _start_again(self, since_s: float) -> None:
        """Be killed and come back without the consumers' state of the last moment.

        As NATS Server, which writes that state in intervals: what was handed over since is handed
        over once more, under the same number of its delivery.
        """
        if self._fate.is_healed:
            return
        self._fate.note("the broker is killed and starts again")
        self._on_death()
        for key, handed in self._handed.items():
            durable = self._durables.get(key)
            while handed and handed[-1][0] >= since_s:
                _, sequence, delivered = handed.pop()
                if durable is None or durable.delivered.get(sequence) != delivered:
                    continue
                self.forgotten.add(sequence)
                if delivered > 1:
                    durable.delivered[sequence] -= 1
                    if sequence in durable.due_at:
                        durable.due_at[sequence] = self.monotonic_s()
                    continue
                del durable.delivered[sequence]
                durable.due_at.pop(sequence, None)
                durable.cursor = min(durable.cursor, sequence - 1)
        self.signal_change()

    def _later(self, message: Message) -> None:
        delay_s = self._fate.chance.random() * _LATE_S
        asyncio.get_running_loop().call_later(delay_s, self._put_late, message)

    def _put_late(self, message: Message) -> None:
        # A stream that is gone by then has lost it.
        if self._stream_of(message.subject) is not None:
            super().store_message(message)

    def _stream_of(self, subject: str) -> str | None:
        head = ".".join(subject.split(".")[:2]) + "."
        for name, stream in self._streams.items():
            if any(pattern.startswith(head) for pattern in stream.spec.subjects):
                return name
        return None

    async def awaited(self, key: tuple[str, str], wait_s: float) -> None:
        """Wait until a consumer has something to take or is gone, but not longer than `wait_s`."""
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        due_s = min(self.get_durable(*key).due_at.values(), default=float("inf"))
        until_s = due_s - self.monotonic_s()
        # What is overdue and was not taken is in nobody's reach before something changes.
        waits_s = min(wait_s, until_s) if until_s > 0 else wait_s
        future = loop.alarm(waits_s)
        self._waiting[future] = key
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def signal_change(self) -> None:
        """Wake the fetches that find something, and no others."""
        self._wake_where(self._has_some)

    def call_back(self, called: tuple[str, str]) -> None:
        """Wake the fetches of one consumer."""
        self._wake_where(lambda key: key == called)

    def _wake_where(self, wakes: Callable[[tuple[str, str]], bool]) -> None:
        for future, key in list(self._waiting.items()):
            if future.done() or wakes(key):
                del self._waiting[future]
                if not future.done():
                    future.set_result(None)

    def _has_some(self, key: tuple[str, str]) -> bool:
        durable, source = self._durables.get(key), self._streams.get(key[0])
        if durable is None or source is None:
            return True
        found = next(self._iterate_due(durable, source, self.monotonic_s()), None)
        if found is None:
            return False
        return found in durable.delivered or len(durable.due_at) < durable.spec.ack_pending_max


class ExactConsumer(MemoryConsumer):
    """Waits until something is due, instead of looking again and again."""

    def wake_fetch(self) -> None:
        """Have the fetch that waits, else the next one, return with what there is."""
        broker: FaultyBroker = self._broker  # type: ignore[assignment]  # there is no other here
        self._is_called = True
        broker.call_back(self._key)

    async def _fetch_until(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        broker: FaultyBroker = self._broker  # type: ignore[assignment]  # there is no other here
        deadline = broker.monotonic_s() + wait_s
        while True:
            taken: list[tuple[StoredMessage, int]] = broker.take_due(*self._key, messages_max)
            now_s = broker.monotonic_s()
            if taken or self._is_called or now_s >= deadline:
                return [
                    MemoryDelivery(broker, key=self._key, stored=stored, delivered=delivered)
                    for stored, delivered in taken
                ]
            await broker.awaited(self._key, deadline - now_s)
