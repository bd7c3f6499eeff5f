"""Facts about one attempt of a command, published in order and each confirmed."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from msgspec import structs

from noetl_chassis import backoff, identity
from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Point, reach
from noetl_contracts import codec, placement
from noetl_contracts.commands import Command
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.facts import (
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandStarted,
    Fact,
    FilesChanged,
    FrameClosed,
)
from noetl_contracts.ids import WorkerId
from noetl_messaging.ports import Publisher
from noetl_worker.domain.masking import Mask
from noetl_worker.posting import FACTS_BYTES_MAX, Letter, Post

LINGER_S = 0.05
_FACTS_MAX = 64
_RETRY_BASE_S = 0.05
_RETRY_MAX_S = 2.0
_ENDS = (CommandCompleted, CommandFailed, CommandParked, FrameClosed)

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
        self._post = Post(publisher=publisher, producer=worker_id, shard_count=shard_count)
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
        """Publish facts under a key of their own, until the stream has stored them.

        Whoever calls bounds it: by the command's lease, or by a timeout.
        """
        encoded = [self.encoded(fact) for fact in facts]
        await self.send(Letter(key=key, command=command, facts=encoded))

    async def send(self, letter: Letter) -> None:
        """Send a letter, again and again until the stream has stored it; bounded like `publish`."""
        tries = 0
        while not letter.is_stored:
            try:
                await reach(Point.WORKER_REPORT_BEFORE)
                await self._post.send(letter)
                await reach(Point.WORKER_REPORT_AFTER)
            except Retryable as problem:
                tries += 1
                command_id = letter.command.command_id
                log.warning("facts not published", command_id=command_id, reason=str(problem))
                noise = identity.noise()
                await asyncio.sleep(
                    backoff.delay_s(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S, noise=noise)
                )

    def encoded(self, fact: Fact) -> bytes:
        """Encode a fact without the secrets that this worker knows."""
        return self._mask.data(codec.encode(self._masked(fact)))

    def _masked(self, fact: Fact) -> Fact:
        if isinstance(fact, CommandFailed | FrameClosed) and fact.error is not None:
            return structs.replace(fact, error=self._mask.error(fact.error))
        return fact


class Reporter:
    """Queues one attempt's facts; `run` publishes them, `flush` waits until all are stored.

    `holder` names the run: two of one command must not deduplicate each other's facts.
    `count_file_entries` tells how long the journal of the execution's files is by now.
    """

    def __init__(
        self,
        *,
        desk: Desk,
        command: Command,
        holder: str,
        count_file_entries: Callable[[Command], int] = lambda _: 0,
    ) -> None:
        self.holder = holder
        self._count_file_entries = count_file_entries
        self._file_entries = command.file_entries
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
        """Queue facts; lingering ones wait a moment for others, to travel together."""
        for fact in facts:
            if isinstance(fact, _ENDS):
                self._tell_files()
            self._queue.append(fact)
        self._stored.clear()
        self.last_report_at = self._desk.clock.monotonic()
        self._queued.set()
        if not lingers:
            self._urgent.set()

    def _tell_files(self) -> None:
        """Say that files changed before anything that lets other tasks begin."""
        entries = self._count_file_entries(self._command)
        if entries > self._file_entries:
            self._file_entries = entries
            command = self._command
            self._queue.append(
                FilesChanged(
                    command_id=command.command_id, attempt=command.attempt, entries=entries
                )
            )

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
        # Every reporter's wait ends at the same moments, so that they share a message then too.
        beat = asyncio.get_running_loop().time() // LINGER_S + 1
        try:
            async with asyncio.timeout_at(beat * LINGER_S):
                await self._urgent.wait()
        except TimeoutError:
            return

    async def _publish_queued(self) -> None:
        async with self._publishing:
            self._urgent.clear()
            self._queued.clear()
            while self._queue or not self._has_started:
                encoded = self._next_facts()
                command = self._command
                key = f"{command.command_id}/{command.attempt}/{self.holder}/{self._sequence}"
                self._sequence += 1
                await self._desk.send(Letter(key=key, command=command, facts=encoded))
            self._stored.set()

    def _next_facts(self) -> list[bytes]:
        """Take as many facts as fit one message; the first that go say that work began."""
        taken: list[bytes] = []
        if not self._has_started:
            taken.append(self._desk.encoded(self._desk.started(self._command)))
        self._has_started = True
        room, count = FACTS_BYTES_MAX - sum(map(len, taken)), 0
        for fact in self._queue[:_FACTS_MAX]:
            data = self._desk.encoded(fact)
            room -= len(data) + 1
            if room < 0:
                break
            taken.append(data)
            count += 1
        if self._queue and not count:
            fact_name = type(self._queue[0]).__name__
            self._queue.clear()
            raise ReportTooLarge(
                f"{fact_name} of step {self._command.step!r} exceeds {FACTS_BYTES_MAX} bytes: "
                "write less to ctx, or select fewer fields"
            )
        del self._queue[:count]
        return taken
