"""Runs commands in the worker's event loop, each with its lease; the spark lane runs in waves."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog
from msgspec import Struct, structs

from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_chassis.observability import instruments, names, tracing
from noetl_contracts import subjects
from noetl_contracts.commands import command_work
from noetl_contracts.commands.command_work import Command, SlotWork, StepWork
from noetl_contracts.errors import MalformedMessage, Retryable
from noetl_contracts.events import command_events
from noetl_contracts.requests.facts import CommandHeartbeat, CommandStopped, Fact
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetters, Delivery, Hints
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.commands.call_pacer import CallPacer
from noetl_worker.commands.command_lease import (
    CancelledExecutions,
    CommandLease,
    Interruption,
    LeaseLost,
    Released,
    Stopped,
)
from noetl_worker.commands.command_progress import publish_progress, start_command_span
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.commands.fact_publisher import AttemptReporter, FactPublisher, ReportTooLarge
from noetl_worker.domain import lease_terms
from noetl_worker.domain.failures import build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.unit_identity import CallbackAddresses
from noetl_worker.payloads.payload_retry import bind_execution
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.runner.command_runner import build_lost, run_command
from noetl_worker.runner.unit_run import build_failed
from noetl_worker.spark.wave_runner import WaveRunner
from noetl_worker.task_logs.log_journal import LogJournal
from noetl_worker.tools import Tools

log = structlog.get_logger(__name__)


class HostServices(Struct, frozen=True, kw_only=True):
    """What a lane is made of."""

    tools: Tools
    payloads: Payloads
    remembered: PayloadCache
    fact_publisher: FactPublisher
    mask: SecretMask
    hints: Hints
    dead_letters: DeadLetters
    pool: str
    lease_s: float
    commands_max: int
    cancelled_executions: CancelledExecutions
    pacer: CallPacer
    callbacks: CallbackAddresses = CallbackAddresses()
    # What playbooks read as the store of a result.
    backend: str = "memory"
    # Of the spark lane: its frames run in waves.
    waves: WaveRunner | None = None
    # Longer waits of tasks let the worker go.
    held_wait_s: float = 5.0


class CommandHost:
    """Attends to deliveries of commands until each is settled or lost."""

    def __init__(self, lane: HostServices) -> None:
        self._lane = lane
        self._hold_by_fence: dict[tuple[str, int], CommandLease] = {}
        self._is_draining = False

    @property
    def running_count(self) -> int:
        """Return how many commands run."""
        return len(self._hold_by_fence)

    def drain_slots(self) -> None:
        """Let slots end after the frame that they are at."""
        self._is_draining = True
        for hold in self._hold_by_fence.values():
            hold.leaving.set()

    def release_commands(self) -> None:
        """Give back everything that still runs."""
        for hold in self._hold_by_fence.values():
            hold.interrupt_work(Released())

    async def handle_delivery(self, delivery: Delivery) -> None:
        """Run the command of a delivery, or refuse it by its fence."""
        try:
            command = command_work.decode_command(delivery.data)
        except MalformedMessage as problem:
            about = subjects.parse_command_subject(delivery.subject)
            share = about.tenant_id if about.is_own else None
            name = topology.build_worker_consumer(self._lane.pool, about.lane, share)
            await self._lane.dead_letters.bury_delivery(
                delivery, stream=topology.COMMANDS, consumer=name, reason=str(problem)
            )
            return
        fence = (command.command_id, command.attempt)
        running = self._hold_by_fence.get(fence)
        if running is not None:
            await running.adopt_delivery(delivery)
            return
        if delivery.delivery_count > 1:
            # The worker that had it may still run it: only a new attempt may run it here.
            await self._publish_fact(
                command, build_lost(command, command_events.REDELIVERED), key="lost"
            )
            await delivery.ack()
            return
        if command.execution_id in self._lane.cancelled_executions:
            await self._publish_fact(
                command, _build_stopped(command, self._lane.fact_publisher), key="stopped"
            )
            await delivery.ack()
            return
        await pass_failpoint(Failpoint.WORKER_CLAIMED)
        await self._hold_command(command, delivery, fence)

    async def listen_for_cancellations(self) -> None:
        """Receive hints of halted executions, and run waves of the spark lane."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lane.cancelled_executions.listen_for_cancellations())
            if self._lane.waves is not None:
                group.create_task(self._lane.waves.serve_waves())

    async def _hold_command(
        self, command: Command, delivery: Delivery, fence: tuple[str, int]
    ) -> None:
        lane = self._lane
        lease = lease_terms.fit_lease(
            lease_s=command.lease_s, heartbeat_s=command.heartbeat_s, ack_wait_s=lane.lease_s
        )
        hold = CommandLease(delivery, lease=lease, clock=lane.fact_publisher.clock)
        if hold.is_over:
            # It comes again, or has come to another worker already: only that one may settle it.
            instruments.add_to_counter(names.LEASES_LOST)
            log.warning(
                "command delivered after its lease ended", step=command.step, age_s=delivery.age_s
            )
            return
        if self._is_draining:
            hold.leaving.set()
        self._hold_by_fence[fence] = hold
        instruments.add_to_counter(names.COMMANDS_TAKEN, labels={names.LANE: command.lane})
        instruments.set_gauge(names.COMMANDS_RUNNING, self.running_count)
        try:
            with (
                _bind_log_context(command),
                bind_execution(command.execution_id),
                start_command_span(command, sent_by=delivery.traceparent),
            ):
                await self._run_command(command, hold, lease.heartbeat_s)
        finally:
            del self._hold_by_fence[fence]
            instruments.set_gauge(names.COMMANDS_RUNNING, self.running_count)

    async def _run_command(self, command: Command, hold: CommandLease, heartbeat_s: float) -> None:
        """Work until the end or an interruption, and settle accordingly."""
        spoken_for = structs.replace(command, traceparent=tracing.get_traceparent())
        reporter = AttemptReporter(
            fact_publisher=self._lane.fact_publisher,
            command=spoken_for,
            holder=hold.holder_name,
            count_file_entries=self._lane.tools.lender.count_entries,
        )
        interruptions: list[Interruption] = []
        try:
            async with asyncio.TaskGroup() as group:
                await self._work_until_settled(command, hold, reporter, group, heartbeat_s)
        except* Interruption as interruption_group:
            interruptions = [
                exception
                for exception in interruption_group.exceptions
                if isinstance(exception, Interruption)
            ]
        await self._settle_command(command, hold, interruptions[0] if interruptions else None)

    async def _work_until_settled(
        self,
        command: Command,
        hold: CommandLease,
        reporter: AttemptReporter,
        group: asyncio.TaskGroup,
        heartbeat_s: float,
    ) -> None:
        side_tasks: list[asyncio.Task[None]] = []
        clock = self._lane.fact_publisher.clock
        services = self._build_services(command, hold)

        def on_beat() -> None:
            if clock.monotonic_s() - reporter.last_report_at >= heartbeat_s:
                reporter.report_facts(self._build_heartbeat(command))

        def start_side_tasks() -> None:
            side_tasks.append(group.create_task(hold.extend_until_settled(on_beat=on_beat)))
            side_tasks.append(group.create_task(reporter.publish_until_cancelled()))
            side_tasks.append(group.create_task(self._listen_for_stop(command, hold)))
            if isinstance(command.work, StepWork):
                hint_listener = services.progress.listen_for_hints(
                    self._lane.hints, command.command_id
                )
                side_tasks.append(group.create_task(hint_listener))
            if isinstance(command.work, SlotWork):
                side_tasks.append(group.create_task(self._listen_for_pause(command, hold)))
            reporter.report_started()

        try:
            with hold.extend_when_lasting(start_side_tasks):
                if not await _run_to_end(command, services, reporter, hold):
                    reporter.report_facts(
                        build_lost(command, command_events.RELEASED, is_release=True)
                    )
                await services.journal.flush_lines()
                await self._flush_facts(command, services, reporter)
        except asyncio.CancelledError:
            await services.journal.abandon_log()
            raise
        for side_task in side_tasks:
            side_task.cancel()

    def _build_heartbeat(self, command: Command) -> CommandHeartbeat:
        return CommandHeartbeat(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=self._lane.fact_publisher.worker_id,
            running=self.running_count,
            capacity=self._lane.commands_max,
        )

    async def _flush_facts(
        self, command: Command, services: CommandServices, reporter: AttemptReporter
    ) -> None:
        try:
            await reporter.flush_facts()
        except ReportTooLarge as problem:
            reporter.report_facts(
                build_failed(command, services, build_error("payload_too_large", str(problem)))
            )
            await reporter.flush_facts()

    async def _settle_command(
        self, command: Command, hold: CommandLease, interruption: Interruption | None
    ) -> None:
        """Report an interruption where there is something to report, then ack."""
        outcome = "ended" if interruption is None else type(interruption).__name__.lower()
        instruments.add_to_counter(names.COMMANDS_ENDED, labels={names.OUTCOME: outcome})
        match interruption:
            case LeaseLost():
                instruments.add_to_counter(names.LEASES_LOST)
                log.warning("lease lost, work stopped", step=command.step)
                # The work has stopped and its fence is old news soon: say so at once.
                await self._publish_fact(
                    command, build_lost(command, command_events.LEASE_LOST), key="lease-lost"
                )
            case Stopped():
                await self._publish_fact(
                    command, _build_stopped(command, self._lane.fact_publisher), key="stopped"
                )
            case Released():
                command_lost = build_lost(command, command_events.RELEASED, is_release=True)
                await self._publish_fact(command, command_lost, key="released")
            case _:
                pass
        try:
            await pass_failpoint(Failpoint.WORKER_ACK_BEFORE)
            await hold.ack()
            await pass_failpoint(Failpoint.WORKER_ACK_AFTER)
        except Retryable as problem:
            # The facts are stored: a redelivery finds the command terminal.
            log.warning("command not acknowledged", reason=str(problem))

    async def _listen_for_stop(self, command: Command, hold: CommandLease) -> None:
        """Stop the command when the planner says so; a lost hint costs only time."""
        try:
            async for _ in self._lane.hints.listen_for_hints(
                subjects.build_stop_hint(command.command_id)
            ):
                hold.interrupt_work(Stopped())
        except Retryable as problem:
            log.info("hints of cancellation interrupted", reason=str(problem))

    async def _listen_for_pause(self, command: Command, hold: CommandLease) -> None:
        """Let a slot end before its next claim when its execution is held."""
        try:
            async for _ in self._lane.hints.listen_for_hints(
                subjects.build_pause_hint(command.command_id)
            ):
                hold.leaving.set()
        except Retryable as problem:
            log.info("hints of a pause interrupted", reason=str(problem))

    async def _publish_fact(self, command: Command, fact: Fact, *, key: str) -> None:
        """Publish one fact outside a reporter; raises `TimeoutError` after a lease's time."""
        async with asyncio.timeout(self._lane.lease_s):
            await self._lane.fact_publisher.publish_facts(
                command, [fact], key=f"{command.command_id}/{command.attempt}/{key}"
            )

    def _build_services(self, command: Command, hold: CommandLease) -> CommandServices:
        lane = self._lane
        place = PayloadOwner(tenant_id=command.tenant_id, organization_id=command.organization_id)
        payloads = TenantPayloads(lane.payloads, place=place, cache=lane.remembered)
        return CommandServices(
            tools=lane.tools,
            payloads=payloads,
            keeper=ResultStore(payloads=payloads, mask=lane.mask, backend=lane.backend),
            mask=lane.mask,
            clock=lane.fact_publisher.clock,
            worker_id=lane.fact_publisher.worker_id,
            callbacks=lane.callbacks,
            pacer=lane.pacer,
            journal=LogJournal(
                command,
                payloads=payloads,
                mask=lane.mask,
                clock=lane.fact_publisher.clock,
                worker_id=lane.fact_publisher.worker_id,
            ),
            lease=hold,
            waves=lane.waves,
            held_wait_s=lane.held_wait_s,
            tell_progress=partial(publish_progress, lane.hints, command),
        )


async def _run_to_end(
    command: Command, services: CommandServices, reporter: AttemptReporter, hold: CommandLease
) -> bool:
    """Do the work; a defect in one command's work is that command's failure, not the worker's."""
    try:
        return await run_command(
            command, services=services, reporter=reporter, draining=hold.leaving
        )
    except Exception as problem:
        log.exception("command failed with an internal error")
        text = f"the worker could not run step '{command.step}': {type(problem).__name__}"
        reporter.report_facts(build_failed(command, services, build_error("internal", text)))
        return True


@contextmanager
def _bind_log_context(command: Command) -> Iterator[None]:
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


def _build_stopped(command: Command, fact_publisher: FactPublisher) -> CommandStopped:
    return CommandStopped(
        command_id=command.command_id, attempt=command.attempt, worker_id=fact_publisher.worker_id
    )
