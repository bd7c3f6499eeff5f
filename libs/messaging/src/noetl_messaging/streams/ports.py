"""Ports of messaging: confirmed publishing, pull consumers, dead letters, hints and registers."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from noetl_contracts.errors import Permanent

MESSAGE_BYTES_MAX = 512 * 1024
# The header that names the span which published a message (W3C Trace Context).
TRACE_HEADER = "traceparent"


class Message(Struct, frozen=True, kw_only=True):
    """Bytes for a subject; `message_id` deduplicates within the stream's window.

    `traceparent` names the span that the message comes from.
    """

    subject: str
    message_id: str
    data: bytes
    traceparent: str | None = None


class Delivery(Protocol):
    """One handing-over of a message; unsettled deliveries come again after the ack wait."""

    @property
    def subject(self) -> str:
        """Return the subject under which the message was published."""

    @property
    def data(self) -> bytes:
        """Return the message's bytes."""

    @property
    def message_id(self) -> str:
        """Return the publisher's own identity of the message; empty when it gave none."""

    @property
    def traceparent(self) -> str | None:
        """Return the span that published the message, as its headers name it."""

    @property
    def delivery_count(self) -> int:
        """Return how often this message has been handed over, this time included."""

    @property
    def stream_sequence(self) -> int:
        """Return the message's place in its stream."""

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been handed over, at most: it may have travelled."""

    async def ack(self) -> None:
        """Settle: done."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """Settle: hand it over again, not before the delay has passed."""

    async def term(self) -> None:
        """Settle: never hand it over again."""

    async def extend_ack_wait(self) -> bool:
        """Ask for another ack wait; True only when the server confirmed it."""


class PublicationSpan(Protocol):
    """Times publications."""

    def __call__(
        self, subject: str, *, messages: int, origins: Iterable[str | None]
    ) -> AbstractContextManager[str | None]:
        """Time one; the block has the `traceparent` for the messages' headers, if any."""


class Publisher(Protocol):
    """Puts messages into streams."""

    async def publish_message(self, message: Message) -> None:
        """Return once the stream has stored the message.

        Raises `MessagingUnavailable` or `MessageTooLarge`.
        """

    async def publish_batch(self, messages: Sequence[Message]) -> list[bool]:
        """Publish in a window of asynchronous publications; tell for each whether it was stored."""


class Consumer(Protocol):
    """One durable consumer."""

    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        """Return what is there, waiting up to `wait_s` for the first; may return nothing.

        Raises `MessagingUnavailable`.
        """

    def wake_fetch(self) -> None:
        """Have the fetch that waits, else the next one, return with what there is.

        That is at once where what comes later is kept for the fetch after it, else in its time.
        """

    async def count_pending(self) -> tuple[int, int]:
        """Return how many messages are undelivered and how many are delivered and unsettled."""

    async def close(self) -> None:
        """Stop listening for messages, and give back what came and was not fetched."""


class DeadLetters(Protocol):
    """Dead letters: messages that their consumers gave up."""

    async def bury_delivery(
        self, delivery: Delivery, *, stream: str, consumer: str, reason: str
    ) -> None:
        """Store a copy with its reason, then settle the delivery for good."""

    async def list_letters(self, *, letters_max: int, after: int = 0) -> list["DeadLetter"]:
        """Return the oldest dead letters after a sequence."""

    async def get_letter(self, sequence: int) -> "DeadLetter":
        """Return one dead letter; raises `KeyError`."""

    async def requeue_letter(self, sequence: int) -> None:
        """Publish a dead letter to its subject again and remove it.

        Raises `KeyError`, and `MalformedMessage` for a subject that is none of the letter's stream.
        """

    async def remove_letter(self, sequence: int) -> None:
        """Delete a dead letter; raises `KeyError`."""

    async def count_letters(self) -> int:
        """Return how many dead letters there are."""

    async def collect_given_up(self, *, letters_max: int) -> list["DeadLetter"]:
        """Store messages without deliveries left as dead letters, and return these."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message that a consumer gave up, when and why.

    `delivery_count` counts this time's deliveries; before that it was sent again `requeued` times.
    """

    sequence: int
    stream: str
    consumer: str
    subject: str
    reason: str
    delivered: int
    data: bytes
    requeued: int = 0
    buried_at: datetime | None = None


class QueueSnapshot(Struct, frozen=True, kw_only=True):
    """How one consumer stands, when it was last read, and since when its stream exists.

    Of the messages up to `settled_sequence` none waits for delivery or for its acknowledgement;
    `last_sequence` is that of the latest message in the stream, of any subject.
    """

    stream: str
    consumer: str
    pending: int
    unsettled: int
    stream_created_at: datetime
    last_sequence: int
    settled_sequence: int
    last_delivered_at: datetime | None = None


