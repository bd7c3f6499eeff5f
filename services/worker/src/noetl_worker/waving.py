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
from noetl_chassis.payload_sealing import read_keys
from noetl_chassis.together import together
from noetl_contracts import codec, facts
from noetl_contracts.commands import Command
from noetl_contracts.errors import ErrorObject
from noetl_contracts.facts import Fact
from noetl_messaging.jetstream.connection import Waits, open_connection
from noetl_messaging.jetstream.registers import JetStreamRegisters
from noetl_messaging.ports import Message, Registers
from noetl_playbook.expressions import TemplateError
from noetl_storage.payloads import managed
from noetl_storage.payloads.open import open_payloads
from noetl_storage.ports import Payloads
from noetl_worker import assembly, settings
from noetl_worker.domain import waves
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.frames import Frame, FrameRecord, Ran
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.waves import Manifest, Placed, Share
from noetl_worker.keeping import Keeper
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.manifests import Bundler, Logbook
from noetl_worker.lanes.pacing import Pacer
from noetl_worker.lanes.recorded import run_recorded
from noetl_worker.lanes.unit import template_failure
from noetl_worker.lanes.work import execute, failed, prepare
from noetl_worker.opening import open_tools
from noetl_worker.reporting import Desk, Reporter, ReportTooLarge
from noetl_worker.settings import Settings
from noetl_worker.stores import Place, Remembered, TenantPayloads
from noetl_worker.task_logs.log_journal import LogJournal
from noetl_worker.tools import Tools

# One waits for the stores while the other computes.
FRAMES_AT_ONCE = 2

log = structlog.get_logger(__name__)


def run_share(shares: Iterable[bytes]) -> Iterator[bytes]:
    """Run every frame of a partition; yield one manifest for each that ended here."""
    host = _host()
    for data in shares:
        yield from host.run(codec.decode_as(data, Share))


class _Collected:
    """A publisher that keeps what it is given: the driver publishes, under its own lease."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    async def publish(self, message: Message) -> None:
        """Keep the facts of a message."""
        self.facts += facts.decode_batch(message.data).facts

    async def publish_all(self, messages: Sequence[Message]) -> list[bool]:
        """Keep the facts of several messages."""
        for message in messages:
            await self.publish(message)
        return [True for _ in messages]


class _LateRegisters:
    """Registers that connect when a task's pace is first limited: most never are."""

    def __init__(self, config: Settings, stack: AsyncExitStack) -> None:
        self._config = config
        self._stack = stack
        self._opening = asyncio.Lock()
        self._opened: Registers | None = None

    async def find(self, name: str) -> tuple[int, bytes] | None:
        """Return a value with its revision, or None."""
        return await (await self._registers()).find(name)

    async def swap(self, name: str, data: bytes, *, revision: int) -> int | None:
        """Replace a value of that revision."""
        return await (await self._registers()).swap(name, data, revision=revision)

    async def _registers(self) -> Registers:
        async with self._opening:
            if self._opened is None:
                config = self._config
                nats = await self._stack.enter_async_context(
                    open_connection(
                        config.nats_url,
                        name=identity.instance_name("executor"),
                        waits=Waits(connect_s=config.connect_s),
                    )
                )
                self._opened = JetStreamRegisters(nats)
            return self._opened


