"""Messages that their consumers gave up, kept in a stream of their own."""

import re
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from nats.js import api
from nats.js.errors import BadRequestError, NotFoundError

from noetl_contracts import codec, subjects
from noetl_messaging.jetstream.connection import Connection, translate_errors
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.publisher import MESSAGE_ID_HEADER
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetter, Delivery
from noetl_messaging.streams.requeues import build_requeue_id, check_requeue_subject, count_requeues

SUBJECT_HEADER = "Noetl-Subject"
STREAM_HEADER = "Noetl-Stream"
CONSUMER_HEADER = "Noetl-Consumer"
REASON_HEADER = "Noetl-Reason"
DELIVERED_HEADER = "Noetl-Delivered"
REQUEUED_HEADER = "Noetl-Requeued"
REASON_CHARS_MAX = 500
MAX_DELIVERIES_REASON = "not settled within the deliveries allowed"
_PREFIX = f"{subjects.DEAD_LETTERS}."
_DIGITS_MAX = 10
# What the server says of a message that is gone (its error JSSequenceNotFoundErrF).
_UNKNOWN_SEQUENCE = 10043
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


class DeliveryAdvisory(Struct, frozen=True, kw_only=True):
    """What JetStream says when it gives a message up."""

    stream: str
    consumer: str
    stream_seq: int
    deliveries: int


