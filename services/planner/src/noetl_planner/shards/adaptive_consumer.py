"""Limits how many facts a turn fetches, so that it ends well before leases and deliveries expire.

A turn decides all that it took and commits it at once. Shards share one processor, so that the
same number of facts takes a turn of a busy planner many times as long. One that outlasts the lease
of its shard, or the time after which deliveries come again, is in vain, and the next is as long.
"""

from collections.abc import Callable
from typing import Any

from noetl_chassis.clock import Clock
from noetl_messaging.streams.ports import Consumer, Delivery

# A turn that lasts so long takes less next time; a lease is several times that.
TURN_S = 1.0
# What the first turn takes, whose pace is not known.
FIRST = 32
# How many messages may come singly while a turn decides, without being asked for one by one.
STANDING = 16


class AdaptiveConsumer:
    """Fetches no more than a turn settles in time; a turn is what lies between two fetches."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._most = FIRST
        self._fetched_count = 0
        self._fetched_at = 0.0

    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        """Return what is there, as the consumer does, bounded by the pace."""
        self._adjust_pace(messages_max)
        deliveries = await self._consumer.fetch_batch(
            messages_max=min(self._most, messages_max), wait_s=wait_s
        )
        self._fetched_count, self._fetched_at = len(deliveries), self._clock.monotonic_s()
        return deliveries

    def wake_fetch(self) -> None:
        """Have the fetch that waits, else the next one, return with what there is."""
        self._consumer.wake_fetch()

    async def count_pending(self) -> tuple[int, int]:
        """Return how many messages are undelivered and how many are delivered and unsettled."""
        return await self._consumer.count_pending()

    async def close(self) -> None:
        """Stop listening for messages, and give back what came and was not fetched."""
        await self._consumer.close()

    def _adjust_pace(self, messages_max: int) -> None:
        """Take less after a turn that was long, more after one that was full and short."""
        took_s = self._clock.monotonic_s() - self._fetched_at
        if self._fetched_count and took_s > TURN_S:
            self._most = max(1, int(self._fetched_count * TURN_S / took_s))
        elif self._fetched_count >= self._most and took_s < TURN_S / 2:
            self._most = min(2 * self._most, max(1, messages_max))


def make_adaptive(consumer: Callable[..., Consumer], clock: Clock) -> Callable[..., Consumer]:
    """Open consumers that fetch by their pace."""

    def open_consumer(**named: Any) -> Consumer:
        return AdaptiveConsumer(consumer(standing=STANDING, **named), clock)

    return open_consumer