class Executor(Struct, frozen=True, kw_only=True):
    """The opened stores and tools of one process, and the frames that it runs with them."""

    payloads: Payloads
    remembered: Remembered
    tools: Tools
    mask: Mask
    clock: Clock
    pacer: Pacer
    backend: str

    async def run(self, share: Share) -> list[bytes]:
        """Run a share's frames; return the manifests of those that ended.

        A share that another task has taken is not run again: what that one left is returned.
        """
        payloads = TenantPayloads(
            self.payloads,
            place=Place(tenant_id=share.tenant_id, organization_id=share.organization_id),
            remembered=self.remembered,
        )
        holder = identity.token()
        name = waves.claim_name(share.name, share.part)
        # An answer that got lost leaves our own claim behind.
        if await payloads.put_named(name, holder.encode()) not in {None, holder.encode()}:
            return await Logbook(share.name, payloads).read(share.part)
        bundler = Bundler(share, payloads)
        async with together() as writers:
            writers.create_task(bundler.run())
            found = await self._run_all(share, payloads, bundler, holder=holder)
            bundler.close()
        return found

    async def _run_all(
        self, share: Share, payloads: TenantPayloads, bundler: Bundler, *, holder: str
    ) -> list[bytes]:
        """Run a share's frames, a few at once; return their manifests in order."""
        room = asyncio.Semaphore(FRAMES_AT_ONCE)

        async def run(placed: Placed) -> bytes:
            async with room:
                hands = self._hands(share, payloads, placed.command)
                data = self.mask.data(codec.encode(await self._placed(placed, hands, holder)))
            bundler.add(data)
            return data

        async with together() as group:
            running = [group.create_task(run(placed)) for placed in share.frames]
        return [one.result() for one in running]

    async def _placed(self, placed: Placed, hands: Hands, holder: str) -> Manifest:
        """Run one frame, and say what became of it."""
        if placed.frame is not None:
            return await self._slotted(placed, placed.frame, hands)
        return waves.manifest_of(placed, await self._fact(placed, hands, holder))

    async def _slotted(self, placed: Placed, frame: Frame, hands: Hands) -> Manifest:
        """Run a frame that a slot has recorded; the slot reports it."""
        (outcome,) = await asyncio.gather(_recorded(placed, frame, hands), return_exceptions=True)
        match outcome:
            case Ran():
                return waves.slot_manifest_of(placed, frame, outcome)
            case ToolFailure():
                error = self.mask.error(outcome.error)
            case TemplateError():
                error = self.mask.error(template_failure(outcome, step=placed.command.step))
            case Exception():
                error = _defect(placed, outcome)
            case _:
                raise outcome
        return waves.slot_manifest_of(placed, frame, error)

    async def _fact(self, placed: Placed, hands: Hands, holder: str) -> Fact:
        """Run a frame as any lane does, and return the fact that ends it."""
        command = placed.command
        collected = _Collected()
        desk = Desk(
            publisher=collected,
            worker_id=hands.worker_id,
            shard_count=1,
            mask=self.mask,
            clock=self.clock,
        )
        reporter = Reporter(desk=desk, command=command, holder=holder)
        work = execute(command, hands=hands, reporter=reporter, draining=asyncio.Event())
        # A defect in one frame's work is that frame's failure, not its neighbours'.
        (outcome,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(outcome, Exception):
            reporter.report(failed(command, hands, _defect(placed, outcome)))
        try:
            await reporter.flush()
        except ReportTooLarge as problem:
            reporter.report(failed(command, hands, failure("payload_too_large", str(problem))))
            await reporter.flush()
        return collected.facts[-1]

    def _hands(self, share: Share, payloads: TenantPayloads, command: Command) -> Hands:
        return Hands(
            tools=self.tools,
            payloads=payloads,
            keeper=Keeper(payloads=payloads, mask=self.mask, backend=self.backend),
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


async def _recorded(placed: Placed, frame: Frame, hands: Hands) -> Ran:
    """Read a frame's rows where they are recorded, and run it."""
    block, surrounding = await prepare(placed.command, hands)
    record = codec.convert(await hands.payloads.load(frame.rows_ref), FrameRecord)
    return await run_recorded(
        structs.replace(frame, rows=record.rows),
        block=block,
        surrounding=surrounding,
        hands=hands,
        may_leave_rows=placed.may_leave_rows,
    )


def _defect(placed: Placed, problem: Exception) -> ErrorObject:
    step = placed.command.step
    log.error("work ended in a defect", step=step, exc_info=problem)
    text = f"the executor could not run step '{step}': {type(problem).__name__}"
    return failure("internal", text, step=step)


@asynccontextmanager
async def open_executor(config: Settings) -> AsyncIterator[Executor]:
    """Open what frames need."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        payloads = await stack.enter_async_context(
            open_payloads(
                config.payload_url,
                access_key=config.payload_access_key or None,
                secret_key=config.payload_secret_key or None,
                connect_s=config.connect_s,
                seals=read_keys(
                    config.payload_seal_key,
                    file=config.payload_seal_file,
                    managed=managed.open_keys,
                ),
            )
        )
        tools, mask = await stack.enter_async_context(open_tools(config, payloads, clock))
        yield Executor(
            payloads=payloads,
            remembered=Remembered(bytes_max=config.payload_memory_bytes),
            tools=tools,
            mask=mask,
            clock=clock,
            pacer=Pacer(registers=_LateRegisters(config, stack), clock=clock),
            backend=assembly.backend_of(config),
        )


class _Host:
    """An event loop in a thread of its own, in which an executor lives between waves."""

    def __init__(self, config: Settings) -> None:
        self._ready: Future[tuple[asyncio.AbstractEventLoop, Executor]] = Future()
        self._config = config
        # Spark ends its Python processes without asking; what they started ends with its pipes.
        threading.Thread(target=self._live, name="noetl-executor", daemon=True).start()

    def run(self, share: Share) -> list[bytes]:
        """Run a share; blocks until each of its frames has ended."""
        loop, executor = self._ready.result(self._config.connect_s * 2)
        return asyncio.run_coroutine_threadsafe(executor.run(share), loop).result()

    def _live(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as problem:
            if not self._ready.done():
                self._ready.set_exception(problem)
            raise

    async def _serve(self) -> None:
        async with open_executor(self._config) as executor:
            self._ready.set_result((asyncio.get_running_loop(), executor))
            await asyncio.Event().wait()


@cache
def _host() -> _Host:
    """Open this process's executor, once; it keeps few user processes, as cores are Spark's."""
    config = settings.load()
    processes = min(config.python_processes_max, FRAMES_AT_ONCE)
    return _Host(structs.replace(config, python_processes_max=processes))
