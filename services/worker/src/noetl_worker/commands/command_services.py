"""What a lane works with: the tools, the stores and the clock of one command."""

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_contracts.ids import WorkerId
from noetl_worker.commands.call_pacer import CallPacer
from noetl_worker.commands.command_lease import ChunkProgress, CommandLease
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.unit_identity import CallbackAddresses
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.spark.wave_runner import WaveRunner
from noetl_worker.task_logs.log_journal import LogJournal
from noetl_worker.tools import Tools


class CommandServices(Struct, frozen=True, kw_only=True):
    """Everything that running a command needs besides the command."""

    tools: Tools
    payloads: TenantPayloads
    keeper: ResultStore
    mask: SecretMask
    clock: Clock
    worker_id: WorkerId
    pacer: CallPacer
    journal: LogJournal
    # Executors of Spark have none: the wave that they are of is what is leased.
    lease: CommandLease | None = None
    callbacks: CallbackAddresses = CallbackAddresses()
    # Where frames run in waves; without them they run in the lane's own event loop.
    waves: WaveRunner | None = None
    # Longer waits let the worker go, where the command may be taken up by another one.
    held_wait_s: float = 5.0
    may_park: bool = True
    # Tells who follows the execution how far its Spark is.
    tell_progress: Callable[[SparkProgress], Awaitable[None]] | None = None
    progress: ChunkProgress = msgspec.field(default_factory=ChunkProgress)
