"""Publishes at once what this process has committed; the outbox service stays the guarantee."""

import asyncio
from collections.abc import Sequence

import structlog

from noetl_chassis.failpoints import Point, reach
from noetl_contracts import subjects
from noetl_contracts.ledger import NewMessage
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.ports import Hints, Message, Publisher
from noetl_storage.errors import StorageUnavailable
from noetl_storage.ports import OutboxDrain

log = structlog.get_logger(__name__)

_ROUNDS_MAX = 256
# Settling costs a transaction: many publications share one.
SETTLED_AT_ONCE = 500
SETTLE_WITHIN_S = 0.1


class Publishing:
    """A bounded queue of committed rows, published in order and settled in batches.

    Whatever goes wrong here is only latency: unsettled rows go back when their lease ends.
    """

    def __init__(self, *, publisher: Publisher, outbox: OutboxDrain, hints: Hints) -> None:
        self._publisher = publisher
        self._outbox = outbox
        self._hints = hints
        self._published: list[int] = []
        self._queue: asyncio.Queue[tuple[list[int], Sequence[NewMessage]]] = asyncio.Queue(
            _ROUNDS_MAX
        )

    async def offer(self, outbox_ids: list[int], messages: Sequence[NewMessage]) -> None:
        """Queue committed rows; a full queue holds the planner back."""
        if outbox_ids:
            await self._queue.put((outbox_ids, messages))

    async def turn(self) -> int:
        """Publish all that waits and settle what was stored; return how much there was."""
        rounds = await self._take()
        ids = [outbox_id for outbox_ids, _ in rounds for outbox_id in outbox_ids]
        new = [message for _, messages in rounds for message in messages]
        await reach(Point.PLANNER_PUBLISH_BEFORE)
        stored = await self._publish(new)
        await reach(Point.PLANNER_PUBLISH_AFTER)
        done = [one for one, is_stored in zip(ids, stored, strict=True) if is_stored]
        rest = [one for one, is_stored in zip(ids, stored, strict=True) if not is_stored]
        self._published += done
        if rest:
            await self._release(rest)
        if len(self._published) >= SETTLED_AT_ONCE or (self._published and not rounds):
            await self._settle()
        return len(new)

    async def _take(self) -> list[tuple[list[int], Sequence[NewMessage]]]:
        """Wait for the next round; while rows wait to be settled, not for long."""
        try:
            async with asyncio.timeout(SETTLE_WITHIN_S if self._published else None):
                rounds = [await self._queue.get()]
        except TimeoutError:
            return []
        while not self._queue.empty():
            rounds.append(self._queue.get_nowait())
        return rounds

    async def _publish(self, new: Sequence[NewMessage]) -> list[bool]:
        try:
            return await self._publisher.publish_all(
                [
                    Message(
                        subject=one.subject,
                        message_id=one.message_id,
                        data=one.data,
                        traceparent=one.traceparent,
                    )
                    for one in new
                ]
            )
        except MessagingUnavailable:
            return [False] * len(new)

    async def _settle(self) -> None:
        published, self._published = self._published, []
        try:
            await self._outbox.settle(published)
        except StorageUnavailable:
            # Their lease ends by itself, and a second publication is deduplicated.
            log.info("rows not settled", rows=len(published))

    async def _release(self, rest: list[int]) -> None:
        try:
            await self._outbox.release(rest)
        except StorageUnavailable:
            log.info("rows not released", rows=len(rest))
        await self._hints.poke(subjects.poke("outbox"))
