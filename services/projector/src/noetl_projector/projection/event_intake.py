"""Fetches deliveries of events and decodes them; unreadable ones become dead letters."""

from contextlib import suppress
from typing import NamedTuple

import structlog

from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.envelope import EventBatch
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Delivery
from noetl_projector.domain import version_order
from noetl_projector.domain.policy import ProjectorPolicy
from noetl_projector.projection.metrics import ProjectionMetrics
from noetl_projector.projection.stores import ProjectorStores

log = structlog.get_logger(__name__)


class Arrival(NamedTuple):
    """A delivery and the batch that was read from it."""

    delivery: Delivery
    batch: EventBatch


class FetchedBatch:
    """The result of one fetch.

    `inbox` has the decoded batches by execution, `open` the deliveries that are not settled yet.
    """

    def __init__(self, deliveries: list[Delivery]) -> None:
        self.messages = len(deliveries)
        self.inbox: dict[ExecutionId, list[Arrival]] = {}
        self.open = dict.fromkeys(deliveries)

    async def ack_delivery(self, delivery: Delivery) -> None:
        """Ack a delivery whose events are projected."""
        await pass_failpoint(Failpoint.PROJECTOR_ACK_BEFORE)
        await delivery.ack()
        del self.open[delivery]
        await pass_failpoint(Failpoint.PROJECTOR_ACK_AFTER)


class EventIntake:
    """Takes deliveries from the consumer, and acks, naks or dead-letters each of them."""

    def __init__(
        self, stores: ProjectorStores, policy: ProjectorPolicy, counting: ProjectionMetrics
    ) -> None:
        self._stores = stores
        self._policy = policy
        self._counting = counting

    async def take_batch(self, *, wait_s: float) -> FetchedBatch:
        """Fetch and decode deliveries, waiting up to `wait_s`; raises `MessagingUnavailable`."""
        arrived = FetchedBatch(
            await self._stores.consumer.fetch_batch(
                messages_max=self._policy.batch_messages_max, wait_s=wait_s
            )
        )
        try:
            await pass_failpoint(Failpoint.PROJECTOR_FETCHED)
            for delivery in list(arrived.open):
                await self._read_delivery(delivery, arrived)
        except BaseException:
            await self.return_unsettled(arrived)
            raise
        return arrived

    async def take_next_batch(self, arrived: FetchedBatch, *, is_wanted: bool) -> FetchedBatch:
        """Fetch again without a wait after a full fetch; an unavailable bus gives no deliveries."""
        if is_wanted and arrived.messages == self._policy.batch_messages_max:
            with suppress(MessagingUnavailable):
                return await self.take_batch(wait_s=0.0)
        return FetchedBatch([])

    async def return_unsettled(self, arrived: FetchedBatch) -> None:
        """Nak deliveries that are not settled; without a server they return by themselves."""
        with suppress(MessagingUnavailable):
            for delivery in arrived.open:
                await delivery.nak(self._policy.retry_delay_s)
                self._counting.count_messages(1, "returned")

    async def bury_delivery(
        self, delivery: Delivery, arrived: FetchedBatch, reason: str, outcome: str
    ) -> None:
        """Store a message as a dead letter with the reason, and settle its delivery."""
        await self._stores.letters.bury_delivery(
            delivery,
            stream=topology.EVENTS,
            consumer=topology.build_projector_consumer(
                index=self._policy.index, count=self._policy.count
            ),
            reason=reason,
        )
        self._counting.count_messages(1, outcome)
        log.error("message moved to the dead letters", subject=delivery.subject, reason=reason)
        del arrived.open[delivery]

    async def _read_delivery(self, delivery: Delivery, arrived: FetchedBatch) -> None:
        try:
            batch = _decode_delivery(delivery)
        except (MalformedMessage, UnknownEventType) as failure:
            self._counting.tally.undecodable += 1
            await self.bury_delivery(delivery, arrived, str(failure), "undecodable")
            return
        self._counting.count_misplaced(delivery, batch)
        arrived.inbox.setdefault(batch.execution_id, []).append(Arrival(delivery, batch))


def _decode_delivery(delivery: Delivery) -> EventBatch:
    batch = stored_event.decode_event_batch(delivery.data)
    reason = version_order.find_disorder(batch)
    if reason is not None:
        raise MalformedMessage(reason)
    return batch
