"""Claim committed rows, publish them, remove those that were confirmed."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_chassis.loop import LoopHealth, run_every, run_while_busy
from noetl_chassis.observability import instruments, names, tracing
from noetl_contracts import subjects
from noetl_contracts.ledger.records import OutboxRow
from noetl_contracts.message_origin import find_traceparent
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, Hints, Message, Publisher
from noetl_outbox import domain
from noetl_storage.ports.ledger_ports import OutboxDrain

POKE = subjects.build_hint_subject("outbox")

log = structlog.get_logger(__name__)


class OutboxPublisher:
    """Owns the way of committed messages to the streams; any number may run at once."""

    def __init__(
        self,
        *,
        outbox: OutboxDrain,
        publisher: Publisher,
        hints: Hints,
        check: Callable[[], str | None],
        owner: str,
        claim_lease_s: float,
        rows_max: int,
    ) -> None:
        self._outbox = outbox
        self._publisher = publisher
        self._hints = hints
        self._check = check
        self._owner = owner
        self._claim_lease_s = claim_lease_s
        self._rows_max = rows_max
        self.wake = asyncio.Event()

    async def run_until_stopped(
        self, *, stop: asyncio.Event, loop_health: LoopHealth, poll_s: float, measure_s: float
    ) -> None:
        """Publish, listen and measure until told to stop."""
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(
                run_every(1.0, self.listen_for_hints, stop=stop, name="listen")
            )
            tasks.create_task(run_every(measure_s, self.measure_backlog, stop=stop, name="measure"))
            await run_while_busy(
                self.publish_batch,
                idle_s=poll_s,
                stop=stop,
                wake=self.wake,
                name="publish",
                loop_health=loop_health,
            )
            listening.cancel()

    async def publish_batch(self) -> int:
        """Publish one batch; return how many rows went away.

        Raises `MessagingUnavailable` when nothing of a batch could be published.
        """
        if reason := self._check():
            raise MessagingUnavailable(reason)
        rows = await self._outbox.claim_rows(
            owner=self._owner, lease_s=self._claim_lease_s, rows_max=self._rows_max
        )
        await pass_failpoint(Failpoint.OUTBOX_CLAIMED)
        fitting, oversized = domain.split_oversized(rows, bytes_max=MESSAGE_BYTES_MAX)
        self._report_oversized(oversized)
        if not fitting:
            return 0
        stored = await self._publish_rows(fitting)
        await pass_failpoint(Failpoint.OUTBOX_PUBLISHED)
        verdict = domain.decide_settlement(fitting, stored, rows_max=self._rows_max)
        await self._outbox.settle_rows(verdict.settled)
        await self._outbox.release_rows(verdict.released)
        await pass_failpoint(Failpoint.OUTBOX_ACK_AFTER)
        _count_rows("published", len(verdict.settled))
        _count_rows("released", len(verdict.released))
        _count_rows("postponed", len(verdict.postponed))
        if not verdict.settled:
            raise MessagingUnavailable(f"none of {len(fitting)} messages could be published")
        return len(verdict.settled)

    async def measure_backlog(self) -> None:
        """Show how much waits, and for how long."""
        rows, oldest_age_s = await self._outbox.count_backlog()
        instruments.set_gauge(names.OUTBOX_ROWS, rows)
        instruments.set_gauge(names.OUTBOX_OLDEST_AGE, oldest_age_s)

    async def listen_for_hints(self) -> None:
        """Turn hints into wake-ups, until the connection is lost."""
        async for _ in self._hints.listen_for_hints(POKE):
            self.wake.set()

    async def _publish_rows(self, rows: Sequence[OutboxRow]) -> list[bool]:
        is_traced = tracing.are_spans_wanted()
        messages = [
            Message(
                subject=row.subject,
                message_id=row.message_id,
                data=row.data,
                traceparent=find_traceparent(row.data) if is_traced else None,
            )
            for row in rows
        ]
        return await self._publisher.publish_batch(messages)

    def _report_oversized(self, oversized: Sequence[OutboxRow]) -> None:
        """Name rows that no stream takes; their leases run on, so that each is seen rarely."""
        for row in oversized:
            log.error(
                "outbox row too large",
                outbox_id=row.outbox_id,
                execution_id=row.execution_id,
                payload_bytes=len(row.data),
                payload_bytes_max=MESSAGE_BYTES_MAX,
            )
        _count_rows("too_large", len(oversized))


def _count_rows(outcome: str, rows: int) -> None:
    if rows:
        instruments.add_to_counter(names.OUTBOX_PUBLISHED, rows, labels={names.OUTCOME: outcome})
