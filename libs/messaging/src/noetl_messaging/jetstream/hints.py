"""Hints over core NATS: notifications that wake a listener, without storage or confirmation."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from noetl_messaging.jetstream.connection import Connection, translate_errors
from noetl_messaging.streams.ports import OVERHEARD_MAX

log = logging.getLogger("noetl.messaging")


class NatsHints:
    """Sends hints, which may be lost, and subscribes to them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def notify(self, subject: str) -> None:
        """Wake the listeners of a subject; never raises and never waits for them."""
        await self.broadcast(subject, b"")

    async def broadcast(self, subject: str, data: bytes) -> None:
        """Send data to the listeners of a subject; never raises and never waits for them."""
        if self._connection.check_connection() is not None:
            return
        try:
            await self._connection.client.publish(subject, data)
        except (NatsError, OSError) as failure:
            log.debug("hint %s was not sent: %s", subject, failure)

    @asynccontextmanager
    async def watch_hints(
        self, subject: str, woken: asyncio.Event | None = None
    ) -> AsyncIterator[asyncio.Event]:
        """Open an event that every wake-up sets; the waiting caller clears it."""
        hint_event = woken or asyncio.Event()

        async def set_event(_message: Msg) -> None:
            hint_event.set()

        with translate_errors(f"listening to {subject}"):
            subscription = await self._connection.client.subscribe(subject, cb=set_event)
        try:
            yield hint_event
        finally:
            if not self._connection.client.is_closed:
                await subscription.unsubscribe()

    async def subscribe_tokens(self, prefix: str) -> AsyncIterator[str]:
        """Yield the last token of every hint one token below a prefix."""
        async for message in self._iterate_messages(f"{prefix}.*"):
            yield message.subject.rpartition(".")[2]

    async def subscribe(self, subject: str) -> AsyncIterator[bytes]:
        """Yield the data of every hint of a subject."""
        async for message in self._iterate_messages(subject):
            yield message.data

    async def subscribe_below(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield subject and data of every hint below a prefix."""
        async for message in self._iterate_messages(f"{prefix}.>"):
            yield message.subject, message.data

    async def _iterate_messages(self, subject: str) -> AsyncIterator[Msg]:
        pending_messages: deque[Msg] = deque(maxlen=OVERHEARD_MAX)
        woken = asyncio.Event()

        async def keep_message(message: Msg) -> None:
            pending_messages.append(message)
            woken.set()

        with translate_errors(f"listening to {subject}"):
            subscription = await self._connection.client.subscribe(subject, cb=keep_message)
        try:
            while True:
                await woken.wait()
                woken.clear()
                while pending_messages:
                    yield pending_messages.popleft()
        finally:
            if not self._connection.client.is_closed:
                await subscription.unsubscribe()

    async def listen_for_hints(self, subject: str) -> AsyncIterator[None]:
        """Yield once per wake-up, folding those that came while the listener was busy."""
        async with self.watch_hints(subject) as woken:
            while True:
                await woken.wait()
                woken.clear()
                yield
