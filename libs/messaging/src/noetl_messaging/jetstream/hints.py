"""Plain wake-ups over core NATS."""

import asyncio
import logging
from collections.abc import AsyncIterator

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from noetl_messaging.jetstream.connection import Connection, translated

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

    async def listen(self, subject: str) -> AsyncIterator[None]:
        """Yield once per wake-up, folding those that came while the listener was busy."""
        woken = asyncio.Event()

        async def wake(_message: Msg) -> None:
            woken.set()

        with translated(f"listening to {subject}"):
            subscription = await self._connection.client.subscribe(subject, cb=wake)
        try:
            while True:
                await woken.wait()
                woken.clear()
                yield
        finally:
            if not self._connection.client.is_closed:
                await subscription.unsubscribe()