class JetStreamDeadLetters:
    """Dead letters in `NOETL_DLQ`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._advisories = JetStreamConsumer(
            connection, stream=topology.ADVISORIES, name=topology.REAPER_CONSUMER
        )

    async def bury_delivery(
        self, delivery: Delivery, *, stream: str, consumer: str, reason: str
    ) -> None:
        """Store a copy with its reason, then settle the delivery for good."""
        dead_letter = DeadLetter(
            sequence=delivery.stream_sequence,
            stream=stream,
            consumer=consumer,
            subject=delivery.subject,
            reason=reason,
            delivered=delivery.delivery_count,
            data=delivery.data,
            requeued=count_requeues(delivery.message_id),
        )
        await self._store_letter(dead_letter)
        await delivery.term()

    async def list_letters(self, *, letters_max: int, after: int = 0) -> list[DeadLetter]:
        """Return the oldest dead letters after a sequence."""
        dead_letters: list[DeadLetter] = []
        sequence = after + 1
        while len(dead_letters) < letters_max:
            dead_letter = await self._find_letter(sequence, is_next=True)
            if dead_letter is None:
                break
            dead_letters.append(dead_letter)
            sequence = dead_letter.sequence + 1
        return dead_letters

    async def get_letter(self, sequence: int) -> DeadLetter:
        """Return one dead letter; raises `KeyError`."""
        dead_letter = await self._find_letter(sequence)
        if dead_letter is None:
            raise KeyError(sequence)
        return dead_letter

    async def requeue_letter(self, sequence: int) -> None:
        """Publish a dead letter to its subject again and remove it.

        Raises `KeyError`, and `MalformedMessage` for a subject that is none of the letter's stream.
        """
        dead_letter = await self.get_letter(sequence)
        check_requeue_subject(dead_letter)
        headers = {MESSAGE_ID_HEADER: build_requeue_id(dead_letter)}
        with translate_errors(f"requeuing letter {sequence}"):
            await self._connection.jetstream.publish(
                dead_letter.subject, dead_letter.data, headers=headers
            )
        # Who asked for the same at the same time may have removed it.
        with suppress(KeyError):
            await self.remove_letter(sequence)

    async def remove_letter(self, sequence: int) -> None:
        """Delete a dead letter; raises `KeyError`."""
        with translate_errors(f"removing letter {sequence}"):
            try:
                await self._connection.jetstream.delete_msg(topology.DEAD_LETTERS, sequence)
            except NotFoundError:
                raise KeyError(sequence) from None
            except BadRequestError as problem:
                if problem.err_code != _UNKNOWN_SEQUENCE:
                    raise
                raise KeyError(sequence) from None

    async def count_letters(self) -> int:
        """Return how many dead letters there are."""
        with translate_errors("counting dead letters"):
            info = await self._connection.jetstream.stream_info(topology.DEAD_LETTERS)
        return info.state.messages

    async def collect_given_up(self, *, letters_max: int) -> list[DeadLetter]:
        """Store messages without deliveries left as dead letters, and return these."""
        dead_letters = []
        for delivery in await self._advisories.fetch_batch(messages_max=letters_max, wait_s=0.0):
            advisory = _decode_advisory(delivery.data)
            letter = await self._bury_advised(advisory) if advisory else None
            if letter is not None:
                dead_letters.append(letter)
            await delivery.ack()
        return dead_letters

    async def _bury_advised(self, advisory: DeliveryAdvisory) -> DeadLetter | None:
        """Copy a message that was given up and take it out of its queue."""
        with translate_errors(f"reading a message of {advisory.stream}"):
            try:
                message = await self._connection.jetstream.get_msg(
                    advisory.stream, seq=advisory.stream_seq
                )
            except NotFoundError:
                return None
        dead_letter = DeadLetter(
            sequence=advisory.stream_seq,
            stream=advisory.stream,
            consumer=advisory.consumer,
            subject=message.subject or "",
            reason=MAX_DELIVERIES_REASON,
            delivered=advisory.deliveries,
            data=message.data or b"",
            requeued=count_requeues((message.headers or {}).get(MESSAGE_ID_HEADER, "")),
        )
        await self._store_letter(dead_letter)
        await self._settle_advised(advisory)
        return dead_letter

    async def _settle_advised(self, advisory: DeliveryAdvisory) -> None:
        """Settle in the consumer's name: the stream itself refuses deletion."""
        place = f"{advisory.stream}.{advisory.consumer}.{advisory.deliveries}"
        subject = f"$JS.ACK.{place}.{advisory.stream_seq}.0.0.0"
        with translate_errors(f"settling a message of {advisory.stream}"):
            await self._connection.client.request(
                subject, b"+TERM", timeout=self._connection.waits.request_s
            )

    async def _store_letter(self, dead_letter: DeadLetter) -> None:
        source = f"{dead_letter.stream}/{dead_letter.consumer}/{dead_letter.sequence}"
        headers = {
            MESSAGE_ID_HEADER: source,
            SUBJECT_HEADER: dead_letter.subject,
            STREAM_HEADER: dead_letter.stream,
            CONSUMER_HEADER: dead_letter.consumer,
            REASON_HEADER: _UNPRINTABLE.sub(" ", dead_letter.reason)[:REASON_CHARS_MAX],
            DELIVERED_HEADER: str(dead_letter.delivered),
            REQUEUED_HEADER: str(dead_letter.requeued),
        }
        self._connection.require_connected()
        with translate_errors("storing a dead letter"):
            await self._connection.jetstream.publish(
                subjects.build_dead_letter_subject(dead_letter.stream, dead_letter.consumer),
                dead_letter.data,
                headers=headers,
            )

    async def _find_letter(self, sequence: int, *, is_next: bool = False) -> DeadLetter | None:
        with translate_errors("reading a dead letter"):
            try:
                message = await self._connection.jetstream.get_msg(
                    topology.DEAD_LETTERS,
                    seq=sequence,
                    subject=f"{subjects.DEAD_LETTERS}.>" if is_next else None,
                    next=is_next,
                )
            except NotFoundError:
                return None
        return _build_letter(message)


def _build_letter(message: api.RawStreamMsg) -> DeadLetter:
    headers: dict[str, Any] = message.headers or {}
    # The broker holds writers to the subject: what the headers say of it is theirs to make up.
    stream, _, consumer = (message.subject or "").removeprefix(_PREFIX).partition(".")
    return DeadLetter(
        sequence=message.seq or 0,
        stream=stream,
        consumer=consumer,
        subject=headers.get(SUBJECT_HEADER, ""),
        reason=headers.get(REASON_HEADER, ""),
        delivered=_parse_count(headers.get(DELIVERED_HEADER, "")),
        data=message.data or b"",
        requeued=_parse_count(headers.get(REQUEUED_HEADER, "")),
        buried_at=message.time,
    )


def _parse_count(text: str) -> int:
    """Read a count; headers of what no service of ours has buried may say anything."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX else 0


def _decode_advisory(data: bytes) -> DeliveryAdvisory | None:
    """Read an advisory; one that cannot be read names no message to save."""
    try:
        return codec.decode_as(data, DeliveryAdvisory)
    except msgspec.DecodeError:
        return None
