"""The facts of a worker's commands: collected by attempt, sent together by execution.

The first sender that is ready sends for all; facts that come meanwhile go with the next message. A
bundle whose sender gives up before it was sent is dropped: after a lost lease nothing is sent.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from msgspec import Struct, field, structs

from noetl_chassis import loop
from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_contracts import codec
from noetl_contracts.commands import placement
from noetl_contracts.commands.command_work import Command
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.ids import WorkerId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandStarted,
    Fact,
    FactBatch,
    FilesChanged,
    FrameClosed,
)
from noetl_contracts.subjects import Reporter
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, Message, Publisher
from noetl_worker.domain.secret_mask import SecretMask

# What comes from the facts themselves; the rest of a message is small.
FACTS_BYTES_MAX = MESSAGE_BYTES_MAX * 3 // 4
# A message is named by all that it carries, so that only the very same one is the same.
LETTERS_MAX = 32
KEYS_SEPARATOR = "+"
LINGER_S = 0.05
_FACTS_MAX = 64
_RETRY_BASE_S = 0.05
_RETRY_MAX_S = 2.0
_ENDS = (CommandCompleted, CommandFailed, CommandParked, FrameClosed)
log = structlog.get_logger(__name__)


class FactBundle(Struct, kw_only=True, eq=False):
    """Facts of one command, encoded; `key` names them in every message that carries them."""

    key: str
    command: Command
    facts: list[bytes]
    is_stored: bool = False

    @property
    def size_bytes(self) -> int:
        """Return how much of a message it takes."""
        return sum(map(len, self.facts)) + len(self.facts)


class _ExecutionQueue(Struct, kw_only=True, eq=False):
    """What waits to be sent about one execution; the event ends the round that is on its way."""

    bundles: list[FactBundle] = field(default_factory=list)
    round: asyncio.Event | None = None


class ReportRoute(Struct, frozen=True, kw_only=True):
    """Where facts are published: under the worker's own subject, which the broker lets it use.

    Without a `reporter` the broker knows no users, and facts go where services publish.
    """

    routes: IngestRoutes
    reporter: Reporter | None = None

    def build_subject(self, command: Command) -> str:
        """Address the facts of a command."""
        return self.routes.build_subject(
            command.execution_id, command.tenant_id, command.organization_id, self.reporter
        )


class FactBatcher:
    """Batches the facts of one worker: one message of an execution is published at a time."""

    def __init__(self, *, publisher: Publisher, producer: WorkerId, route: ReportRoute) -> None:
        self._publisher = publisher
        self._producer = producer
        self._route = route
        self._boxes: dict[str, _ExecutionQueue] = {}

    async def send_bundle(self, bundle: FactBundle) -> None:
        """Publish a bundle of facts; return once the stream has stored it.

        One caller publishes the bundles of all: it raises the errors of the publisher.
        """
        execution_id = bundle.command.execution_id
        box = self._boxes.setdefault(execution_id, _ExecutionQueue())
        box.bundles.append(bundle)
        try:
            while not bundle.is_stored:
                if box.round is None:
                    await self._send_round(box)
                else:
                    await box.round.wait()
        finally:
            if not bundle.is_stored:
                box.bundles.remove(bundle)
            if not box.bundles and self._boxes.get(execution_id) is box:
                del self._boxes[execution_id]

    async def _send_round(self, box: _ExecutionQueue) -> None:
        round_ended = box.round = asyncio.Event()
        try:
            # Bundles that are ready in the same turn of the loop go with this message.
            await asyncio.sleep(0)
            fitting_bundles = _select_fitting(box.bundles)
            await self._publisher.publish_message(self._build_message(fitting_bundles))
            for bundle in fitting_bundles:
                bundle.is_stored = True
            box.bundles = [bundle for bundle in box.bundles if not bundle.is_stored]
        finally:
            box.round = None
            round_ended.set()

    def _build_message(self, bundles: list[FactBundle]) -> Message:
        first = bundles[0]
        command = first.command
        batch = FactBatch(
            key=first.key,
            execution_id=command.execution_id,
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            producer=self._producer,
            facts=[],
            traceparent=command.traceparent,
        )
        return Message(
            subject=self._route.build_subject(command),
            message_id=KEYS_SEPARATOR.join(bundle.key for bundle in bundles),
            data=facts.encode_fact_batch(
                batch, [fact for bundle in bundles for fact in bundle.facts]
            ),
            traceparent=command.traceparent,
        )


def _select_fitting(bundles: list[FactBundle]) -> list[FactBundle]:
    """Return the oldest bundles of facts that fit into one message: at least one."""
    count, room = 1, FACTS_BYTES_MAX - bundles[0].size_bytes
    for bundle in bundles[1:LETTERS_MAX]:
        room -= bundle.size_bytes
        if room < 0:
            break
        count += 1
    return bundles[:count]


class ReportTooLarge(Permanent):
    """A single fact exceeds what a message may carry."""


class FactPublisher:
    """Where every command of this worker hands in its facts."""

    def __init__(
        self,
        *,
        publisher: Publisher,
        worker_id: WorkerId,
        route: ReportRoute,
        mask: SecretMask,
        clock: Clock,
        locality: dict[str, Any] | None = None,
        max_distance: str = placement.ANYWHERE,
        locator: str | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.clock = clock
        self._post = FactBatcher(publisher=publisher, producer=worker_id, route=route)
        self._mask = mask
        self._locality = locality or {}
        self._max_distance = None if max_distance == placement.ANYWHERE else max_distance
        self._locator = locator

    def build_started_fact(self, command: Command) -> CommandStarted:
        """Build the fact that this worker has started a command."""
        return CommandStarted(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=self.worker_id,
            worker_locator=self._locator,
            locality=self._locality,
            max_distance=self._max_distance,
        )

    async def publish_facts(self, command: Command, facts: list[Fact], *, key: str) -> None:
        """Publish facts under a key of their own, until the stream has stored them.

        The caller limits its duration: by the command's lease, or by a timeout.
        """
        encoded = [self.encode_fact(fact) for fact in facts]
        await self.send_bundle(FactBundle(key=key, command=command, facts=encoded))

    async def send_bundle(self, bundle: FactBundle) -> None:
        """Send a message until the stream has stored it; bounded like `publish_facts`."""
        tries = 0
        while not bundle.is_stored:
            try:
                await pass_failpoint(Failpoint.WORKER_REPORT_BEFORE)
                await self._post.send_bundle(bundle)
                await pass_failpoint(Failpoint.WORKER_REPORT_AFTER)
            except Retryable as problem:
                tries += 1
                command_id = bundle.command.command_id
                log.warning("facts not published", command_id=command_id, reason=str(problem))
                await loop.sleep_backoff(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S)

    def encode_fact(self, fact: Fact) -> bytes:
        """Encode a fact without the secrets that this worker knows."""
        return self._mask.mask_bytes(codec.encode_json(self._mask_fact(fact)))

    def _mask_fact(self, fact: Fact) -> Fact:
        if isinstance(fact, CommandFailed | FrameClosed) and fact.error is not None:
            return structs.replace(fact, error=self._mask.mask_error(fact.error))
        return fact


class AttemptReporter:
    """Queues one attempt's facts, which `publish_until_cancelled` publishes.

    `flush_facts` waits until all are stored.

    `holder` names the run: two of one command must not deduplicate each other's facts.
    `count_file_entries` tells how long the journal of the execution's files is by now.
    """

    def __init__(
        self,
        *,
        fact_publisher: FactPublisher,
        command: Command,
        holder: str,
        count_file_entries: Callable[[Command], int] = lambda _: 0,
    ) -> None:
        self.holder = holder
        self._count_file_entries = count_file_entries
        self._file_entries = command.file_entries
        self._publisher = fact_publisher
        self._command = command
        self._queue: list[Fact] = []
        self._sequence = 0
        self._has_started = False
        self._queued = asyncio.Event()
        self._urgent = asyncio.Event()
        self._all_stored = asyncio.Event()
        self._all_stored.set()
        self._publishing = asyncio.Lock()
        self.last_report_at = fact_publisher.clock.monotonic_s()

    def report_facts(self, *facts: Fact, lingers: bool = False) -> None:
        """Queue facts; lingering ones wait a moment for others, to travel together."""
        for fact in facts:
            if isinstance(fact, _ENDS):
                self._report_changed_files()
            self._queue.append(fact)
        self._all_stored.clear()
        self.last_report_at = self._publisher.clock.monotonic_s()
        self._queued.set()
        if not lingers:
            self._urgent.set()

    def _report_changed_files(self) -> None:
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

    def report_started(self) -> None:
        """Report that the command has started, unless another fact has reported it."""
        if not self._has_started and not self._queue:
            self._all_stored.clear()
            self._queued.set()
            self._urgent.set()

    async def publish_until_cancelled(self) -> None:
        """Publish queued facts until the command ends."""
        while True:
            await self._queued.wait()
            await self._wait_for_more()
            await self._publish_queued()

    async def flush_facts(self) -> None:
        """Return once every queued fact is stored; raises `ReportTooLarge`."""
        while not self._all_stored.is_set():
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
                encoded = self._take_next_facts()
                command = self._command
                key = f"{command.command_id}/{command.attempt}/{self.holder}/{self._sequence}"
                self._sequence += 1
                await self._publisher.send_bundle(
                    FactBundle(key=key, command=command, facts=encoded)
                )
            self._all_stored.set()

    def _take_next_facts(self) -> list[bytes]:
        """Take as many facts as fit one message; the first that go say that work began."""
        facts: list[bytes] = []
        if not self._has_started:
            facts.append(
                self._publisher.encode_fact(self._publisher.build_started_fact(self._command))
            )
        self._has_started = True
        room, count = FACTS_BYTES_MAX - sum(map(len, facts)), 0
        for fact in self._queue[:_FACTS_MAX]:
            data = self._publisher.encode_fact(fact)
            room -= len(data) + 1
            if room < 0:
                break
            facts.append(data)
            count += 1
        if self._queue and not count:
            fact_name = type(self._queue[0]).__name__
            del self._queue[0]
            raise ReportTooLarge(
                f"{fact_name} of step {self._command.step!r} exceeds {FACTS_BYTES_MAX} bytes: "
                "write less to ctx, or select fewer fields"
            )
        del self._queue[:count]
        return facts
