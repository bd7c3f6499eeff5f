"""The broker in memory with a broker's faults: late, twice, never, and a store that is gone."""

import asyncio
from typing import Any

from msgspec import structs
from tests.simulation.fate import Fate

from noetl_messaging import topology
from noetl_messaging.memory.broker import MemoryBroker, Stored
from noetl_messaging.memory.consumer import MemoryConsumer, MemoryDelivery
from noetl_messaging.ports import Delivery, Message
from noetl_messaging.topology import Topology

_LATE_S = 3.0
# Of these streams nothing may be lost but with all: they hold no work.
_KEPT = (topology.DEAD_LETTERS, topology.ADVISORIES)


class FaultyBroker(MemoryBroker):
    """Takes messages late or twice, loses some, and forgets acknowledgements."""

    def __init__(self, declared: Topology, clock: Any, *, fate: Fate) -> None:
        super().__init__(declared, clock)
        self._fate = fate
        self._copies = 0
        # Message ids that a stream took, ever.
        self.taken: set[str] = set()

    def put(self, message: Message, headers: dict[str, str] | None = None) -> None:
        """Store a message: once, and perhaps later, twice or not at all."""
        fate = self._fate
        stream = self._stream_of(message.subject)
        if stream in _KEPT or stream is None:
            super().put(message, headers)
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
        super().put(message, headers)

    def _try_put(self, message: Message) -> bool:
        """Store one of several messages; of each the answer may be lost."""
        if self._fate.happens("refused"):
            return False
        return super()._try_put(message) and not self._fate.happens("lost_reply")

    def settle(self, stream: str, name: str, sequence: int) -> None:
        """Forget a delivery, unless the word is lost."""
        if not self._fate.happens("lost_ack"):
            super().settle(stream, name, sequence)

    def _later(self, message: Message) -> None:
        delay_s = self._fate.chance.random() * _LATE_S
        asyncio.get_running_loop().call_later(delay_s, self._put_late, message)

    def _put_late(self, message: Message) -> None:
        # A stream that is gone by then has lost it.
        if self._stream_of(message.subject) is not None:
            super().put(message)

    def _stream_of(self, subject: str) -> str | None:
        head = ".".join(subject.split(".")[:2]) + "."
        for name, stream in self._streams.items():
            if any(pattern.startswith(head) for pattern in stream.spec.subjects):
                return name
        return None

    def next_due_s(self, stream: str, name: str) -> float | None:
        """Return when a delivery comes again by itself."""
        return min(self.find_durable(stream, name).due_at.values(), default=None)


class ExactConsumer(MemoryConsumer):
    """Waits until something is due, instead of looking again and again."""

    async def _fetch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        broker: FaultyBroker = self._broker  # type: ignore[assignment]  # there is no other here
        deadline = broker.monotonic() + wait_s
        while True:
            taken: list[tuple[Stored, int]] = broker.take(*self._key, messages_max)
            now_s = broker.monotonic()
            if taken or now_s >= deadline:
                return [
                    MemoryDelivery(broker, key=self._key, stored=stored, delivered=delivered)
                    for stored, delivered in taken
                ]
            due_s = broker.next_due_s(*self._key)
            until_s = deadline if due_s is None or due_s <= now_s else min(deadline, due_s)
            await broker.changed(until_s - now_s)
