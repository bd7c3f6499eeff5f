"""Messages of a decision: built for projectors, workers and other executions, and published."""

import asyncio
from collections.abc import Iterator, Sequence

import structlog

from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_contracts import codec, ids, subjects
from noetl_contracts.commands.command_work import COMMAND_BYTES_MAX, Command
from noetl_contracts.errors import Permanent
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.envelope import Envelope, EventBatch
from noetl_contracts.ledger.records import NewMessage
from noetl_contracts.requests.facts import FactBatch
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, Hints, Message, Publisher
from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.ports.ledger_ports import OutboxDrain

BATCH_EVENTS_MAX = 200
BATCH_BYTES_MAX = 256 * 1024
log = structlog.get_logger(__name__)
_ROUNDS_MAX = 256
# Settling costs a transaction: many publications share one.
SETTLED_AT_ONCE = 500
SETTLE_WITHIN_S = 0.1


class CommandTooLarge(Permanent):
    """A command does not fit a message although its parts went by reference."""

    def __init__(self, message: str, *, step: str) -> None:
        super().__init__(message)
        self.step = step


def build_messages(
    envelopes: Sequence[Envelope],
    commands: Sequence[Command],
    fact_batches: Sequence[FactBatch] = (),
    *,
    routes: IngestRoutes,
    traceparent: str | None = None,
) -> list[NewMessage]:
    """Return the messages of one execution in the order in which they go out.

    `traceparent` says which span decided on the events, where spans are exported.
    """
    sent = [_build_command_message(command, routes) for command in commands]
    sent += [build_fact_message(batch, routes=routes) for batch in fact_batches]
    if not envelopes:
        return sent
    first = envelopes[0]
    shard = ids.find_shard(first.execution_id, routes.shard_count)
    subject = subjects.build_events_subject(shard, first.tenant_id, first.organization_id)
    # Projectors read the events that no message carries from the ledger.
    batches = _build_event_messages(envelopes, subject, traceparent)
    return sent + [batch for batch in batches if len(batch.data) <= MESSAGE_BYTES_MAX]


def _build_event_messages(
    envelopes: Sequence[Envelope], subject: str, traceparent: str | None
) -> list[NewMessage]:
    """Write a decision's events as the message that is committed with them.

    As several, each event measured, where one would be too large.
    """
    if len(envelopes) <= BATCH_EVENTS_MAX:
        new_message = _build_event_message(envelopes, subject, traceparent)
        if len(new_message.data) <= BATCH_BYTES_MAX:
            return [new_message]
    return [_build_event_message(part, subject, traceparent) for part in _split_events(envelopes)]


