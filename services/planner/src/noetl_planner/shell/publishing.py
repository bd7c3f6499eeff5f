"""Publishes at once what this process has committed; the outbox service stays the guarantee."""

import asyncio
from collections.abc import Sequence

from noetl_contracts import subjects
from noetl_contracts.ledger import NewMessage
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.ports import Hints, Message, Publisher
from noetl_storage.errors import StorageUnavailable
from noetl_storage.ports import OutboxDrain

_ROUNDS_MAX = 256


class Publishing:
    """A bounded queue of committed rows, published in order and settled in batches.

    Whatever goes wrong here is only latency: unsettled rows go back when their lease ends.
    """

    def __init__(self, *, publisher: Publisher, outbox: OutboxDrain, hints: Hints) -> None:
        self._publisher = publisher
        self._outbox = outbox
        self._hints = hints
        self._queue: asyncio.Queue[tuple[list[int], Sequence[NewMessage]]] = asyncio.Queue(
            _ROUNDS_MAX
        )

    async def offer(self, outbox_ids: list[int], messages: Sequence[NewMessage]) -> None:
        """Queue committed rows; a full queue holds the planner back."""
        if outbox_ids:
            await self._queue.put((outbox_ids, messages))

    async def turn(self) -> int:
        """Publish all that waits, then settle what was stored; return how much there was."""
        rounds = [await self._queue.get()]
        while not self._queue.empty():
            rounds.append(self._queue.get_nowait())
        ids = [outbox_id for outbox_ids, _ in rounds for outbox_id in outbox_ids]
        new = [message for _, messages in rounds for message in messages]
        try:
            stored = await self._publisher.publish_all(
                [
                    Message(subject=one.subject, message_id=one.message_id, data=one.data)
                    for one in new
                ]
            )
        except MessagingUnavailable:
            stored = [False] * len(new)
        await self._settle(ids, stored)
        return len(new)

    async def _settle(self, ids: list[int], stored: list[bool]) -> None:
        done = [one for one, is_stored in zip(ids, stored, strict=True) if is_stored]
        rest = [one for one, is_stored in zip(ids, stored, strict=True) if not is_stored]
        try:
            if done:
                await self._outbox.settle(done)
            if rest:
                await self._outbox.release(rest)
        except StorageUnavailable:
            # Their lease ends by itself, and a second publication is deduplicated.
            return
        if rest:
            await self._hints.poke(subjects.poke("outbox"))
