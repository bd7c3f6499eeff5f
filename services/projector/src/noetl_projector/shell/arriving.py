"""What comes over the bus: fetched and read, buried where it cannot be read, else given back."""

from contextlib import suppress
from typing import NamedTuple

import structlog

from noetl_chassis.failpoints import Point, reach
from noetl_contracts import stored
from noetl_contracts.envelope import EventBatch
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.ids import ExecutionId
from noetl_messaging import topology
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.ports import Delivery
from noetl_projector.domain import ordering
from noetl_projector.domain.policy import Policy
from noetl_projector.shell.counting import Counting
from noetl_projector.shell.stores import Stores

log = structlog.get_logger(__name__)


class Arrival(NamedTuple):
    """A delivery and the batch that was read from it."""

    delivery: Delivery
    batch: EventBatch


class Arrived:
    """What one fetch brought: what could be read, and what is not settled."""

    def __init__(self, deliveries: list[Delivery]) -> None:
        self.messages = len(deliveries)
        self.inbox: dict[ExecutionId, list[Arrival]] = {}
        self.open = dict.fromkeys(deliveries)

    async def ack(self, delivery: Delivery) -> None:
        """Settle one: it is projected."""
        await reach(Point.PROJECTOR_ACK_BEFORE)
        await delivery.ack()
        del self.open[delivery]
        await reach(Point.PROJECTOR_ACK_AFTER)


class Arriving:
    """Owns the way from the bus to batches of events, and back."""

    def __init__(self, stores: Stores, policy: Policy, counting: Counting) -> None:
        self._stores = stores
        self._policy = policy
        self._counting = counting

    async def take(self, *, wait_s: float) -> Arrived:
        """Return what is there, waiting for the first; raises `MessagingUnavailable`."""
        arrived = Arrived(
            await self._stores.consumer.fetch(
                messages_max=self._policy.batch_messages_max, wait_s=wait_s
            )
        )
        try:
            await reach(Point.PROJECTOR_FETCHED)
            for delivery in list(arrived.open):
                await self._read(delivery, arrived)
        except BaseException:
            await self.give_back(arrived)
            raise
        return arrived

    async def take_next(self, arrived: Arrived, *, is_wanted: bool) -> Arrived:
        """Return what lies behind a full fetch; a bus that does not answer is met again later."""
        if is_wanted and arrived.messages == self._policy.batch_messages_max:
            with suppress(MessagingUnavailable):
                return await self.take(wait_s=0.0)
        return Arrived([])

    async def give_back(self, arrived: Arrived) -> None:
        """Let what is not settled come again; without a server it comes again by itself."""
        with suppress(MessagingUnavailable):
            for delivery in arrived.open:
                await delivery.nak(self._policy.retry_delay_s)
                self._counting.messages(1, "returned")

    async def bury(self, delivery: Delivery, arrived: Arrived, reason: str, outcome: str) -> None:
        """Put a message aside, with the reason, and settle it."""
        await self._stores.letters.bury(
            delivery,
            stream=topology.EVENTS,
            consumer=topology.projector_consumer(
                index=self._policy.index, count=self._policy.count
            ),
            reason=reason,
        )
        self._counting.messages(1, outcome)
        log.error("message buried", subject=delivery.subject, reason=reason)
        del arrived.open[delivery]

    async def _read(self, delivery: Delivery, arrived: Arrived) -> None:
        try:
            batch = _decode(delivery)
        except (MalformedMessage, UnknownEventType) as failure:
            self._counting.tally.undecodable += 1
            await self.bury(delivery, arrived, str(failure), "undecodable")
            return
        self._counting.place(delivery, batch)
        arrived.inbox.setdefault(batch.execution_id, []).append(Arrival(delivery, batch))


def _decode(delivery: Delivery) -> EventBatch:
    batch = stored.decode_batch(delivery.data)
    reason = ordering.disorder(batch)
    if reason is not None:
        raise MalformedMessage(reason)
    return batch
