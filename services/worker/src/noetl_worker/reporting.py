"""Facts about one attempt of a command, published in order and each confirmed."""

import asyncio
from typing import Any

import structlog
from msgspec import structs

from noetl_chassis import backoff, identity
from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Point, reach
from noetl_contracts import codec, ids, placement, subjects
from noetl_contracts.commands import Command
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.facts import (
    CommandFailed,
    CommandStarted,
    Fact,
    FactBatch,
    FrameClosed,
)
from noetl_contracts.ids import WorkerId
from noetl_messaging.ports import MESSAGE_BYTES_MAX, Message, Publisher
from noetl_worker.domain.masking import Mask

LINGER_S = 0.05
_FACTS_MAX = 64
_BATCH_BYTES_MAX = MESSAGE_BYTES_MAX * 3 // 4
_RETRY_BASE_S = 0.05
_RETRY_MAX_S = 2.0

log = structlog.get_logger(__name__)


class ReportTooLarge(Permanent):
    """A single fact exceeds what a message may carry."""


class Desk:
    """Where every command of this worker hands in its facts."""

    def __init__(
        self,
        *,
        publisher: Publisher,
        worker_id: WorkerId,
        shard_count: int,
        mask: Mask,
        clock: Clock,
        locality: dict[str, Any] | None = None,
        max_distance: str = placement.ANYWHERE,
        locator: str | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.clock = clock
        self._publisher = publisher
        self._shard_count = shard_count
        self._mask = mask
        self._locality = locality or {}
        self._max_distance = None if max_distance == placement.ANYWHERE else max_distance
        self._locator = locator

    def started(self, command: Command) -> CommandStarted:
        """Say that this worker took a command."""
        return CommandStarted(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=self.worker_id,
            worker_locator=self._locator,
            locality=self._locality,
            max_distance=self._max_distance,
        )

    async def publish(self, command: Command, facts: list[Fact], *, key: str) -> None:
        """Publish facts as one batch, again and again until the stream has stored it.

        Whoever calls bounds it: by the command's lease, or by a timeout.
        """
        message = self._message(command, facts, key)
        tries = 0
        while True:
            try:
                await reach(Point.WORKER_REPORT_BEFORE)
                await self._publisher.publish(message)
                await reach(Point.WORKER_REPORT_AFTER)
            except Retryable as problem:
                tries += 1
                log.warning(
                    "facts not published", command_id=command.command_id, reason=str(problem)
                )
                noise = identity.noise()
                await asyncio.sleep(
                    backoff.delay_s(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S, noise=noise)
                )
            else:
                return

    def size(self, command: Command, facts: list[Fact]) -> int:
        """Return how many bytes a batch would take."""
        return len(self._message(command, facts, "").data)

    def _message(self, command: Command, facts: list[Fact], key: str) -> Message:
        batch = FactBatch(
            key=key,
            execution_id=command.execution_id,
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            producer=self.worker_id,
            facts=[self._masked(fact) for fact in facts],
            traceparent=command.traceparent,
        )
        shard = ids.shard_of(command.execution_id, self._shard_count)
        return Message(
            subject=subjects.ingest(shard, command.tenant_id, command.organization_id),
            message_id=key,
            data=self._mask.data(codec.encode(batch)),
        )

    def _masked(self, fact: Fact) -> Fact:
        if isinstance(fact, CommandFailed | FrameClosed) and fact.error is not None:
            return structs.replace(fact, error=self._mask.error(fact.error))
        return fact


class Reporter:
    """Queues one attempt's facts; `run` publishes them, `flush` waits until all are stored.

    `holder` names the delivery: two copies of a command must not deduplicate each other's facts.
    """

    def __init__(self, *, desk: Desk, command: Command, holder: str) -> None:
        self.holder = holder
        self._desk = desk
        self._command = command
        self._queue: list[Fact] = []
        self._sequence = 0
        self._has_started = False
        self._queued = asyncio.Event()
        self._urgent = asyncio.Event()
        self._stored = asyncio.Event()
        self._stored.set()
        self._publishing = asyncio.Lock()
        self.last_report_at = desk.clock.monotonic()

    def report(self, *facts: Fact, lingers: bool = False) -> None:
        """Queue facts; lingering ones wait a moment for the next, to travel together."""
        self._queue.extend(facts)
        self._stored.clear()
        self.last_report_at = self._desk.clock.monotonic()
        self._queued.set()
        if not lingers:
            self._urgent.set()

    def started(self) -> None:
        """Say that the command was taken, unless another fact has said so."""
        if not self._has_started and not self._queue:
            self._stored.clear()
            self._queued.set()
            self._urgent.set()

    async def run(self) -> None:
        """Publish whatever is queued, for as long as the command lives."""
        while True:
            await self._queued.wait()
            await self._wait_for_more()
            await self._publish_queued()

    async def flush(self) -> None:
        """Return once every queued fact is stored; raises `ReportTooLarge`."""
        while not self._stored.is_set():
            await self._publish_queued()

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(LINGER_S):
                await self._urgent.wait()
        except TimeoutError:
            return

    async def _publish_queued(self) -> None:
        async with self._publishing:
            self._urgent.clear()
            self._queued.clear()
            while self._queue or not self._has_started:
                facts = self._next_batch()
                command = self._command
                key = f"{command.command_id}/{command.attempt}/{self.holder}/{self._sequence}"
                self._sequence += 1
                await self._desk.publish(self._command, facts, key=key)
            self._stored.set()

    def _next_batch(self) -> list[Fact]:
        """Take as many facts as fit one message; the first batch says that work began."""
        head: list[Fact] = [] if self._has_started else [self._desk.started(self._command)]
        self._has_started = True
        count = min(len(self._queue), _FACTS_MAX)
        while self._desk.size(self._command, head + self._queue[:count]) > _BATCH_BYTES_MAX:
            if count <= 1:
                fact = str(type(self._queue[0]).__name__) if self._queue else "CommandStarted"
                self._queue.clear()
                raise ReportTooLarge(
                    f"{fact} of step {self._command.step!r} exceeds {_BATCH_BYTES_MAX} bytes: "
                    "write less to ctx, or select fewer fields"
                )
            count = count // 2
        batch = head + self._queue[:count]
        del self._queue[:count]
        return batch
