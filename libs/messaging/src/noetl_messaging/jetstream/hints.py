"""Plain wake-ups over core NATS."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from noetl_messaging.jetstream.connection import Connection, translated
from noetl_messaging.ports import OVERHEARD_MAX

log = logging.getLogger("noetl.messaging")


class NatsHints:
    """Hints that may be lost."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def poke(self, subject: str) -> None:
        """Wake whoever listens; never raises and never waits for anyone."""
        await self.say(subject, b"")

    async def say(self, subject: str, data: bytes) -> None:
        """Say something to whoever listens; never raises and never waits for anyone."""
        if self._connection.check() is not None:
            return
        try:
            await self._connection.client.publish(subject, data)
        except (NatsError, OSError) as failure:
            log.debug("hint %s was not sent: %s", subject, failure)

    @asynccontextmanager
    async def watch(
        self, subject: str, woken: asyncio.Event | None = None
    ) -> AsyncIterator[asyncio.Event]:
        """Hold an event that every wake-up sets; whoever waits for it clears it."""
        rung = woken or asyncio.Event()

        async def wake(_message: Msg) -> None:
            rung.set()

        with translated(f"listening to {subject}"):
            subscription = await self._connection.client.subscribe(subject, cb=wake)
        try:
            yield rung
        finally:
            if not self._connection.client.is_closed:
                await subscription.unsubscribe()

    async def overhear(self, prefix: str) -> AsyncIterator[str]:
        """Yield the last token of every hint one token below a prefix."""
        async for message in self._messages(f"{prefix}.*"):
            yield message.subject.rpartition(".")[2]

    async def hear(self, subject: str) -> AsyncIterator[bytes]:
        """Yield what is said under a subject."""
        async for message in self._messages(subject):
            yield message.data

    async def _messages(self, subject: str) -> AsyncIterator[Msg]:
        heard: deque[Msg] = deque(maxlen=OVERHEARD_MAX)
        woken = asyncio.Event()

        async def hear(message: Msg) -> None:
            heard.append(message)
            woken.set()

        with translated(f"listening to {subject}"):
            subscription = await self._connection.client.subscribe(subject, cb=hear)
        try:
            while True:
                await woken.wait()
                woken.clear()
                while heard:
                    yield heard.popleft()
        finally:
            if not self._connection.client.is_closed:
                await subscription.unsubscribe()

    async def listen(self, subject: str) -> AsyncIterator[None]:
        """Yield once per wake-up, folding those that came while the listener was busy."""
        async with self.watch(subject) as woken:
            while True:
                await woken.wait()
                woken.clear()
                yield
