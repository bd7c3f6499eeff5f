"""Dead letters of the broker in the process."""

from datetime import datetime

from noetl_contracts import subjects
from noetl_messaging.memory.broker import MemoryBroker, StoredMessage
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetter, Delivery, Message
from noetl_messaging.streams.requeues import build_requeue_id, check_requeue_subject, count_requeues


class MemoryDeadLetters:
    """Dead letters in a stream of the broker."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def bury_delivery(
        self, delivery: Delivery, *, stream: str, consumer: str, reason: str
    ) -> None:
        """Store a copy with its reason, then settle the delivery for good."""
        self._store_letter(
            DeadLetter(
                sequence=delivery.stream_sequence,
                stream=stream,
                consumer=consumer,
                subject=delivery.subject,
                reason=reason,
                delivered=delivery.delivery_count,
                data=delivery.data,
                requeued=count_requeues(delivery.message_id),
            )
        )
        await delivery.term()

    async def list_letters(self, *, letters_max: int, after: int = 0) -> list[DeadLetter]:
        """Return the oldest dead letters after a sequence."""
        stored_messages = self._broker.get_stream(topology.DEAD_LETTERS).messages.values()
        later_messages = [message for message in stored_messages if message.sequence > after]
        return [_build_letter(message) for message in later_messages[:letters_max]]

    async def get_letter(self, sequence: int) -> DeadLetter:
        """Return one dead letter; raises `KeyError`."""
        return _build_letter(self._broker.get_stream(topology.DEAD_LETTERS).messages[sequence])

    async def requeue_letter(self, sequence: int) -> None:
        """Publish a dead letter to its subject again and remove it.

        Raises `KeyError`, and `MalformedMessage` for a subject that is none of the letter's stream.
        """
        dead_letter = await self.get_letter(sequence)
        check_requeue_subject(dead_letter)
        await self._broker.publish_message(
            Message(
                subject=dead_letter.subject,
                message_id=build_requeue_id(dead_letter),
                data=dead_letter.data,
            )
        )
        await self.remove_letter(sequence)

    async def remove_letter(self, sequence: int) -> None:
        """Delete a dead letter; raises `KeyError`."""
        del self._broker.get_stream(topology.DEAD_LETTERS).messages[sequence]

    async def count_letters(self) -> int:
        """Return how many dead letters there are."""
        return len(self._broker.get_stream(topology.DEAD_LETTERS).messages)

    async def collect_given_up(self, *, letters_max: int) -> list[DeadLetter]:
        """Store messages without deliveries left as dead letters, and return these."""
        dead_letters = []
        for durable, stored_message in list(self._broker.iterate_given_up())[:letters_max]:
            dead_letter = DeadLetter(
                sequence=stored_message.sequence,
                stream=durable.spec.stream,
                consumer=durable.spec.name,
                subject=stored_message.subject,
                reason="not settled within the deliveries allowed",
                delivered=durable.delivered[stored_message.sequence],
                data=stored_message.data,
                requeued=count_requeues(stored_message.message_id),
            )
            self._store_letter(dead_letter)
            self._broker.settle_delivery(
                durable.spec.stream, durable.spec.name, stored_message.sequence
            )
            dead_letters.append(dead_letter)
        return dead_letters

    def _store_letter(self, dead_letter: DeadLetter) -> None:
        self._broker.store_message(
            Message(
                subject=subjects.build_dead_letter_subject(
                    dead_letter.stream, dead_letter.consumer
                ),
                message_id=f"{dead_letter.stream}/{dead_letter.consumer}/{dead_letter.sequence}",
                data=dead_letter.data,
            ),
            headers={
                "stream": dead_letter.stream,
                "consumer": dead_letter.consumer,
                "subject": dead_letter.subject,
                "reason": dead_letter.reason,
                "delivered": str(dead_letter.delivered),
                "requeued": str(dead_letter.requeued),
                "buried_at": self._broker.now().isoformat(),
            },
        )


def _build_letter(stored_message: StoredMessage) -> DeadLetter:
    return DeadLetter(
        sequence=stored_message.sequence,
        stream=stored_message.headers["stream"],
        consumer=stored_message.headers["consumer"],
        subject=stored_message.headers["subject"],
        reason=stored_message.headers["reason"],
        delivered=int(stored_message.headers["delivered"]),
        data=stored_message.data,
        requeued=int(stored_message.headers["requeued"]),
        buried_at=datetime.fromisoformat(stored_message.headers["buried_at"]),
    )
