"""What an executor runs: the frames of one partition of a wave, and what becomes of each.

A second composition root, inside Spark's Python processes: it reads the same variables as a worker
(an executor's environment has to have them), opens the same stores and tools once per process, and
keeps them for the waves to come.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache

import structlog
from msgspec import Struct, structs

from noetl_chassis import identity
from noetl_chassis.clock import Clock, SystemClock
from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import Fact
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.registers import JetStreamRegisters
from noetl_messaging.streams.ports import Message, Registers
from noetl_playbook.templates.expressions import TemplateError
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker import settings, wiring
from noetl_worker.commands.call_pacer import CallPacer
from noetl_worker.commands.command_context import build_template_error
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.commands.fact_publisher import (
    AttemptReporter,
    FactPublisher,
    ReportRoute,
    ReportTooLarge,
)
from noetl_worker.domain import waves
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.frames import Frame, FrameOutcome, FrameRecord
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.waves import FrameManifest, WaveFrame, WavePartition
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.runner.command_runner import prepare_command, run_command
from noetl_worker.runner.frame_outcome import run_recorded_frame
from noetl_worker.runner.unit_run import build_failed
from noetl_worker.settings import Settings
from noetl_worker.spark.wave_manifests import ManifestBundler, WaveManifests
from noetl_worker.task_logs.log_journal import LogJournal
from noetl_worker.tool_factory import open_tools
from noetl_worker.tools import Tools

# One waits for the stores while the other computes.
FRAMES_AT_ONCE = 2

log = structlog.get_logger(__name__)


def run_partition(shares: Iterable[bytes]) -> Iterator[bytes]:
    """Run every frame of a partition; yield one manifest for each that ended here."""
    host = _get_executor_thread()
    for data in shares:
        yield from host.run_partition(codec.decode_as(data, WavePartition))


class _CollectingPublisher:
    """A publisher that keeps what it is given: the driver publishes, under its own lease."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    async def publish_message(self, message: Message) -> None:
        """Keep the facts of a message."""
        self.facts += facts.decode_fact_batch(message.data).facts

    async def publish_batch(self, messages: Sequence[Message]) -> list[bool]:
        """Keep the facts of several messages."""
        for message in messages:
            await self.publish_message(message)
        return [True for _ in messages]


class _LazyRegisters:
    """Registers that connect when a task's pace is first limited: most never are."""

    def __init__(self, config: Settings, stack: AsyncExitStack) -> None:
        self._config = config
        self._stack = stack
        self._opening = asyncio.Lock()
        self._registers: Registers | None = None

    async def find_value(self, name: str) -> tuple[int, bytes] | None:
        """Return a value with its revision, or None."""
        return await (await self._open_registers()).find_value(name)

    async def swap_value(self, name: str, data: bytes, *, revision: int) -> int | None:
        """Replace a value of that revision."""
        return await (await self._open_registers()).swap_value(name, data, revision=revision)

    async def _open_registers(self) -> Registers:
        async with self._opening:
            if self._registers is None:
                config = self._config
                nats = await self._stack.enter_async_context(
                    open_connection(
                        config.nats_url,
                        name=identity.build_instance_name("executor"),
                        waits=ConnectionTimeouts(connect_s=config.connect_s),
                    )
                )
                self._registers = JetStreamRegisters(nats)
            return self._registers


