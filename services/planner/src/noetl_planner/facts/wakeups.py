"""Timer queue of a shard: at which instant each execution needs another decision."""

import heapq
from collections.abc import Iterable
from datetime import datetime
from itertools import count

from noetl_contracts.ids import ExecutionId
from noetl_contracts.requests.facts import FactBatch, TimerDue
from noetl_replay.state import ExecutionState


class Wakeups:
    """The next wake-up of each execution, in memory.

    A wake-up that is lost with the process comes later: the reaper wakes overdue executions too.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[datetime, ExecutionId]] = []
        self._wakeup_by_execution: dict[ExecutionId, tuple[datetime, FactBatch]] = {}
        self._put_back: list[tuple[datetime, int, FactBatch]] = []
        self._order = count()

    def set_wakeup(self, state: ExecutionState, at: datetime | None) -> None:
        """Set or move the wake-up of an execution; None for `at` removes it."""
        if at is None:
            self._wakeup_by_execution.pop(state.execution_id, None)
            return
        timer_batch = FactBatch(
            key=f"timer/{state.execution_id}/{state.version}",
            execution_id=state.execution_id,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            producer="planner",
            facts=[TimerDue()],
        )
        self._wakeup_by_execution[state.execution_id] = (at, timer_batch)
        heapq.heappush(self._queue, (at, state.execution_id))

    def put_back(self, batches: Iterable[FactBatch], at: datetime) -> None:
        """Return batches again at `at`: they were taken, and no decision was made on them."""
        for batch in batches:
            heapq.heappush(self._put_back, (at, next(self._order), batch))

    def take_due_facts(self, now: datetime) -> list[FactBatch]:
        """Take the batches that are due: those put back, and a `TimerDue` of each wake-up."""
        fact_batches = []
        while self._put_back and self._put_back[0][0] <= now:
            fact_batches.append(heapq.heappop(self._put_back)[2])
        while self._queue and self._queue[0][0] <= now:
            at, execution_id = heapq.heappop(self._queue)
            wakeup = self._wakeup_by_execution.get(execution_id)
            if wakeup is not None and wakeup[0] == at:
                del self._wakeup_by_execution[execution_id]
                fact_batches.append(wakeup[1])
        return fact_batches

    def compute_next_wakeup_s(self, now: datetime, *, at_most_s: float) -> float:
        """Return the seconds until something is due, at most `at_most_s`."""
        instants = [queue[0][0] for queue in (self._queue, self._put_back) if queue]
        if not instants:
            return at_most_s
        return min(at_most_s, max(0.0, (min(instants) - now).total_seconds()))
