"""Commands that this worker may ask for before all others of its pool.

An offer may be lost, late or repeated: the worker runs it only once the planner has accepted that
it is this worker's, so that nobody else has it. What is not taken in time goes to the pool.
"""

import asyncio
from collections.abc import Callable

import structlog
from msgspec import Struct

from noetl_contracts import codec, subjects
from noetl_contracts.commands import command_work
from noetl_contracts.commands.command_work import COMMAND_BYTES_MAX, Command
from noetl_contracts.commands.worker_pools import BEAT_S, WorkerHeartbeat, get_lane_host
from noetl_contracts.errors import MalformedMessage, Retryable
from noetl_contracts.requests.facts import CommandHeartbeat, CommandLost, Fact
from noetl_messaging.streams.ports import Delivery, Hints
from noetl_worker.commands.fact_publisher import FactPublisher

log = structlog.get_logger(__name__)

# How often an offer is asked for, and how long the planner may take to grant it each time.
ASKED_TIMES = 3
GRANTED_WITHIN_S = 1.0
_PUBLISHED_WITHIN_S = 5.0
_RETRY_S = 1.0
_NOT_GRANTED = "the offer was not granted in time"


def build_offer_subject(command: Command) -> str:
    """Return the subject under which a pool would have got a command."""
    return subjects.build_command_subject(
        command.pool, command.lane, command.tenant_id, command.organization_id
    )


class OfferDelivery:
    """An offered command as a delivery: its lease is what the planner hears of its worker."""

    def __init__(
        self, command: Command, data: bytes, fact_publisher: FactPublisher, *, asked_at: float
    ) -> None:
        self._command = command
        self._data = data
        self._publisher = fact_publisher
        self._asked_at = asked_at
        self._beats = 0

    @property
    def subject(self) -> str:
        """Return the subject under which its pool would have got it."""
        return build_offer_subject(self._command)

    @property
    def data(self) -> bytes:
        """Return the command's bytes."""
        return self._data

    @property
    def message_id(self) -> str:
        """Return nothing: no stream has it."""
        return ""

    @property
    def traceparent(self) -> str | None:
        """Return nothing: it came without headers."""
        return None

    @property
    def delivery_count(self) -> int:
        """Return 1: what is granted is handed over once."""
        return 1

    @property
    def stream_sequence(self) -> int:
        """Return 0, which no stream gives: an attempt has one holder."""
        return 0

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been granted, at most: it was asked for before."""
        return self._publisher.clock.monotonic_s() - self._asked_at

    async def ack(self) -> None:
        """Do nothing: no stream waits for it."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """Do nothing: a command is given back by saying so to the planner."""

    async def term(self) -> None:
        """Do nothing: no stream would hand it over again."""

    async def extend_ack_wait(self) -> bool:
        """Say that the command is held; True once the stream of facts has stored it."""
        self._beats += 1
        command, fact_publisher = self._command, self._publisher
        beat = CommandHeartbeat(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=fact_publisher.worker_id,
        )
        key = f"{command.command_id}/{command.attempt}/held/{self._beats}"
        await fact_publisher.publish_facts(command, [beat], key=key)
        return True


class OfferHost(Struct, frozen=True, kw_only=True):
    """The worker that is described and offered to: how it is, and how it runs a command."""

    beat: Callable[[], WorkerHeartbeat]
    begin: Callable[[Command, bytes], None]


class OfferIntake:
    """Says how this worker is, hears what it is offered, and asks for it."""

    def __init__(self, *, fact_publisher: FactPublisher, hints: Hints) -> None:
        self._publisher = fact_publisher
        self._hints = hints

    async def announce_presence(self, host: OfferHost) -> None:
        """Say how this worker is, again and again."""
        while True:
            await self.publish_beat(host.beat())
            await asyncio.sleep(BEAT_S)

    async def publish_beat(self, beat: WorkerHeartbeat) -> None:
        """Say how this worker is, now."""
        await self._hints.broadcast(subjects.WORKERS, codec.encode_json(beat))

    async def listen_for_offers(self, host: OfferHost) -> None:
        """Begin what is offered while there is room; what is left alone goes to the pool."""
        while True:
            try:
                async for data in self._hints.subscribe(
                    subjects.build_offer_subject(self._publisher.worker_id)
                ):
                    self._consider_offer(data, host)
            except Retryable as problem:
                log.info("not listening to offers", reason=str(problem))
            await asyncio.sleep(_RETRY_S)

    async def request_grant(self, command: Command, data: bytes) -> Delivery | None:
        """Ask for an offered command; None when it is not granted: then it must not be run."""
        subject = subjects.build_grant_subject(command.command_id, command.attempt)
        asked_at = self._publisher.clock.monotonic_s()
        try:
            async with self._hints.watch_hints(subject) as granted:
                for number in range(ASKED_TIMES):
                    await self._publish_fact(
                        command, self._publisher.build_started_fact(command), f"asked/{number}"
                    )
                    if await _wait_for_grant(granted):
                        return OfferDelivery(command, data, self._publisher, asked_at=asked_at)
            lost = CommandLost(
                command_id=command.command_id,
                attempt=command.attempt,
                reason=_NOT_GRANTED,
                is_release=True,
            )
            await self._publish_fact(command, lost, "declined")
        except (Retryable, TimeoutError) as problem:
            log.info("an offer was let go", command_id=command.command_id, reason=str(problem))
        return None

    def _consider_offer(self, data: bytes, host: OfferHost) -> None:
        beat = host.beat()
        try:
            command = command_work.decode_command(data) if len(data) <= COMMAND_BYTES_MAX else None
        except MalformedMessage as problem:
            log.warning("an offer was not understood", reason=str(problem))
            return
        if command is not None and beat.free_capacity > 0 and _is_for_host(command, beat):
            host.begin(command, data)

    async def _publish_fact(self, command: Command, fact: Fact, key: str) -> None:
        async with asyncio.timeout(_PUBLISHED_WITHIN_S):
            await self._publisher.publish_facts(
                command, [fact], key=f"{command.command_id}/{command.attempt}/{key}"
            )


def _is_for_host(command: Command, beat: WorkerHeartbeat) -> bool:
    """Tell whether this lane's host may run a command: every one of the worker hears its offers."""
    return command.pool == beat.pool and get_lane_host(command.lane) in beat.lanes


async def _wait_for_grant(granted: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(GRANTED_WITHIN_S):
            await granted.wait()
    except TimeoutError:
        return False
    return True