class WaveExecutor(Struct, frozen=True, kw_only=True):
    """The opened stores and tools of one process, and the frames that it runs with them."""

    payloads: Payloads
    remembered: PayloadCache
    tools: Tools
    mask: SecretMask
    clock: Clock
    pacer: CallPacer
    backend: str

    async def run_frames(self, share: WavePartition) -> list[bytes]:
        """Run a share's frames; return the manifests of those that ended.

        A share that another task has taken is not run again: what that one left is returned.
        """
        payloads = TenantPayloads(
            self.payloads,
            place=PayloadOwner(tenant_id=share.tenant_id, organization_id=share.organization_id),
            cache=self.remembered,
        )
        holder = identity.mint_token()
        name = waves.build_claim_name(share.name, share.part)
        # An answer that got lost leaves our own claim behind.
        if await payloads.put_named(name, holder.encode()) not in {None, holder.encode()}:
            return await WaveManifests(share.name, payloads).read_manifests(share.part)
        bundler = ManifestBundler(share, payloads)
        async with open_task_group() as writers:
            writers.create_task(bundler.write_bundles())
            frame_ends = await self._run_all_frames(share, payloads, bundler, holder=holder)
            bundler.close()
        return frame_ends

    async def _run_all_frames(
        self,
        share: WavePartition,
        payloads: TenantPayloads,
        bundler: ManifestBundler,
        *,
        holder: str,
    ) -> list[bytes]:
        """Run a share's frames, a few at once; return their manifests in order."""
        room = asyncio.Semaphore(FRAMES_AT_ONCE)

        async def run_one_frame(wave_frame: WaveFrame) -> bytes:
            async with room:
                services = self._build_services(share, payloads, wave_frame.command)
                data = self.mask.mask_bytes(
                    codec.encode_json(await self._run_wave_frame(wave_frame, services, holder))
                )
            bundler.add_manifest(data)
            return data

        async with open_task_group() as group:
            frame_tasks = [
                group.create_task(run_one_frame(wave_frame)) for wave_frame in share.frames
            ]
        return [task.result() for task in frame_tasks]

    async def _run_wave_frame(
        self, wave_frame: WaveFrame, services: CommandServices, holder: str
    ) -> FrameManifest:
        """Run one frame, and say what became of it."""
        if wave_frame.frame is not None:
            return await self._run_slot_frame(wave_frame, wave_frame.frame, services)
        return waves.build_manifest(
            wave_frame, await self._run_to_fact(wave_frame, services, holder)
        )

    async def _run_slot_frame(
        self, wave_frame: WaveFrame, frame: Frame, services: CommandServices
    ) -> FrameManifest:
        """Run a frame that a slot has recorded; the slot reports it."""
        (outcome,) = await asyncio.gather(
            _run_recorded_frame(wave_frame, frame, services), return_exceptions=True
        )
        match outcome:
            case FrameOutcome():
                return waves.build_slot_manifest(wave_frame, frame, outcome)
            case ToolFailure():
                error = self.mask.mask_error(outcome.error)
            case TemplateError():
                error = self.mask.mask_error(
                    build_template_error(outcome, step=wave_frame.command.step)
                )
            case Exception():
                error = _build_defect_error(wave_frame, outcome)
            case _:
                raise outcome
        return waves.build_slot_manifest(wave_frame, frame, error)

    async def _run_to_fact(
        self, wave_frame: WaveFrame, services: CommandServices, holder: str
    ) -> Fact:
        """Run a frame as any lane does, and return the fact that ends it."""
        command = wave_frame.command
        fact_collector = _CollectingPublisher()
        fact_publisher = FactPublisher(
            publisher=fact_collector,
            worker_id=services.worker_id,
            route=ReportRoute(routes=IngestRoutes(shard_count=1)),
            mask=self.mask,
            clock=self.clock,
        )
        reporter = AttemptReporter(fact_publisher=fact_publisher, command=command, holder=holder)
        work = run_command(command, services=services, reporter=reporter, draining=asyncio.Event())
        # A defect in one frame's work is that frame's failure, not its neighbours'.
        (outcome,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(outcome, Exception):
            reporter.report_facts(
                build_failed(command, services, _build_defect_error(wave_frame, outcome))
            )
        try:
            await reporter.flush_facts()
        except ReportTooLarge as problem:
            reporter.report_facts(
                build_failed(command, services, build_error("payload_too_large", str(problem)))
            )
            await reporter.flush_facts()
        return fact_collector.facts[-1]

    def _build_services(
        self, share: WavePartition, payloads: TenantPayloads, command: Command
    ) -> CommandServices:
        return CommandServices(
            tools=self.tools,
            payloads=payloads,
            keeper=ResultStore(payloads=payloads, mask=self.mask, backend=self.backend),
            mask=self.mask,
            clock=self.clock,
            worker_id=share.worker_id,
            pacer=self.pacer,
            journal=LogJournal(
                command,
                payloads=payloads,
                mask=self.mask,
                clock=self.clock,
                worker_id=share.worker_id,
            ),
            may_park=False,
        )


async def _run_recorded_frame(
    wave_frame: WaveFrame, frame: Frame, services: CommandServices
) -> FrameOutcome:
    """Read a frame's rows where they are recorded, and run it."""
    block, context = await prepare_command(wave_frame.command, services)
    record = codec.convert_value(await services.payloads.load_value(frame.rows_ref), FrameRecord)
    return await run_recorded_frame(
        structs.replace(frame, rows=record.rows),
        block=block,
        context=context,
        services=services,
        may_leave_rows=wave_frame.may_leave_rows,
    )


def _build_defect_error(wave_frame: WaveFrame, problem: Exception) -> ErrorObject:
    step = wave_frame.command.step
    log.error("command failed with an internal error", step=step, exc_info=problem)
    text = f"the executor could not run step '{step}': {type(problem).__name__}"
    return build_error("internal", text, step=step)


@asynccontextmanager
async def open_executor(config: Settings) -> AsyncIterator[WaveExecutor]:
    """Open what frames need."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        payloads = await stack.enter_async_context(wiring.open_payload_store(config))
        tools, mask = await stack.enter_async_context(open_tools(config, payloads, clock))
        yield WaveExecutor(
            payloads=payloads,
            remembered=PayloadCache(bytes_max=config.payload_memory_bytes),
            tools=tools,
            mask=mask,
            clock=clock,
            pacer=CallPacer(registers=_LazyRegisters(config, stack), clock=clock),
            backend=wiring.get_payload_backend(config),
        )


class _ExecutorThread:
    """An event loop in a thread of its own, in which an executor lives between waves."""

    def __init__(self, config: Settings) -> None:
        self._ready: Future[tuple[asyncio.AbstractEventLoop, WaveExecutor]] = Future()
        self._config = config
        # Spark ends its Python processes without asking; what they started ends with its pipes.
        threading.Thread(target=self._run_event_loop, name="noetl-executor", daemon=True).start()

    def run_partition(self, share: WavePartition) -> list[bytes]:
        """Run a share; blocks until each of its frames has ended."""
        loop, executor = self._ready.result(self._config.connect_s * 2)
        return asyncio.run_coroutine_threadsafe(executor.run_frames(share), loop).result()

    def _run_event_loop(self) -> None:
        try:
            asyncio.run(self._serve_executor())
        except BaseException as problem:
            if not self._ready.done():
                self._ready.set_exception(problem)
            raise

    async def _serve_executor(self) -> None:
        async with open_executor(self._config) as executor:
            self._ready.set_result((asyncio.get_running_loop(), executor))
            await asyncio.Event().wait()


@cache
def _get_executor_thread() -> _ExecutorThread:
    """Open this process's executor, once; it keeps few user processes, as cores are Spark's."""
    config = settings.load_settings()
    processes = min(config.python_processes_max, FRAMES_AT_ONCE)
    return _ExecutorThread(structs.replace(config, python_processes_max=processes))