class Backlog(Struct, frozen=True, kw_only=True):
    """What one consumer has to do, and how many are asking it for work at this moment."""

    pending: int
    unsettled: int
    asking: int

    @property
    def is_served(self) -> bool:
        """Tell whether anybody asks for messages, or holds some."""
        return self.asking > 0 or self.unsettled > 0


class Backlogs(Protocol):
    """How consumers stand now."""

    async def list_backlogs(self, stream: str) -> dict[str, Backlog]:
        """Return how every consumer of a stream stands, by name; none where there is no stream.

        Raises `MessagingUnavailable`.
        """

    async def find_backlog(self, *, stream: str, consumer: str) -> Backlog | None:
        """Return how a consumer stands, None when there is none by this name.

        Raises `MessagingUnavailable`.
        """


class OpenConnection(Struct, frozen=True, kw_only=True):
    """A connection by its number at a server; `name` is what its program calls itself."""

    server: str
    number: int
    name: str


class ConnectionReport(Struct, frozen=True, kw_only=True):
    """The open connections, and the servers that told of them."""

    servers: frozenset[str]
    connections: frozenset[OpenConnection]

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the programs that are connected."""
        return frozenset(connection.name for connection in self.connections)


class Connections(Protocol):
    """Who is connected to the broker."""

    async def list_connections(self) -> ConnectionReport:
        """Return who is connected now. Raises `MessagingUnavailable`."""


class UnsettledMessage(Struct, frozen=True, kw_only=True):
    """A message that was handed over and not settled: somebody holds it, or has lost it."""

    sequence: int
    data: bytes


class UnsettledMessages(Protocol):
    """What consumers of a work queue hold; the reaper looks for what lost workers held."""

    def iterate_unsettled(self) -> AsyncIterator[UnsettledMessage]:
        """Yield what is handed over and not settled, the oldest of each consumer first.

        Raises `MessagingUnavailable`.
        """


class Streams(Protocol):
    """Keeps streams and consumers as they are declared."""

    async def ensure_streams(self) -> list[str]:
        """Make what is missing, change what differs; return the names of both.

        Raises `MessagingUnavailable`, or `TopologyMismatch` for what cannot be changed in place.
        """

    async def list_mismatches(self) -> list[str]:
        """Return one sentence for each stream or consumer that differs from its declaration."""

    async def list_queues(self) -> list[QueueSnapshot]:
        """Return every consumer that is declared and exists."""


class Registers(Protocol):
    """Small values that many processes swap; any of them may be lost at any time."""

    async def find_value(self, name: str) -> tuple[int, bytes] | None:
        """Return a value with its revision, or None. Raises `MessagingUnavailable`."""

    async def swap_value(self, name: str, data: bytes, *, revision: int) -> int | None:
        """Replace a value of that revision, 0 for none; return the new one, None when it moved.

        Raises `MessagingUnavailable`: whether it took effect shows at the next swap.
        """


# Hints that wait for a busy listener.
OVERHEARD_MAX = 1024


class Hints(Protocol):
    """Plain wake-ups: losing one costs only time."""

    async def notify(self, subject: str) -> None:
        """Wake the listeners of a subject; never raises and never waits for them."""

    def watch_hints(
        self, subject: str, woken: asyncio.Event | None = None
    ) -> AbstractAsyncContextManager[asyncio.Event]:
        """Open an event that every wake-up sets, `woken` or a new one; the caller clears it.

        Raises `MessagingUnavailable` when the subscription fails.
        """

    def listen_for_hints(self, subject: str) -> AsyncIterator[None]:
        """Yield once per wake-up, folding those that came while the listener was busy."""

    def subscribe_tokens(self, prefix: str) -> AsyncIterator[str]:
        """Yield the last token of every hint one token below a prefix.

        Of many that came while the listener was busy the oldest are forgotten.
        """

    async def broadcast(self, subject: str, data: bytes) -> None:
        """Send data to the listeners of a subject; never raises and never waits for them."""

    def subscribe(self, subject: str) -> AsyncIterator[bytes]:
        """Yield the data of every hint of a subject.

        The oldest hints are dropped when too many arrive while the listener is busy.
        """

    def subscribe_below(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield subject and data of every hint below a prefix, dropping the oldest alike."""


class LineageRefused(Permanent):
    """The receiver will not take this event, however often it is sent."""


class LineageEndpoint(Protocol):
    """A receiver of OpenLineage's events."""

    async def deliver_event(self, body: str) -> None:
        """Hand over the JSON of one event, perhaps again.

        Raises `LineageRefused`, or `MessagingUnavailable` where sending it later may help.
        """
