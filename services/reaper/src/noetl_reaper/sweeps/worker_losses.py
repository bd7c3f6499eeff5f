"""Reports the commands of a worker that was killed, soon after its connection has ended.

The broker knows at once when a process dies, for its connection ends. What it had been handed and
nobody else holds is then lost: every other worker is asked what it holds, and what is handed over,
not settled and held by nobody in two looks is reported as lost. Where one does not answer, nothing
is concluded, and leases decide as they do for a worker that is only cut off.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

import structlog
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.loop import run_every
from noetl_chassis.observability import instruments, names
from noetl_contracts import subjects
from noetl_contracts.commands import command_work, held_commands
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.worker_pools import BEAT_S, decode_worker_heartbeat
from noetl_contracts.errors import MalformedMessage, Retryable, SubjectError
from noetl_contracts.ledger.records import Request
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Connections, Hints, OpenConnection, UnsettledMessages
from noetl_reaper.sweeps.departures import Host, WorkerDepartures
from noetl_reaper.sweeps.report_spans import open_report_span
from noetl_storage.ports.ledger_ports import Requests

OUTBOX_POKE = subjects.build_hint_subject("outbox")
# Every worker has spoken by then.
HEARD_ALL_S = 1.5 * BEAT_S
# How often the broker is asked, and how long workers have to answer.
LOOK_S = 0.5
ANSWERED_WITHIN_S = 1.0
_RETRY_S = 1.0

log = structlog.get_logger(__name__)


class BuildLossRequest(Protocol):
    """Writes down that an attempt was lost with its worker."""

    def __call__(self, command: Command, *, traceparent: str | None) -> Request:
        """Build the request of one command; `traceparent` names the span of the report."""


class WorkerLossPolicy(Struct, frozen=True, kw_only=True):
    """How long a worker may be without its connection, and when leases have decided anyway."""

    grace_s: float
    lease_s: float
    build_request: BuildLossRequest


class WorkerLossWatch:
    """Owns the looks at who is connected; of all reapers only the leader takes them."""

    def __init__(
        self,
        *,
        connections: Connections,
        messages: UnsettledMessages,
        requests: Requests,
        hints: Hints,
        clock: Clock,
        policy: WorkerLossPolicy,
        is_leading: Callable[[], bool],
    ) -> None:
        self._connections = connections
        self._messages = messages
        self._requests = requests
        self._hints = hints
        self._clock = clock
        self._policy = policy
        self._is_leading = is_leading
        self._departures = WorkerDepartures()
        self._listening_since = clock.monotonic_s()
        self._roll = _RollCall(hints)
        # What nobody held in the look before, by sequence; None: this is the first look.
        self._suspects: set[int] | None = None

    async def watch_workers(self, stop: asyncio.Event) -> None:
        """Look until told to stop."""
        async with asyncio.TaskGroup() as group:
            listening = [
                group.create_task(self._listen_below(subjects.WORKERS, self._take_beat)),
                group.create_task(self._listen_below(subjects.HELD, self._roll.take_answer)),
            ]
            await run_every(LOOK_S, self.look_for_losses, stop=stop, name="worker losses")
            for task in listening:
                task.cancel()

    async def look_for_losses(self) -> None:
        """Look once. Raises `MessagingUnavailable`, and what the store of requests raises."""
        if not self._is_leading():
            self._forget_looks()
            return
        try:
            report = await self._connections.list_connections()
        except MessagingUnavailable:
            self._forget_looks()
            raise
        now_s = self._clock.monotonic_s()
        self._departures.note_report(report, now_s)
        departed = self._departures.list_departed(now_s=now_s, grace_s=self._policy.grace_s)
        has_heard_all = now_s - self._listening_since >= HEARD_ALL_S
        if departed and has_heard_all:
            await self._look_after(departed, now_s)

    async def _look_after(self, departed: list[OpenConnection], now_s: float) -> None:
        """Report what nobody holds in this look and the one before."""
        held_sequences = await self._roll.call_workers(
            self._departures.list_expected_hosts(departed)
        )
        if held_sequences is None:
            self._suspects = None
            late_s = self._policy.grace_s + self._policy.lease_s
            self._departures.forget_departed(
                self._departures.list_departed(now_s=now_s, grace_s=late_s)
            )
            return
        unheld = {
            message.sequence: message.data
            async for message in self._messages.iterate_unsettled()
            if message.sequence not in held_sequences
        }
        if self._suspects is None:
            self._suspects = set(unheld)
            return
        lost = [unheld[sequence] for sequence in sorted(self._suspects & unheld.keys())]
        self._suspects = None
        await self._report_lost(lost)
        self._departures.forget_departed(departed)

    async def _report_lost(self, messages: list[bytes]) -> None:
        reported = 0
        for data in messages:
            try:
                command = command_work.decode_command(data)
            except MalformedMessage as problem:
                # Workers bury it when it comes again.
                log.warning("a command that a worker had cannot be decoded", reason=str(problem))
                continue
            with open_report_span(command, command.traceparent) as traceparent:
                request = self._policy.build_request(command, traceparent=traceparent)
                await self._requests.submit_request(request)
            reported += 1
        if reported:
            log.warning("a worker's connection ended, its commands are lost", commands=reported)
            instruments.add_to_counter(names.LEASES_EXPIRED, reported)
            await self._hints.notify(OUTBOX_POKE)

    def _forget_looks(self) -> None:
        self._departures.forget_connections()
        self._suspects = None

    async def _listen_below(self, prefix: str, take: Callable[[str, bytes], None]) -> None:
        """Hear workers until cancelled; what cannot be read is passed over."""
        while True:
            try:
                async for subject, data in self._hints.subscribe_below(prefix):
                    try:
                        take(subject, data)
                    except (MalformedMessage, SubjectError) as problem:
                        log.warning("a worker cannot be understood", reason=str(problem))
            except Retryable as problem:
                log.info("not listening to workers", reason=str(problem))
            self._listening_since = self._clock.monotonic_s()
            await asyncio.sleep(_RETRY_S)

    def _take_beat(self, subject: str, data: bytes) -> None:
        beat = decode_worker_heartbeat(data)
        if subject == subjects.build_presence_subject(beat.pool, beat.worker_id):
            self._departures.note_beat(beat)


class _RollCall:
    """Asks workers which commands they hold."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._call = ""
        self._held_by_host: dict[Host, tuple[int, ...]] = {}
        self._answered = asyncio.Event()

    async def call_workers(self, expected: set[Host]) -> set[int] | None:
        """Return the sequences of what all of them hold; None when one has not answered in time."""
        self._call, self._held_by_host = secrets.token_hex(8), {}
        await self._hints.broadcast(subjects.ROLL_CALL, self._call.encode())
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                while not expected <= self._held_by_host.keys():
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            silent = sorted({worker_id for worker_id, _ in expected - self._held_by_host.keys()})
            log.info("workers do not say what they hold", workers=silent)
            return None
        return {sequence for sequences in self._held_by_host.values() for sequence in sequences}

    def take_answer(self, subject: str, data: bytes) -> None:
        """Take an answer that came under the subject of its pool and worker, and no other."""
        answer = held_commands.decode_held_commands(data)
        is_own = subject == subjects.build_held_subject(answer.pool, answer.worker_id)
        if is_own and answer.call == self._call:
            self._held_by_host[answer.worker_id, answer.lanes] = answer.sequences
            self._answered.set()
