"""Hosts commands in the worker's own event loop, one hold each; the spark lane's run in waves."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog
from msgspec import Struct, structs

from noetl_chassis import instruments, names, tracing
from noetl_chassis.failpoints import Point, reach
from noetl_contracts import commands, subjects
from noetl_contracts.commands import Command, SlotWork, StepWork
from noetl_contracts.errors import MalformedMessage, Retryable
from noetl_contracts.facts import CommandHeartbeat, CommandStopped, Fact
from noetl_messaging import topology
from noetl_messaging.ports import DeadLetters, Delivery, Hints
from noetl_storage.ports import Payloads
from noetl_worker.domain import heartbeat
from noetl_worker.domain.callbacks import Callbacks
from noetl_worker.domain.failures import failure
from noetl_worker.domain.masking import Mask
from noetl_worker.holding import Halts, Hold, Interruption, LeaseLost, Released, Stopped
from noetl_worker.keeping import Keeper
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.pacing import Pacer
from noetl_worker.lanes.progress_hints import tell_progress
from noetl_worker.lanes.tracing import command_span
from noetl_worker.lanes.waves import Waves
from noetl_worker.lanes.work import execute, failed, lost
from noetl_worker.reporting import Desk, Reporter, ReportTooLarge
from noetl_worker.stores import Place, Remembered, TenantPayloads
from noetl_worker.task_logs.log_journal import LogJournal
from noetl_worker.tools import Tools

log = structlog.get_logger(__name__)


class Lane(Struct, frozen=True, kw_only=True):
    """What a lane is made of."""

    tools: Tools
    payloads: Payloads
    remembered: Remembered
    desk: Desk
    mask: Mask
    hints: Hints
    dead_letters: DeadLetters
    pool: str
    lease_s: float
    commands_max: int
    halts: Halts
    pacer: Pacer
    callbacks: Callbacks = Callbacks()
    # What playbooks read as the store of a result.
    backend: str = "memory"
    # Of the spark lane: its frames run in waves.
    waves: Waves | None = None
    # Longer waits of tasks let the worker go.
    held_wait_s: float = 5.0


class IoLane:
    """Attends to deliveries of commands until each is settled or lost."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._hold_by_fence: dict[tuple[str, int], Hold] = {}
        self._is_draining = False

    @property
    def running(self) -> int:
        """Return how many commands run."""
        return len(self._hold_by_fence)

    def drain(self) -> None:
        """Let slots end after the frame that they are at."""
        self._is_draining = True
        for hold in self._hold_by_fence.values():
            hold.leaving.set()

    def release(self) -> None:
        """Give back everything that still runs."""
        for hold in self._hold_by_fence.values():
            hold.interrupt(Released())

    async def attend(self, delivery: Delivery) -> None:
        """Run the command of a delivery, or refuse it by its fence."""
        try:
            command = commands.decode(delivery.data)
        except MalformedMessage as problem:
            about = subjects.parse_command(delivery.subject)
            share = about.tenant_id if about.is_own else None
            name = topology.worker_consumer(self._lane.pool, about.lane, share)
            await self._lane.dead_letters.bury(
                delivery, stream=topology.COMMANDS, consumer=name, reason=str(problem)
            )
            return
        fence = (command.command_id, command.attempt)
        running = self._hold_by_fence.get(fence)
        if running is not None:
            await running.adopt(delivery)
            return
        if delivery.delivered > 1:
            # Whoever had it may still be at work: only a new attempt may run it.
            await self._report_alone(command, lost(command, "redelivered"), key="lost")
            await delivery.ack()
            return
        if command.execution_id in self._lane.halts:
            await self._report_alone(command, _stopped(command, self._lane.desk), key="stopped")
            await delivery.ack()
            return
        await reach(Point.WORKER_CLAIMED)
        await self._hold(command, delivery, fence)

    async def listen(self) -> None:
        """Hear of executions whose commands are not to begin any more; start waves."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lane.halts.listen())
            if self._lane.waves is not None:
                group.create_task(self._lane.waves.serve())

    async def _hold(self, command: Command, delivery: Delivery, fence: tuple[str, int]) -> None:
        lane = self._lane
        lease = heartbeat.lease(
            lease_s=command.lease_s, heartbeat_s=command.heartbeat_s, ack_wait_s=lane.lease_s
        )
        hold = Hold(delivery, lease=lease, clock=lane.desk.clock)
        if hold.is_over:
            # It comes again, or has come to another worker already: only that one may settle it.
            instruments.count(names.LEASES_LOST)
            log.warning("a command came after its lease", step=command.step, age_s=delivery.age_s)
            return
        if self._is_draining:
            hold.leaving.set()
        self._hold_by_fence[fence] = hold
        instruments.count(names.COMMANDS_TAKEN, labels={names.LANE: command.lane})
        instruments.show(names.COMMANDS_RUNNING, self.running)
        try:
            with _about(command), command_span(command, sent_by=delivery.traceparent):
                await self._run(command, hold, lease.heartbeat_s)
        finally:
            del self._hold_by_fence[fence]
            instruments.show(names.COMMANDS_RUNNING, self.running)

    async def _run(self, command: Command, hold: Hold, heartbeat_s: float) -> None:
        """Work until the end or an interruption, and settle accordingly."""
        spoken_for = structs.replace(command, traceparent=tracing.traceparent())
        reporter = Reporter(
            desk=self._lane.desk,
            command=spoken_for,
            holder=hold.name,
            count_file_entries=self._lane.tools.lender.count_entries,
        )
        interruptions: list[Interruption] = []
        try:
            async with asyncio.TaskGroup() as group:
                await self._work(command, hold, reporter, group, heartbeat_s)
        except* Interruption as several:
            interruptions = [one for one in several.exceptions if isinstance(one, Interruption)]
        await self._settle(command, hold, interruptions[0] if interruptions else None)

    async def _work(
        self,
        command: Command,
        hold: Hold,
        reporter: Reporter,
        group: asyncio.TaskGroup,
        heartbeat_s: float,
    ) -> None:
        attendants: list[asyncio.Task[None]] = []
        clock = self._lane.desk.clock
        hands = self._hands(command)

        def on_beat() -> None:
            if clock.monotonic() - reporter.last_report_at >= heartbeat_s:
                reporter.report(self._beat(command))

        def attend() -> None:
            attendants.append(group.create_task(hold.keep(on_beat=on_beat)))
            attendants.append(group.create_task(reporter.run()))
            attendants.append(group.create_task(self._listen(command, hold)))
            if isinstance(command.work, StepWork):
                heard = hands.progress.listen(self._lane.hints, command.command_id)
                attendants.append(group.create_task(heard))
            if isinstance(command.work, SlotWork):
                attendants.append(group.create_task(self._listen_for_pause(command, hold)))
            reporter.started()

        try:
            with hold.lasting(attend):
                if not await _done(command, hands, reporter, hold):
                    reporter.report(lost(command, "released", is_release=True))
                await hands.journal.flush()
                await self._flush(command, hands, reporter)
        except asyncio.CancelledError:
            await hands.journal.abandon()
            raise
        for attendant in attendants:
            attendant.cancel()

    def _beat(self, command: Command) -> CommandHeartbeat:
        return CommandHeartbeat(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=self._lane.desk.worker_id,
            running=self.running,
            capacity=self._lane.commands_max,
        )

    async def _flush(self, command: Command, hands: Hands, reporter: Reporter) -> None:
        try:
            await reporter.flush()
        except ReportTooLarge as problem:
            reporter.report(failed(command, hands, failure("payload_too_large", str(problem))))
            await reporter.flush()

    async def _settle(
        self, command: Command, hold: Hold, interruption: Interruption | None
    ) -> None:
        """Report an interruption where there is something to report, then ack."""
        outcome = "ended" if interruption is None else type(interruption).__name__.lower()
        instruments.count(names.COMMANDS_ENDED, labels={names.OUTCOME: outcome})
        match interruption:
            case LeaseLost():
                instruments.count(names.LEASES_LOST)
                log.warning("lease lost, work stopped", step=command.step)
                # The work has stopped and its fence is old news soon: say so at once.
                await self._report_alone(command, lost(command, "lease_lost"), key="lease-lost")
            case Stopped():
                await self._report_alone(command, _stopped(command, self._lane.desk), key="stopped")
            case Released():
                left = lost(command, "released", is_release=True)
                await self._report_alone(command, left, key="released")
            case _:
                pass
        try:
            await reach(Point.WORKER_ACK_BEFORE)
            await hold.ack()
            await reach(Point.WORKER_ACK_AFTER)
        except Retryable as problem:
            # The facts are stored: a redelivery finds the command terminal.
            log.warning("command not acknowledged", reason=str(problem))

    async def _listen(self, command: Command, hold: Hold) -> None:
        """Stop the command when the planner says so; a lost hint costs only time."""
        try:
            async for _ in self._lane.hints.listen(subjects.stop(command.command_id)):
                hold.interrupt(Stopped())
        except Retryable as problem:
            log.info("not listening for a stop", reason=str(problem))

    async def _listen_for_pause(self, command: Command, hold: Hold) -> None:
        """Let a slot end before its next claim when its execution is held."""
        try:
            async for _ in self._lane.hints.listen(subjects.pause(command.command_id)):
                hold.leaving.set()
        except Retryable as problem:
            log.info("not listening for a pause", reason=str(problem))

    async def _report_alone(self, command: Command, fact: Fact, *, key: str) -> None:
        """Publish one fact outside a reporter; raises `TimeoutError` after a lease's time."""
        async with asyncio.timeout(self._lane.lease_s):
            await self._lane.desk.publish(
                command, [fact], key=f"{command.command_id}/{command.attempt}/{key}"
            )

    def _hands(self, command: Command) -> Hands:
        lane = self._lane
        place = Place(tenant_id=command.tenant_id, organization_id=command.organization_id)
        payloads = TenantPayloads(lane.payloads, place=place, remembered=lane.remembered)
        return Hands(
            tools=lane.tools,
            payloads=payloads,
            keeper=Keeper(payloads=payloads, mask=lane.mask, backend=lane.backend),
            mask=lane.mask,
            clock=lane.desk.clock,
            worker_id=lane.desk.worker_id,
            callbacks=lane.callbacks,
            pacer=lane.pacer,
            journal=LogJournal(
                command,
                payloads=payloads,
                mask=lane.mask,
                clock=lane.desk.clock,
                worker_id=lane.desk.worker_id,
            ),
            waves=lane.waves,
            held_wait_s=lane.held_wait_s,
            tell_progress=partial(tell_progress, lane.hints, command),
        )


async def _done(command: Command, hands: Hands, reporter: Reporter, hold: Hold) -> bool:
    """Do the work; a defect in one command's work is that command's failure, not the worker's."""
    try:
        return await execute(command, hands=hands, reporter=reporter, draining=hold.leaving)
    except Exception as problem:
        log.exception("work ended in a defect")
        text = f"the worker could not run step '{command.step}': {type(problem).__name__}"
        reporter.report(failed(command, hands, failure("internal", text)))
        return True


@contextmanager
def _about(command: Command) -> Iterator[None]:
    """Name the command in every log line of its work."""
    bound = structlog.contextvars.bind_contextvars(
        **{
            names.FIELD_EXECUTION: command.execution_id,
            names.FIELD_COMMAND: command.command_id,
            names.FIELD_STEP: command.step,
            names.FIELD_TENANT: command.tenant_id,
        }
    )
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**bound)


def _stopped(command: Command, desk: Desk) -> CommandStopped:
    return CommandStopped(
        command_id=command.command_id, attempt=command.attempt, worker_id=desk.worker_id
    )