def _split_events(envelopes: Sequence[Envelope]) -> Iterator[list[Envelope]]:
    part: list[Envelope] = []
    size = 0
    for envelope in envelopes:
        length = len(codec.encode_json(envelope))
        if part and (len(part) >= BATCH_EVENTS_MAX or size + length > BATCH_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(envelope)
        size += length
    if part:
        yield part


def _build_event_message(
    part: Sequence[Envelope], subject: str, traceparent: str | None
) -> NewMessage:
    first, last = part[0], part[-1]
    batch = EventBatch(
        execution_id=first.execution_id,
        tenant_id=first.tenant_id,
        organization_id=first.organization_id,
        first_version=first.stream_version,
        last_version=last.stream_version,
        events=list(part),
        traceparent=traceparent,
    )
    return NewMessage(
        execution_id=first.execution_id,
        subject=subject,
        message_id=f"events/{first.execution_id}/{first.stream_version}-{last.stream_version}",
        data=codec.encode_json(batch),
        traceparent=traceparent,
    )


def build_fact_message(batch: FactBatch, *, routes: IngestRoutes) -> NewMessage:
    """Address facts to the planner of the execution that they are about."""
    return NewMessage(
        execution_id=batch.execution_id,
        subject=routes.build_subject(batch.execution_id, batch.tenant_id, batch.organization_id),
        message_id=batch.key,
        data=codec.encode_json(batch),
        traceparent=batch.traceparent,
    )


def _build_command_message(command: Command, routes: IngestRoutes) -> NewMessage:
    data = codec.encode_json(command)
    if len(data) > COMMAND_BYTES_MAX:
        raise CommandTooLarge(
            f"the command of step {command.step!r} takes {len(data)} bytes, "
            f"{COMMAND_BYTES_MAX} is the limit: keep large values out of ctx, select fewer fields",
            step=command.step,
        )
    return NewMessage(
        execution_id=command.execution_id,
        subject=subjects.build_command_subject(
            command.pool,
            command.lane,
            command.tenant_id,
            command.organization_id,
            is_own=command.tenant_id in routes.tenants,
        ),
        message_id=f"command/{command.command_id}/{command.attempt}",
        data=data,
        traceparent=command.traceparent,
    )


class MessagePublisher:
    """A bounded queue of committed rows, published in order and settled in batches.

    A failure here costs only latency: unsettled rows go back when their lease ends.
    """

    def __init__(self, *, publisher: Publisher, outbox: OutboxDrain, hints: Hints) -> None:
        self._publisher = publisher
        self._outbox = outbox
        self._hints = hints
        self._published: list[int] = []
        self._queue: asyncio.Queue[tuple[list[int], Sequence[NewMessage]]] = asyncio.Queue(
            _ROUNDS_MAX
        )

    async def offer_messages(self, outbox_ids: list[int], messages: Sequence[NewMessage]) -> None:
        """Queue committed rows; a full queue holds the planner back."""
        if outbox_ids:
            await self._queue.put((outbox_ids, messages))

    async def publish_waiting(self) -> int:
        """Publish all that waits and settle what was stored; return how much there was."""
        rounds = await self._take_rounds()
        ids = [outbox_id for outbox_ids, _ in rounds for outbox_id in outbox_ids]
        new = [message for _, messages in rounds for message in messages]
        await pass_failpoint(Failpoint.PLANNER_PUBLISH_BEFORE)
        stored = await self._publish_messages(new)
        await pass_failpoint(Failpoint.PLANNER_PUBLISH_AFTER)
        stored_ids = [
            message_id for message_id, is_stored in zip(ids, stored, strict=True) if is_stored
        ]
        unstored_ids = [
            message_id for message_id, is_stored in zip(ids, stored, strict=True) if not is_stored
        ]
        self._published += stored_ids
        if unstored_ids:
            await self._release_rows(unstored_ids)
        if len(self._published) >= SETTLED_AT_ONCE or (self._published and not rounds):
            await self._settle_published()
        return len(new)

    async def _take_rounds(self) -> list[tuple[list[int], Sequence[NewMessage]]]:
        """Wait for the next round; while rows wait to be settled, not for long."""
        try:
            async with asyncio.timeout(SETTLE_WITHIN_S if self._published else None):
                rounds = [await self._queue.get()]
        except TimeoutError:
            return []
        while not self._queue.empty():
            rounds.append(self._queue.get_nowait())
        return rounds

    async def _publish_messages(self, new: Sequence[NewMessage]) -> list[bool]:
        try:
            return await self._publisher.publish_batch(
                [
                    Message(
                        subject=new_message.subject,
                        message_id=new_message.message_id,
                        data=new_message.data,
                        traceparent=new_message.traceparent,
                    )
                    for new_message in new
                ]
            )
        except MessagingUnavailable:
            return [False] * len(new)

    async def _settle_published(self) -> None:
        published, self._published = self._published, []
        try:
            await self._outbox.settle_rows(published)
        except StorageUnavailable:
            # Their lease ends by itself, and a second publication is deduplicated.
            log.info("rows not settled", rows=len(published))

    async def _release_rows(self, outbox_ids: list[int]) -> None:
        try:
            await self._outbox.release_rows(outbox_ids)
        except StorageUnavailable:
            log.info("rows not released", rows=len(outbox_ids))
        await self._hints.notify(subjects.build_hint_subject("outbox"))
