"""Runs of a backfill: one a range, several at once, each begun once however often it is asked."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from noetl_cli.errors import CliError
from noetl_cli.planner.backfill_ranges import BackfillRange
from noetl_cli.planner.client import PlannerClient, escape_segment
from noetl_contracts.status import TERMINAL_EXECUTION, ExecutionStatus

# A range that failed is begun again by the next command, so often.
ATTEMPTS_MAX = 100
_POLL_MIN_S, _POLL_MAX_S = 0.1, 2.0


class RangeEnd(Struct, frozen=True, kw_only=True):
    """How the run of a range ended; one that `was_done` had ended before this command."""

    range: BackfillRange
    execution_id: str
    status: ExecutionStatus
    was_done: bool = False


class BackfillRuns:
    """Begins the runs of ranges and follows them; begins no more after one that failed."""

    def __init__(
        self,
        planner: PlannerClient,
        *,
        body: dict[str, Any],
        key: str,
        parallel: int,
        show_end: Callable[[RangeEnd], None],
    ) -> None:
        self._planner = planner
        self._body = body
        self._key = key
        self._parallel = parallel
        self._show_end = show_end
        self.running: dict[str, BackfillRange] = {}
        self.ended: list[RangeEnd] = []

    @property
    def has_failed(self) -> bool:
        """Tell whether a range has failed."""
        return any(end.status is not ExecutionStatus.COMPLETED for end in self.ended)

    def run_ranges(self, ranges: list[BackfillRange]) -> None:
        """Return when nothing runs any more; raises `CliError`."""
        waiting, pause_s = deque(ranges), _POLL_MIN_S
        while self.running or (waiting and not self.has_failed):
            while waiting and len(self.running) < self._parallel and not self.has_failed:
                self._begin_range(waiting.popleft())
            pause_s = _POLL_MIN_S if self._note_ended() else min(pause_s * 1.5, _POLL_MAX_S)
            if self.running:
                time.sleep(pause_s)

    def _begin_range(self, backfill_range: BackfillRange) -> None:
        """Begin a range, unless it is done or runs: then take the run that there is."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            key = f"{self._key}/{backfill_range.since}/{backfill_range.until}/{attempt}"
            backfill = {"since": backfill_range.since, "until": backfill_range.until}
            answer = self._planner.post(
                "/api/execute",
                {**self._body, "backfill": backfill},
                headers={"Idempotency-Key": key},
            )
            execution_id = str(answer["execution_id"])
            if not answer["deduplicated"]:
                self.running[execution_id] = backfill_range
                return
            status = self._get_status(execution_id)
            if status is ExecutionStatus.COMPLETED:
                self._end_range(
                    RangeEnd(
                        range=backfill_range,
                        execution_id=execution_id,
                        status=status,
                        was_done=True,
                    )
                )
                return
            if status not in TERMINAL_EXECUTION:
                self.running[execution_id] = backfill_range
                return
        raise CliError(
            f"The range from {backfill_range.since} to {backfill_range.until} "
            f"has failed {ATTEMPTS_MAX} times.",
            way_out="Correct the playbook, then run the backfill under another --name.",
        )

    def _note_ended(self) -> bool:
        """Look at every run once; tell whether one has ended."""
        ended = False
        for execution_id, backfill_range in list(self.running.items()):
            status = self._get_status(execution_id)
            if status in TERMINAL_EXECUTION:
                del self.running[execution_id]
                self._end_range(
                    RangeEnd(range=backfill_range, execution_id=execution_id, status=status)
                )
                ended = True
        return ended

    def _end_range(self, end: RangeEnd) -> None:
        self.ended.append(end)
        self._show_end(end)

    def _get_status(self, execution_id: str) -> ExecutionStatus:
        address = f"/api/executions/{escape_segment(execution_id)}/status"
        return ExecutionStatus(str(self._planner.get(address)["status"]))
