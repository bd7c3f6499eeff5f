"""Fetch commands, attend to each, give back what is left when it is time to go."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog
from msgspec import Struct

from noetl_chassis.loop import Pulse, pump
from noetl_contracts.commands import Command
from noetl_contracts.ids import WorkerId
from noetl_contracts.workers import WorkerBeat
from noetl_messaging.ports import Delivery
from noetl_worker import patience
from noetl_worker.intake import Intake, SharedIntake
from noetl_worker.lanes.io import IoLane
from noetl_worker.offers import Host, Offers, offer_subject

log = structlog.get_logger(__name__)

_RELEASE_S = 10.0


class Speaker(Struct, frozen=True, kw_only=True):
    """What a worker says of itself to whoever hands commands out, and how it hears of offers."""

    offers: Offers
    worker_id: WorkerId
    pool: str
    lanes: tuple[str, ...]
    locality: dict[str, str]
    max_distance: str


class Worker:
    """Runs the commands of one pool with bounded concurrency."""

    def __init__(
        self,
        *,
        intake: Intake | SharedIntake,
        lane: IoLane,
        commands_max: int,
        messages_max: int,
        wait_s: float,
        speaker: Speaker | None = None,
    ) -> None:
        self._intake = intake
        self._lane = lane
        self._commands_max = commands_max
        self._messages_max = messages_max
        self._wait_s = wait_s
        self._speaker = speaker
        self._attended: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()

    async def run(self, *, stop: asyncio.Event, pulse: Pulse, drain_s: float) -> None:
        """Take turns until `stop`, then let work finish, then give the rest back."""
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._lane.listen())
            speaking = self._speak(group)
            await pump(
                lambda: self.turn(group), idle_s=0.0, stop=stop, name="commands", pulse=pulse
            )
            await self._fall_silent(speaking)
            self._begin(await self._intake.close(), group)
            self._lane.drain()
            if not await self._finished(drain_s):
                log.info("giving back unfinished commands", commands=self._lane.running)
                self._lane.release()
                await self._finished(_RELEASE_S)
            listening.cancel()
            for task in self._attended:
                task.cancel()

    async def turn(self, group: asyncio.TaskGroup) -> int:
        """Fetch as many commands as there is room for and start them; return how many."""
        free = self._commands_max - len(self._attended)
        if free <= 0:
            await self._wait_for_room()
            return 0
        deliveries = await self._intake.fetch(
            group, free=free, messages_max=self._messages_max, wait_s=self._wait_s
        )
        self._begin(deliveries, group)
        return len(deliveries)

    def _speak(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Say how this worker is, and take what it is offered while it has room."""
        speaker = self._speaker
        if speaker is None:
            return []

        def begin(command: Command, data: bytes) -> None:
            offered = self._attend_offer(speaker.offers, command, data)
            self._attend_in(group, offered, offer_subject(command))

        host = Host(beat=lambda: self._beat(speaker, self._commands_max), begin=begin)
        return [
            group.create_task(speaker.offers.announce(host)),
            group.create_task(speaker.offers.listen(host)),
        ]

    async def _fall_silent(self, speaking: list[asyncio.Task[None]]) -> None:
        """Take no offers any more, and say so."""
        for task in speaking:
            task.cancel()
        if self._speaker is not None:
            await self._speaker.offers.say(self._beat(self._speaker, 0))

    def _beat(self, speaker: Speaker, capacity: int) -> WorkerBeat:
        return WorkerBeat(
            worker_id=speaker.worker_id,
            pool=speaker.pool,
            lanes=speaker.lanes,
            running=len(self._attended),
            capacity=capacity,
            locality=speaker.locality,
            max_distance=speaker.max_distance,
            store_waits=patience.WAITS.count,
        )

    async def _attend_offer(self, offers: Offers, command: Command, data: bytes) -> None:
        delivery = await offers.ask(command, data)
        if delivery is not None:
            await self._attend(delivery)

    def _begin(self, deliveries: list[Delivery], group: asyncio.TaskGroup) -> None:
        for delivery in deliveries:
            self._attend_in(group, self._attend(delivery), delivery.subject)

    def _attend_in(
        self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None], subject: str
    ) -> None:
        task = group.create_task(work)
        self._attended.add(task)
        self._intake.took(subject)
        task.add_done_callback(partial(self._forget, subject))

    async def _attend(self, delivery: Delivery) -> None:
        try:
            await self._lane.attend(delivery)
        except Exception:
            # One delivery's misfortune must not end the others; unsettled, it comes again.
            log.exception("delivery not settled", subject=delivery.subject)

    def _forget(self, subject: str, task: asyncio.Task[None]) -> None:
        self._attended.discard(task)
        self._intake.ended(subject)
        self._has_room.set()

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._has_room.wait()
        except TimeoutError:
            return

    async def _finished(self, wait_s: float) -> bool:
        if not self._attended:
            return True
        _, left = await asyncio.wait(self._attended, timeout=wait_s)
        return not left
