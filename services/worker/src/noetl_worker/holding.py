"""A worker's right to a command: kept by beats that the server confirms, else given up."""

import asyncio
from collections.abc import Callable

from noetl_chassis.clock import Clock
from noetl_contracts.errors import Retryable
from noetl_messaging.ports import Delivery
from noetl_worker.domain import heartbeat
from noetl_worker.domain.heartbeat import Lease

_RETRY_S = 0.5


class LeaseLost(Exception):  # noqa: N818 - it tells the work to stop, nothing is reported
    """No beat was confirmed for as long as the lease lasts."""


class Hold:
    """Extends the latest delivery of a command until the lease is lost."""

    def __init__(self, delivery: Delivery, *, lease: Lease, clock: Clock) -> None:
        self._delivery = delivery
        self._lease = lease
        self._clock = clock
        self._confirmed_at = clock.monotonic()

    def adopt(self, delivery: Delivery) -> None:
        """Go on under a newer delivery of the same command."""
        self._delivery = delivery
        self._confirmed_at = self._clock.monotonic()

    async def keep(self, on_beat: Callable[[], None]) -> None:
        """Beat for ever; raises `LeaseLost`."""
        pause_s = self._lease.heartbeat_s
        while True:
            await asyncio.sleep(max(0.0, min(pause_s, self._remaining_s())))
            if self._remaining_s() <= 0:
                raise LeaseLost
            on_beat()
            is_confirmed = await self._beat()
            pause_s = self._lease.heartbeat_s if is_confirmed else _RETRY_S

    async def _beat(self) -> bool:
        asked_at = self._clock.monotonic()
        delivery = self._delivery
        try:
            async with asyncio.timeout(min(self._lease.heartbeat_s, self._remaining_s())):
                is_confirmed = await delivery.extend()
        except (TimeoutError, Retryable):
            return False
        if is_confirmed and delivery is self._delivery:
            self._confirmed_at = asked_at
        return is_confirmed

    def _remaining_s(self) -> float:
        return heartbeat.remaining_s(
            self._lease, confirmed_at=self._confirmed_at, now=self._clock.monotonic()
        )

    async def ack(self) -> None:
        """Settle the latest delivery: done."""
        await self._delivery.ack()
