"""What a lane works with: the tools, the stores and the clock of one command."""

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts.ids import WorkerId
from noetl_contracts.step_progress import SparkProgress
from noetl_worker.domain.callbacks import Callbacks
from noetl_worker.domain.masking import Mask
from noetl_worker.holding import Progress
from noetl_worker.keeping import Keeper
from noetl_worker.lanes.pacing import Pacer
from noetl_worker.lanes.waves import Waves
from noetl_worker.stores import TenantPayloads
from noetl_worker.task_logs.log_journal import LogJournal
from noetl_worker.tools import Tools


class Hands(Struct, frozen=True, kw_only=True):
    """Everything that running a command needs besides the command."""

    tools: Tools
    payloads: TenantPayloads
    keeper: Keeper
    mask: Mask
    clock: Clock
    worker_id: WorkerId
    pacer: Pacer
    journal: LogJournal
    callbacks: Callbacks = Callbacks()
    # Where frames run in waves; without them they run in the lane's own event loop.
    waves: Waves | None = None
    # Longer waits let the worker go, where the command may be taken up by another one.
    held_wait_s: float = 5.0
    may_park: bool = True
    # Tells who follows the execution how far its Spark is.
    tell_progress: Callable[[SparkProgress], Awaitable[None]] | None = None
    progress: Progress = msgspec.field(default_factory=Progress)
