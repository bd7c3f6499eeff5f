"""The lease of a command: extended by confirmed heartbeats, or lost."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import structlog

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_contracts import subjects
from noetl_contracts.commands.command_work import StreamProgress, parse_stream_progress
from noetl_contracts.errors import Retryable
from noetl_messaging.streams.hint_receiver import receive_hints
from noetl_messaging.streams.ports import Delivery, Hints
from noetl_worker.domain import lease_terms
from noetl_worker.domain.lease_terms import Lease

# Work that is over sooner needs no lease prolonged, no stop heard and nobody told that it began.
LASTING_S = 0.5
_RETRY_S = 0.5
_HALTS_MAX = 4096

log = structlog.get_logger(__name__)


class Interruption(Exception):  # noqa: N818 - it tells the work to stop, which is no error
    """The work of a command must end now."""


class LeaseLost(Interruption):
    """No beat was confirmed for as long as the lease lasts: nothing may be reported."""


class Stopped(Interruption):
    """The planner wants the command stopped."""


class Released(Interruption):
    """This worker is leaving and gives the command back."""


class ChunkProgress:
    """How far the planner is with a command's stream, as its hints tell."""

    def __init__(self) -> None:
        self.stream_progress = StreamProgress(received=0, accepted=0)
        self.hint_wanted = asyncio.Event()
        self._changed = asyncio.Event()

    async def listen_for_hints(self, hints: Hints, command_id: str) -> None:
        """Listen for hints once one is wanted; the waiting command asks again for a lost one."""
        await self.hint_wanted.wait()
        prefix = subjects.build_chunk_progress_prefix(command_id)
        await receive_hints(
            lambda: hints.subscribe_tokens(prefix),
            self.note_hint,
            subject=prefix,
            retry_s=_RETRY_S,
        )

    def note_hint(self, token: str) -> None:
        """Note what a hint says; hints may overtake each other."""
        stream_progress = parse_stream_progress(token)
        if stream_progress is None:
            return
        received = max(stream_progress.received, self.stream_progress.received)
        accepted = max(stream_progress.accepted, self.stream_progress.accepted)
        latest = StreamProgress(received=received, accepted=accepted)
        if latest != self.stream_progress:
            self.stream_progress = latest
            self._changed.set()

    async def wait_for_change(self, wait_s: float) -> bool:
        """Wait for news, no longer than so many seconds; tell whether there were any."""
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


class CommandLease:
    """Extends the latest delivery of a command until it ends, one way or another."""

    def __init__(self, delivery: Delivery, *, lease: Lease, clock: Clock) -> None:
        self._delivery = delivery
        # Earlier messages of the command, settled with every beat: an acknowledgement may be lost.
        self._former: list[Delivery] = []
        self._name = lease_terms.build_holder_name(
            delivery.stream_sequence, token=identity.mint_token()
        )
        self._lease = lease
        self._clock = clock
        self._confirmed_at = self._compute_lease_start(delivery)
        self._interruption: Interruption | None = None
        self._interrupted = asyncio.Event()
        self._begin_keeping: Callable[[], None] | None = None
        # Work that goes on by itself ends after the frame that it is at.
        self.leaving = asyncio.Event()

    @property
    def holder_name(self) -> str:
        """Tell this hold from others of the same command, by a copy or by the same message."""
        return self._name

    @property
    def is_over(self) -> bool:
        """Tell whether the lease is over: the command may be at work elsewhere."""
        return self._compute_remaining_s() <= 0

    async def adopt_delivery(self, delivery: Delivery) -> None:
        """Go on under a newer delivery of the same command.

        An earlier message of it is settled: nobody prolongs it any more, and when it came to
        another worker, this one would be taken for lost.
        """
        former, self._delivery = self._delivery, delivery
        self._confirmed_at = self._compute_lease_start(delivery)
        if former.stream_sequence != delivery.stream_sequence:
            self._former.append(former)
            await former.ack()

    def interrupt_work(self, interruption: Interruption) -> None:
        """End the work from outside."""
        self._interruption = interruption
        self._interrupted.set()
        self._start_extending()

    async def stop_when_over(self) -> None:
        """Wait for the end of the work when the lease is over; else return at once.

        A process that stood still finds a lease over that nothing has ended yet.
        """
        if self.is_over:
            self.interrupt_work(LeaseLost())
            await asyncio.get_running_loop().create_future()

    @contextlib.contextmanager
    def extend_when_lasting(self, begin: Callable[[], None]) -> Iterator[None]:
        """Have `begin` called, once, when the block lasts or is interrupted: it begins to keep.

        Most commands are over before; they need nobody who attends to them.
        """
        self._begin_keeping = begin
        soon_s = min(LASTING_S, self._lease.heartbeat_s, max(0.0, self._compute_remaining_s()))
        timer = asyncio.get_running_loop().call_later(soon_s, self._start_extending)
        if self._interruption is not None:
            self._start_extending()
        try:
            yield
        finally:
            timer.cancel()
            self._begin_keeping = None

    def _start_extending(self) -> None:
        begin, self._begin_keeping = self._begin_keeping, None
        if begin is not None:
            begin()

    async def extend_until_settled(self, *, on_beat: Callable[[], None]) -> None:
        """Beat for ever; raises an `Interruption`."""
        await self._pause_until_beat(0.0)
        # A delivery may have been on its way for a good part of its lease.
        pause_s = self._confirmed_at + self._lease.heartbeat_s - self._clock.monotonic_s()
        while True:
            await self._pause_until_beat(pause_s)
            on_beat()
            is_confirmed = await self._extend_delivery()
            pause_s = self._lease.heartbeat_s if is_confirmed else _RETRY_S

    async def _pause_until_beat(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(seconds, self._compute_remaining_s()))):
                await self._interrupted.wait()
        if self._interruption is not None:
            raise self._interruption
        if self.is_over:
            raise LeaseLost

    async def _extend_delivery(self) -> bool:
        asked_at = self._clock.monotonic_s()
        delivery = self._delivery
        is_confirmed = False
        # What a broken line holds up must not hide that the lease is over; the next beat repeats.
        with contextlib.suppress(TimeoutError, Retryable):
            async with asyncio.timeout(min(self._lease.heartbeat_s, self._compute_remaining_s())):
                is_confirmed = await delivery.extend_ack_wait()
                if is_confirmed and delivery is self._delivery:
                    self._confirmed_at = asked_at
                for former in self._former:
                    await former.ack()
        return is_confirmed

    def _compute_lease_start(self, delivery: Delivery) -> float:
        return lease_terms.compute_lease_start(
            self._lease, age_s=delivery.age_s, now=self._clock.monotonic_s()
        )

    def _compute_remaining_s(self) -> float:
        return lease_terms.compute_remaining_s(
            self._lease, confirmed_at=self._confirmed_at, now=self._clock.monotonic_s()
        )

    async def ack(self) -> None:
        """Settle the latest delivery: done."""
        await self._delivery.ack()


class CancelledExecutions:
    """Executions whose commands are not to begin any more: over, or being cancelled.

    A worker learns of those that it has missed when it reports that it began.
    """

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._executions: dict[str, None] = {}

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._executions

    async def listen_for_cancellations(self) -> None:
        """Remember what is halted from now on; returns when there is no listening any more."""
        try:
            async for execution_id in self._hints.subscribe_tokens(subjects.HALTED):
                self._executions[execution_id] = None
                while len(self._executions) > _HALTS_MAX:
                    del self._executions[next(iter(self._executions))]
        except Retryable as problem:
            log.info("hints of halted executions interrupted", reason=str(problem))
