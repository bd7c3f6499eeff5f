"""The worker's loop: fetches commands, runs each, and releases the rest at shutdown."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog
from msgspec import Struct

from noetl_chassis.loop import LoopHealth, run_while_busy
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.held_commands import HeldCommands
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.ids import WorkerId
from noetl_messaging.streams.ports import Delivery, Hints
from noetl_worker.commands.intake import Intake, SharedIntake
from noetl_worker.commands.offers import OfferHost, OfferIntake, build_offer_subject
from noetl_worker.commands.roll_call import HeldDeliveries, answer_roll_calls
from noetl_worker.payloads import payload_retry
from noetl_worker.runner.command_host import CommandHost

log = structlog.get_logger(__name__)

_RELEASE_S = 10.0


class PresenceAnnouncer(Struct, frozen=True, kw_only=True):
    """Announces a worker to planners and the reaper, and receives the planners' offers."""

    offers: OfferIntake
    hints: Hints
    worker_id: WorkerId
    pool: str
    lanes: tuple[str, ...]
    locality: dict[str, str]
    max_distance: str
    takes_offers: bool = True
    tenants: tuple[str, ...] = ()
    # Names the walls around tasks that this machine does not grant; None: none was tried yet.
    find_missing_walls: Callable[[], tuple[str, ...] | None] = lambda: None


class Worker:
    """Runs the commands of one pool with bounded concurrency."""

    def __init__(
        self,
        *,
        intake: Intake | SharedIntake,
        lane: CommandHost,
        commands_max: int,
        messages_max: int,
        wait_s: float,
        presence_announcer: PresenceAnnouncer | None = None,
    ) -> None:
        self._intake = intake
        self._lane = lane
        self._commands_max = commands_max
        self._messages_max = messages_max
        self._wait_s = wait_s
        self._announcer = presence_announcer
        self._handled_tasks: set[asyncio.Task[None]] = set()
        self._held_deliveries = HeldDeliveries()
        self._has_room = asyncio.Event()

    async def run(self, *, stop: asyncio.Event, loop_health: LoopHealth, drain_s: float) -> None:
        """Take turns until `stop`, then let work finish, then give the rest back."""
        async with asyncio.TaskGroup() as group:
            listening = [
                group.create_task(self._lane.listen_for_cancellations()),
                *self._start_answering(group),
            ]
            speaking = self._start_announcing(group)
            await run_while_busy(
                lambda: self.run_turn(group),
                idle_s=0.0,
                stop=stop,
                name="commands",
                loop_health=loop_health,
            )
            await self._stop_announcing(speaking)
            self._handle_deliveries(await self._intake.close(), group)
            self._lane.drain_slots()
            if not await self._wait_until_finished(drain_s):
                log.info("releasing unfinished commands", commands=self._lane.running_count)
                self._lane.release_commands()
                await self._wait_until_finished(_RELEASE_S)
            for task in (*listening, *self._handled_tasks):
                task.cancel()

    async def run_turn(self, group: asyncio.TaskGroup) -> int:
        """Fetch as many commands as there is room for and start them; return how many."""
        free = self._commands_max - len(self._handled_tasks)
        if free <= 0:
            await self._wait_for_room()
            return 0
        deliveries = await self._intake.fetch_deliveries(
            group, free=free, messages_max=self._messages_max, wait_s=self._wait_s
        )
        self._handle_deliveries(deliveries, group)
        return len(deliveries)

    def _start_answering(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Say what this worker holds when it is asked, for as long as it holds anything."""
        announcer = self._announcer
        if announcer is None:
            return []

        def build_answer(call: str) -> HeldCommands:
            return HeldCommands(
                call=call,
                worker_id=announcer.worker_id,
                pool=announcer.pool,
                lanes=announcer.lanes,
                sequences=self._held_deliveries.list_sequences(),
            )

        return [group.create_task(answer_roll_calls(announcer.hints, build_answer))]

    def _start_announcing(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Say how this worker is, and take what it is offered while it has room."""
        presence_announcer = self._announcer
        if presence_announcer is None:
            return []

        def begin_offer(command: Command, data: bytes) -> None:
            handling = self._handle_offer(presence_announcer.offers, command, data)
            self._start_handling(group, handling, build_offer_subject(command))

        host = OfferHost(
            beat=lambda: self._build_beat(presence_announcer, self._commands_max),
            begin=begin_offer,
        )
        speaking = [group.create_task(presence_announcer.offers.announce_presence(host))]
        if presence_announcer.takes_offers:
            listening = presence_announcer.offers.listen_for_offers(host)
            speaking.append(group.create_task(listening))
        return speaking

    async def _stop_announcing(self, speaking: list[asyncio.Task[None]]) -> None:
        """Take no offers any more, and say so."""
        for task in speaking:
            task.cancel()
        if self._announcer is not None:
            await self._announcer.offers.publish_beat(self._build_beat(self._announcer, 0))

    def _build_beat(self, presence_announcer: PresenceAnnouncer, capacity: int) -> WorkerHeartbeat:
        return WorkerHeartbeat(
            worker_id=presence_announcer.worker_id,
            pool=presence_announcer.pool,
            lanes=presence_announcer.lanes,
            running=len(self._handled_tasks),
            capacity=capacity,
            locality=presence_announcer.locality,
            max_distance=presence_announcer.max_distance,
            store_waits=payload_retry.WAITS.count,
            store_waiting=payload_retry.WAITS.list_executions(),
            takes_offers=presence_announcer.takes_offers,
            tenants=presence_announcer.tenants,
            takes_batches=True,
            missing_walls=presence_announcer.find_missing_walls(),
        )

    async def _handle_offer(self, offers: OfferIntake, command: Command, data: bytes) -> None:
        delivery = await offers.request_grant(command, data)
        if delivery is not None:
            self._held_deliveries.add_delivery(delivery)
            await self._handle_delivery(delivery)

    def _handle_deliveries(self, deliveries: list[Delivery], group: asyncio.TaskGroup) -> None:
        for delivery in deliveries:
            self._held_deliveries.add_delivery(delivery)
            self._start_handling(group, self._handle_delivery(delivery), delivery.subject)

    def _start_handling(
        self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None], subject: str
    ) -> None:
        task = group.create_task(work)
        self._handled_tasks.add(task)
        self._intake.count_started(subject)
        task.add_done_callback(partial(self._forget_task, subject))

    async def _handle_delivery(self, delivery: Delivery) -> None:
        try:
            await self._lane.handle_delivery(delivery)
        except Exception:
            # One delivery's misfortune must not end the others; unsettled, it comes again.
            log.exception("delivery not settled", subject=delivery.subject)
        finally:
            self._held_deliveries.remove_delivery(delivery)

    def _forget_task(self, subject: str, task: asyncio.Task[None]) -> None:
        self._handled_tasks.discard(task)
        self._intake.count_ended(subject)
        self._has_room.set()

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._has_room.wait()
        except TimeoutError:
            return

    async def _wait_until_finished(self, wait_s: float) -> bool:
        if not self._handled_tasks:
            return True
        _, unfinished = await asyncio.wait(self._handled_tasks, timeout=wait_s)
        return not unfinished
