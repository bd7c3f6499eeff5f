"""Offers: commands that the planner lets this worker request before other workers of its pool.

The worker announces its free capacity, listens for offers, and requests a grant for each. An offer
may be lost, late or repeated, so the worker runs a command only after the planner has granted it.
A command that is not granted in time goes to the pool.
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
from noetl_messaging.streams.hint_receiver import receive_hints
from noetl_messaging.streams.ports import Delivery, Hints
from noetl_worker.commands.fact_publisher import FactPublisher

log = structlog.get_logger(__name__)

# How often a grant is requested, and how long the planner may take to answer each time.
ASKED_TIMES = 3
GRANTED_WITHIN_S = 1.0
_PUBLISHED_WITHIN_S = 5.0
_NOT_GRANTED = "the offer was not granted in time"


def build_offer_subject(command: Command) -> str:
    """Return the subject under which a command would reach its pool."""
    return subjects.build_command_subject(
        command.pool, command.lane, command.tenant_id, command.organization_id
    )


class OfferDelivery:
    """Wraps a granted command as a `Delivery`: heartbeat facts to the planner extend its lease.

    It is in no stream, so acks do nothing.
    """

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
        """Return the subject under which the command would reach its pool."""
        return build_offer_subject(self._command)

    @property
    def data(self) -> bytes:
        """Return the command's bytes."""
        return self._data

    @property
    def message_id(self) -> str:
        """Return an empty text: no stream has the command."""
        return ""

    @property
    def traceparent(self) -> str | None:
        """Return None: an offer has no headers."""
        return None

    @property
    def delivery_count(self) -> int:
        """Return 1: a granted command is delivered once."""
        return 1

    @property
    def stream_sequence(self) -> int:
        """Return 0, which is no sequence of a stream."""
        return 0

    @property
    def age_s(self) -> float:
        """Return the seconds since the grant was requested: the grant is not older."""
        return self._publisher.clock.monotonic_s() - self._asked_at

    async def ack(self) -> None:
        """Do nothing: no stream waits for the ack."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """Do nothing: a fact to the planner releases the command."""

    async def term(self) -> None:
        """Do nothing: no stream delivers the command again."""

    async def extend_ack_wait(self) -> bool:
        """Publish a heartbeat of the command; True once the stream of facts has stored it."""
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
    """The worker that gets offers: `beat` describes its capacity, `begin` takes one."""

    beat: Callable[[], WorkerHeartbeat]
    begin: Callable[[Command, bytes], None]


class OfferIntake:
    """Announces this worker's capacity, listens for offers, and requests their grants."""

    def __init__(self, *, fact_publisher: FactPublisher, hints: Hints) -> None:
        self._publisher = fact_publisher
        self._hints = hints

    async def announce_presence(self, host: OfferHost) -> None:
        """Broadcast the worker's heartbeat every `BEAT_S` seconds."""
        while True:
            await self.publish_beat(host.beat())
            await asyncio.sleep(BEAT_S)

    async def publish_beat(self, beat: WorkerHeartbeat) -> None:
        """Broadcast one heartbeat of the worker."""
        subject = subjects.build_presence_subject(beat.pool, beat.worker_id)
        await self._hints.broadcast(subject, codec.encode_json(beat))

    async def listen_for_offers(self, host: OfferHost) -> None:
        """Begin offered commands while the worker has room; the pool gets the others."""
        subject = subjects.build_offer_subject(self._publisher.worker_id)
        await receive_hints(
            lambda: self._hints.subscribe(subject),
            lambda data: self._consider_offer(data, host),
            subject=subject,
        )

    async def request_grant(self, command: Command, data: bytes) -> Delivery | None:
        """Request the grant of an offered command; None when it is not granted and must not run."""
        subject = subjects.build_grant_subject(command.command_id, command.attempt)
        asked_at = self._publisher.clock.monotonic_s()
        try:
            async with self._hints.watch_hints(subject) as grant_arrived:
                for number in range(ASKED_TIMES):
                    await self._publish_fact(
                        command, self._publisher.build_started_fact(command), f"asked/{number}"
                    )
                    if await _wait_for_grant(grant_arrived):
                        return OfferDelivery(command, data, self._publisher, asked_at=asked_at)
            lost = CommandLost(
                command_id=command.command_id,
                attempt=command.attempt,
                reason=_NOT_GRANTED,
                is_release=True,
            )
            await self._publish_fact(command, lost, "declined")
        except (Retryable, TimeoutError) as problem:
            log.info("offer not answered", command_id=command.command_id, reason=str(problem))
        return None

    def _consider_offer(self, data: bytes, host: OfferHost) -> None:
        """Begin the command that a planner offers, if it is for this worker and there is room.

        What is not begun comes by its queue: the planner publishes an offer that nobody takes.
        """
        beat = host.beat()
        try:
            command = command_work.decode_command(data) if len(data) <= COMMAND_BYTES_MAX else None
        except MalformedMessage as problem:
            log.warning("offer cannot be decoded", reason=str(problem))
            return
        if command is not None and beat.free_capacity > 0 and _is_for_host(command, beat):
            host.begin(command, data)

    async def _publish_fact(self, command: Command, fact: Fact, key: str) -> None:
        async with asyncio.timeout(_PUBLISHED_WITHIN_S):
            await self._publisher.publish_facts(
                command, [fact], key=f"{command.command_id}/{command.attempt}/{key}"
            )


def _is_for_host(command: Command, beat: WorkerHeartbeat) -> bool:
    """Return whether this lane's host may run a command: all hosts of a worker get its offers."""
    return command.pool == beat.pool and get_lane_host(command.lane) in beat.lanes


async def _wait_for_grant(grant_arrived: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(GRANTED_WITHIN_S):
            await grant_arrived.wait()
    except TimeoutError:
        return False
    return True
