"""Dead letters of the broker in the process."""

from noetl_contracts import subjects
from noetl_messaging import topology
from noetl_messaging.memory.broker import MemoryBroker, Stored
from noetl_messaging.ports import DeadLetter, Delivery, Message


class MemoryDeadLetters:
    """Dead letters in a stream of the broker."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def bury(self, delivery: Delivery, *, stream: str, consumer: str, reason: str) -> None:
        """Store a copy with its reason, then settle the delivery for good."""
        self._store(
            DeadLetter(
                sequence=delivery.stream_sequence,
                stream=stream,
                consumer=consumer,
                subject=delivery.subject,
                reason=reason,
                delivered=delivery.delivered,
                data=delivery.data,
            )
        )
        await delivery.term()

    async def list_letters(self, *, letters_max: int) -> list[DeadLetter]:
        """Return the oldest letters."""
        stored = list(self._broker.find_stream(topology.DEAD_LETTERS).messages.values())
        return [_to_letter(message) for message in stored[:letters_max]]

    async def get(self, sequence: int) -> DeadLetter:
        """Return one letter; raises `KeyError`."""
        return _to_letter(self._broker.find_stream(topology.DEAD_LETTERS).messages[sequence])

    async def requeue(self, sequence: int) -> None:
        """Publish a letter under its own subject again and remove it; raises `KeyError`."""
        letter = await self.get(sequence)
        await self._broker.publish(
            Message(subject=letter.subject, message_id=f"requeued/{sequence}", data=letter.data)
        )
        del self._broker.find_stream(topology.DEAD_LETTERS).messages[sequence]

    async def count(self) -> int:
        """Return how many letters there are."""
        return len(self._broker.find_stream(topology.DEAD_LETTERS).messages)

    async def collect(self, *, letters_max: int) -> list[DeadLetter]:
        """Move messages that ran out of deliveries here; return their letters."""
        letters = []
        for durable, stored in list(self._broker.take_given_up())[:letters_max]:
            letter = DeadLetter(
                sequence=stored.sequence,
                stream=durable.spec.stream,
                consumer=durable.spec.name,
                subject=stored.subject,
                reason="not settled within the deliveries allowed",
                delivered=durable.delivered[stored.sequence],
                data=stored.data,
            )
            self._store(letter)
            self._broker.settle(durable.spec.stream, durable.spec.name, stored.sequence)
            letters.append(letter)
        return letters

    def _store(self, letter: DeadLetter) -> None:
        self._broker.put(
            Message(
                subject=subjects.dead_letter(letter.stream, letter.consumer),
                message_id=f"{letter.stream}/{letter.consumer}/{letter.sequence}",
                data=letter.data,
            ),
            headers={
                "stream": letter.stream,
                "consumer": letter.consumer,
                "subject": letter.subject,
                "reason": letter.reason,
                "delivered": str(letter.delivered),
            },
        )


def _to_letter(stored: Stored) -> DeadLetter:
    return DeadLetter(
        sequence=stored.sequence,
        stream=stored.headers["stream"],
        consumer=stored.headers["consumer"],
        subject=stored.headers["subject"],
        reason=stored.headers["reason"],
        delivered=int(stored.headers["delivered"]),
        data=stored.data,
    )
