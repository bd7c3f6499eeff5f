"""Executions that want to be looked at again at some instant."""

import heapq
from collections.abc import Iterable
from datetime import datetime
from itertools import count

from noetl_contracts.ids import ExecutionId
from noetl_contracts.requests.facts import FactBatch, TimerDue
from noetl_replay.state import ExecutionState


class Wakeups:
    """The latest wish of each execution; losing it costs time, for the reaper nudges too."""

    def __init__(self) -> None:
        self._queue: list[tuple[datetime, ExecutionId]] = []
        self._due: dict[ExecutionId, tuple[datetime, FactBatch]] = {}
        self._again: list[tuple[datetime, int, FactBatch]] = []
        self._order = count()

    def set_wakeup(self, state: ExecutionState, at: datetime | None) -> None:
        """Remember, move or forget an execution's wish."""
        if at is None:
            self._due.pop(state.execution_id, None)
            return
        nudge = FactBatch(
            key=f"timer/{state.execution_id}/{state.version}",
            execution_id=state.execution_id,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            producer="planner",
            facts=[TimerDue()],
        )
        self._due[state.execution_id] = (at, nudge)
        heapq.heappush(self._queue, (at, state.execution_id))

    def put_back(self, batches: Iterable[FactBatch], at: datetime) -> None:
        """Hand over batches that were taken and not decided on once more, at an instant."""
        for batch in batches:
            heapq.heappush(self._again, (at, next(self._order), batch))

    def take_due_facts(self, now: datetime) -> list[FactBatch]:
        """Take the requests and batches whose time has come."""
        fact_batches = []
        while self._again and self._again[0][0] <= now:
            fact_batches.append(heapq.heappop(self._again)[2])
        while self._queue and self._queue[0][0] <= now:
            at, execution_id = heapq.heappop(self._queue)
            wish = self._due.get(execution_id)
            if wish is not None and wish[0] == at:
                del self._due[execution_id]
                fact_batches.append(wish[1])
        return fact_batches

    def next_wakeup_in_s(self, now: datetime, *, at_most_s: float) -> float:
        """Return how long nothing is due, within a bound."""
        instants = [queue[0][0] for queue in (self._queue, self._again) if queue]
        if not instants:
            return at_most_s
        return min(at_most_s, max(0.0, (min(instants) - now).total_seconds()))
