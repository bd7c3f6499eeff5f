"""Queue of ended loops whose results are collected beside the turns of the shards.

What is lost with a process is asked for again when its execution is next looked at; the fact that
comes of it carries the key of its loop and level, so it counts once.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, structs

from noetl_contracts.commands.loop_collections import TakenItems
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.requests.facts import FactBatch
from noetl_planner.domain.loops import reruns
from noetl_replay.state import ExecutionState, LoopState, StageState

LANES = 4
# While the store cannot be reached a lane rests for seconds between two tries.
_TRIES_MAX = 100


class FinishedLoop(Struct, frozen=True, kw_only=True):
    """A loop, or a level of a reduce, whose units have all ended, as it was then.

    `takeover` is what it took over from an earlier execution.
    """

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    loop: LoopState
    stage: StageState | None
    takeover: TakenItems | None = None

    @property
    def collection_key(self) -> str:
        """Name what is gathered: the same however often it is asked for."""
        return f"collected/{self.loop.run_id}/{self.loop.level}"


class ResultCollector(Protocol):
    """What reads the outcomes of a loop's units."""

    async def collect_results(self, of: FinishedLoop) -> FactBatch:
        """Return the fact that ends the loop, or a level of a reduce."""


class ShardInbox:
    """What one shard has asked for and what has come of it; it is asked for once at a time.

    `wake` calls the shard back from listening elsewhere.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._requested_keys: set[str] = set()
        self._result_batches: list[FactBatch] = []

    def begin_collection(self, key: str) -> bool:
        """Note that something is being gathered; False when it is already."""
        if key in self._requested_keys:
            return False
        self._requested_keys.add(key)
        return True

    def put_result(self, key: str, fact_batch: FactBatch | None) -> None:
        """Hand over what came of a key; nothing when it could not be gathered."""
        self._requested_keys.discard(key)
        if fact_batch is not None:
            self._result_batches.append(fact_batch)
            self._wake()

    def take_results(self) -> list[FactBatch]:
        """Take out what has been gathered."""
        fact_batches, self._result_batches = self._result_batches, []
        return fact_batches


class LoopQueue:
    """Gathers for all shards of a process, a few loops at once."""

    def __init__(self, collector: ResultCollector) -> None:
        self._collector = collector
        self._queue: asyncio.Queue[tuple[FinishedLoop, ShardInbox, int]] = asyncio.Queue()

    def enqueue_loop(self, state: ExecutionState, run_id: str, inbox: ShardInbox) -> None:
        """Have a loop's results gathered, unless they are being gathered or it is over."""
        finished = _find_finished_loop(state, run_id)
        if finished is not None and inbox.begin_collection(finished.collection_key):
            self._queue.put_nowait((finished, inbox, 1))

    async def collect_next(self) -> int:
        """Collect the results of the next loop; a failure is reported to the shard too."""
        finished, inbox, tries = await self._queue.get()
        fact_batch, is_over = None, True
        try:
            fact_batch = await self._collector.collect_results(finished)
        except Retryable:
            is_over = tries >= _TRIES_MAX
            if not is_over:
                self._queue.put_nowait((finished, inbox, tries + 1))
            raise
        finally:
            if is_over:
                # After a defect it may be asked for again, when the execution is next looked at.
                inbox.put_result(finished.collection_key, fact_batch)
        return 1


def _find_finished_loop(state: ExecutionState, run_id: str) -> FinishedLoop | None:
    run = next((run_state for run_state in state.runs.values() if run_state.run_id == run_id), None)
    if run is None or run.loop is None:
        return None
    loop = run.loop
    stage = state.stages.get(loop.stage_id) if loop.stage_id is not None else None
    return FinishedLoop(
        execution_id=state.execution_id,
        tenant_id=state.tenant_id,
        organization_id=state.organization_id,
        # The state goes on while this is read.
        loop=structs.replace(loop),
        stage=None if stage is None else structs.replace(stage),
        takeover=reruns.find_taken_items(state, run),
    )
