"""Streams, durable consumers and hints, as a server keeps them."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol, TypeVar

from msgspec import Struct

from noetl_messaging.streams.errors import MessageTooLarge, MessagingUnavailable
from noetl_messaging.streams.ports import (
    MESSAGE_BYTES_MAX,
    OVERHEARD_MAX,
    TRACE_HEADER,
    Message,
    QueueSnapshot,
)
from noetl_messaging.streams.topology import ConsumerSpec, Retention, StreamSpec, Topology

_SEQUENCES_PER_LIFE = 1_000_000_000

Received = TypeVar("Received")
# Of one listener: what wakes it, and what it has not taken yet.
_Listener = tuple[asyncio.Event, deque[Received]]


class Clock(Protocol):
    """The two readings of time that a server needs."""

    def now(self) -> datetime:
        """Return the time of day."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""


class StoredMessage(Struct, frozen=True, kw_only=True):
    """A message in a stream."""

    sequence: int
    subject: str
    message_id: str
    data: bytes
    headers: dict[str, str]


class _MemoryStream:
    def __init__(self, spec: StreamSpec, *, first: int, created_at: datetime) -> None:
        self.spec = spec
        self.created_at = created_at
        self.first = first
        self.next_sequence = first
        self.messages: OrderedDict[int, StoredMessage] = OrderedDict()
        self.seen_at: OrderedDict[str, float] = OrderedDict()

    def store_message(
        self, subject: str, message_id: str, data: bytes, headers: dict[str, str], now_s: float
    ) -> None:
        while self.seen_at:
            oldest, seen_s = next(iter(self.seen_at.items()))
            if now_s - seen_s <= self.spec.duplicate_window_s:
                break
            del self.seen_at[oldest]
        if message_id in self.seen_at:
            return
        self.seen_at[message_id] = now_s
        self.messages[self.next_sequence] = StoredMessage(
            sequence=self.next_sequence,
            subject=subject,
            message_id=message_id,
            data=data,
            headers=headers,
        )
        self.next_sequence += 1


class _MemoryDurable:
    def __init__(self, spec: ConsumerSpec, *, first: int) -> None:
        self.spec = spec
        self.cursor = first
        self.delivered: dict[int, int] = {}
        self.due_at: dict[int, float] = {}
        self.given_up: set[int] = set()
        self.last_delivered_at: datetime | None = None

    def iterate_undelivered(self, source: _MemoryStream) -> Iterator[int]:
        """Yield what was never handed over; what the filter refuses is looked at once."""
        is_skipping = True
        for sequence in range(max(self.cursor + 1, source.first), source.next_sequence):
            message = source.messages.get(sequence)
            if message is not None and self._accepts_subject(message.subject):
                is_skipping = False
                yield sequence
            elif is_skipping:
                self.cursor = sequence

    def _accepts_subject(self, subject: str) -> bool:
        return not self.spec.filters or any(
            matches_pattern(pattern, subject) for pattern in self.spec.filters
        )


