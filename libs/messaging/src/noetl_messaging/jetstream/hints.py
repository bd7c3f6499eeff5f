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
        if self._connection.check() is not None:
            return
        try:
            await self._connection.client.publish(subject)
        except (NatsError, OSError) as failure:
            log.debug("hint %s was not sent: %s", subject, failure)

    @asynccontextmanager
    async def watch(self, subject: str) -> AsyncIterator[asyncio.Event]:
        """Hold an event that every wake-up sets; whoever waits for it clears it."""
        woken = asyncio.Event()

        async def wake(_message: Msg) -> None:
            woken.set()

        with translated(f"listening to {subject}"):
            subscription = await self._connection.client.subscribe(subject, cb=wake)
        try:
            yield woken
        finally:
            if not self._connection.client.is_closed:
                await subscription.unsubscribe()

    async def overhear(self, prefix: str) -> AsyncIterator[str]:
        """Yield the last token of every hint one token below a prefix."""
        heard: deque[str] = deque(maxlen=OVERHEARD_MAX)
        woken = asyncio.Event()

        async def hear(message: Msg) -> None:
            heard.append(message.subject.rpartition(".")[2])
            woken.set()

        with translated(f"listening below {prefix}"):
            subscription = await self._connection.client.subscribe(f"{prefix}.*", cb=hear)
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