class MemoryBroker:
    """Streams, consumers and hints of one process; `wipe_all` forgets all but the declarations."""

    def __init__(self, declared: Topology, clock: Clock) -> None:
        self._declared = declared
        self._clock = clock
        # Fetches under way, by stream and consumer.
        self.asking: Counter[tuple[str, str]] = Counter()
        self._lives = 0
        self._streams: dict[str, _MemoryStream] = {}
        self._durables: dict[tuple[str, str], _MemoryDurable] = {}
        self._changed = asyncio.Event()
        self._listeners: dict[str, list[asyncio.Event]] = {}
        self._hint_listeners: dict[str, list[_Listener[str]]] = {}
        self._listeners_by_subject: dict[str, list[_Listener[bytes]]] = {}
        self._listeners_by_prefix: dict[str, list[_Listener[tuple[str, bytes]]]] = {}

    def wipe_all(self) -> None:
        """Lose everything, as a server does whose store was deleted."""
        self._streams.clear()
        self._durables.clear()
        self.signal_change()

    async def ensure_streams(self) -> list[str]:
        """Make what is missing; return its names."""
        made_names = []
        for spec in self._declared.streams:
            if spec.name in self._streams:
                continue
            self._lives += 1
            first = self._lives * _SEQUENCES_PER_LIFE
            self._streams[spec.name] = _MemoryStream(
                spec, first=first, created_at=self._clock.now()
            )
            made_names.append(spec.name)
        for consumer in self._declared.consumers:
            key = (consumer.stream, consumer.name)
            if key not in self._durables:
                self._durables[key] = _MemoryDurable(consumer, first=0)
                made_names.append(f"{consumer.stream}/{consumer.name}")
        self.signal_change()
        return made_names

    async def list_mismatches(self) -> list[str]:
        """Return one sentence for everything that is missing."""
        streams = [spec.name for spec in self._declared.streams if spec.name not in self._streams]
        consumers = [
            f"{spec.stream}/{spec.name}"
            for spec in self._declared.consumers
            if (spec.stream, spec.name) not in self._durables
        ]
        return [f"{name} does not exist" for name in streams + consumers]

    async def list_queues(self) -> list[QueueSnapshot]:
        """Return every consumer that is declared and exists."""
        return [
            QueueSnapshot(
                stream=stream,
                consumer=name,
                pending=self._count_pending(durable),
                unsettled=len(durable.due_at),
                stream_created_at=self._streams[stream].created_at,
                last_sequence=self._streams[stream].next_sequence - 1,
                settled_sequence=min(durable.due_at, default=durable.cursor + 1) - 1,
                last_delivered_at=durable.last_delivered_at,
            )
            for (stream, name), durable in self._durables.items()
        ]

    async def publish_message(self, message: Message) -> None:
        """Return once the stream has stored the message."""
        if len(message.data) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"a message for {message.subject} has {len(message.data)} bytes, the limit is "
                f"{MESSAGE_BYTES_MAX}"
            )
        self.store_message(message)

    async def publish_batch(self, messages: Sequence[Message]) -> list[bool]:
        """Publish each; tell for each whether it was stored."""
        return [self._try_store(message) for message in messages]

    def store_message(self, message: Message, headers: dict[str, str] | None = None) -> None:
        """Store a message with headers; raises `MessagingUnavailable` without a stream for it."""
        if message.traceparent is not None:
            headers = {**(headers or {}), TRACE_HEADER: message.traceparent}
        for stream in self._streams.values():
            if any(matches_pattern(pattern, message.subject) for pattern in stream.spec.subjects):
                stream.store_message(
                    message.subject,
                    message.message_id,
                    message.data,
                    headers or {},
                    self._clock.monotonic_s(),
                )
                self.signal_change()
                return
        raise MessagingUnavailable(f"no stream takes {message.subject}")

    def now(self) -> datetime:
        """Return the time of day."""
        return self._clock.now()

    @property
    def watched_subjects(self) -> frozenset[str]:
        """Return the subjects of hints that somebody listens to."""
        both = (
            *self._hint_listeners.items(),
            *self._listeners_by_subject.items(),
            *self._listeners_by_prefix.items(),
        )
        return frozenset([*self._listeners, *(prefix for prefix, listeners in both if listeners)])

    async def notify(self, subject: str) -> None:
        """Wake the listeners of a subject."""
        prefix, _, token = subject.rpartition(".")
        for woken, tokens in self._hint_listeners.get(prefix, []):
            tokens.append(token)
            woken.set()
        for woken in self._listeners.get(subject, []):
            woken.set()

    @asynccontextmanager
    async def watch_hints(
        self, subject: str, woken: asyncio.Event | None = None
    ) -> AsyncIterator[asyncio.Event]:
        """Hold an event that every wake-up sets."""
        woken = woken or asyncio.Event()
        listeners = self._listeners.setdefault(subject, [])
        listeners.append(woken)
        try:
            yield woken
        finally:
            listeners.remove(woken)
            if not listeners:
                self._listeners.pop(subject, None)

    def subscribe_tokens(self, prefix: str) -> AsyncIterator[str]:
        """Yield the last token of every hint one token below a prefix."""
        return _iterate_received(self._hint_listeners.setdefault(prefix, []))

    async def broadcast(self, subject: str, data: bytes) -> None:
        """Send data to the listeners of a subject."""
        for woken, messages in self._listeners_by_subject.get(subject, []):
            messages.append(data)
            woken.set()
        for prefix, listeners in self._listeners_by_prefix.items():
            if subject.startswith(f"{prefix}."):
                for woken, pairs in listeners:
                    pairs.append((subject, data))
                    woken.set()

    def subscribe_below(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield subject and data of every hint below a prefix."""
        return _iterate_received(self._listeners_by_prefix.setdefault(prefix, []))

    def subscribe(self, subject: str) -> AsyncIterator[bytes]:
        """Yield the data of every hint of a subject."""
        return _iterate_received(self._listeners_by_subject.setdefault(subject, []))

    async def listen_for_hints(self, subject: str) -> AsyncIterator[None]:
        """Yield once per wake-up."""
        async with self.watch_hints(subject) as woken:
            while True:
                await woken.wait()
                woken.clear()
                yield

    def get_stream(self, name: str) -> _MemoryStream:
        """Return a stream; raises `MessagingUnavailable`."""
        if name not in self._streams:
            raise MessagingUnavailable(f"{name} does not exist")
        return self._streams[name]

    def get_durable(self, stream: str, name: str) -> _MemoryDurable:
        """Return a consumer; raises `MessagingUnavailable`."""
        self.get_stream(stream)
        if (stream, name) not in self._durables:
            raise MessagingUnavailable(f"{stream}/{name} does not exist")
        return self._durables[stream, name]

    def take_due(
        self, stream: str, name: str, messages_max: int
    ) -> list[tuple[StoredMessage, int]]:
        """Hand over messages that are due, redeliveries first, with their delivery counts."""
        durable, source = self.get_durable(stream, name), self.get_stream(stream)
        now_s = self._clock.monotonic_s()
        due_messages: list[tuple[StoredMessage, int]] = []
        for sequence in self._iterate_due(durable, source, now_s):
            is_fresh = sequence not in durable.delivered
            if is_fresh and len(durable.due_at) >= durable.spec.ack_pending_max:
                break
            durable.delivered[sequence] = durable.delivered.get(sequence, 0) + 1
            durable.due_at[sequence] = now_s + durable.spec.ack_wait_s
            durable.cursor = max(durable.cursor, sequence)
            durable.last_delivered_at = self._clock.now()
            due_messages.append((source.messages[sequence], durable.delivered[sequence]))
            if len(due_messages) == messages_max:
                break
        return due_messages

    def settle_delivery(self, stream: str, name: str, sequence: int) -> None:
        """Forget a delivery; a work queue lets go of the message."""
        durable = self._durables.get((stream, name))
        if durable is None or sequence not in durable.delivered:
            return
        durable.due_at.pop(sequence, None)
        durable.given_up.discard(sequence)
        source = self._streams.get(stream)
        if source is not None and source.spec.retention is Retention.WORK_QUEUE:
            source.messages.pop(sequence, None)
        self.signal_change()

    def postpone_delivery(
        self, stream: str, name: str, sequence: int, wait_s: float | None
    ) -> bool:
        """Move the moment at which an unsettled delivery comes again; None: a full ack wait."""
        durable = self._durables.get((stream, name))
        if durable is None or sequence not in durable.due_at:
            return False
        delay_s = durable.spec.ack_wait_s if wait_s is None else wait_s
        durable.due_at[sequence] = self._clock.monotonic_s() + delay_s
        self.signal_change()
        return True

    def iterate_given_up(self) -> Iterator[tuple[_MemoryDurable, StoredMessage]]:
        """Yield messages that ran out of deliveries."""
        now_s = self._clock.monotonic_s()
        for (stream, _), durable in self._durables.items():
            source = self._streams[stream]
            list(self._iterate_due(durable, source, now_s))
            for sequence in sorted(durable.given_up):
                if sequence in source.messages:
                    yield durable, source.messages[sequence]

    async def wait_for_change(self, wait_s: float) -> None:
        """Wait for any change, but not longer than `wait_s`."""
        changed = self._changed
        try:
            async with asyncio.timeout(wait_s):
                await changed.wait()
        except TimeoutError:
            return

    def monotonic_s(self) -> float:
        """Return the server's seconds."""
        return self._clock.monotonic_s()

    def _iterate_due(
        self, durable: _MemoryDurable, source: _MemoryStream, now_s: float
    ) -> Iterator[int]:
        """Yield what may be handed over: redeliveries that are due, then what is new."""
        for sequence, due_s in sorted(durable.due_at.items()):
            if due_s > now_s:
                continue
            if durable.delivered[sequence] >= durable.spec.deliveries_max:
                del durable.due_at[sequence]
                durable.given_up.add(sequence)
            elif sequence in source.messages:
                yield sequence
        yield from durable.iterate_undelivered(source)

    def _count_pending(self, durable: _MemoryDurable) -> int:
        return sum(1 for _ in durable.iterate_undelivered(self._streams[durable.spec.stream]))

    def _try_store(self, message: Message) -> bool:
        if len(message.data) > MESSAGE_BYTES_MAX:
            return False
        try:
            self.store_message(message)
        except MessagingUnavailable:
            return False
        return True

    def signal_change(self) -> None:
        """Have everybody who waits for a change look again."""
        self._changed.set()
        self._changed = asyncio.Event()


async def _iterate_received(listeners: list[_Listener[Received]]) -> AsyncIterator[Received]:
    """Yield what one more listener receives; of too much that waits the oldest is dropped."""
    woken, queue = listener = asyncio.Event(), deque[Received](maxlen=OVERHEARD_MAX)
    listeners.append(listener)
    try:
        while True:
            await woken.wait()
            woken.clear()
            while queue:
                yield queue.popleft()
    finally:
        listeners.remove(listener)


def matches_pattern(pattern: str, subject: str) -> bool:
    """Tell whether a subject fits a pattern with NATS's `*` and `>`."""
    pattern_tokens, subject_tokens = pattern.split("."), subject.split(".")
    if pattern_tokens[-1] == ">":
        pattern_tokens, subject_tokens = (
            pattern_tokens[:-1],
            subject_tokens[: len(pattern_tokens) - 1]
            if len(subject_tokens) >= len(pattern_tokens)
            else [],
        )
        if not subject_tokens and pattern_tokens:
            return False
    return len(pattern_tokens) == len(subject_tokens) and all(
        map(_matches_token, pattern_tokens, subject_tokens)
    )


def _matches_token(pattern: str, token: str) -> bool:
    return pattern in {"*", token}
