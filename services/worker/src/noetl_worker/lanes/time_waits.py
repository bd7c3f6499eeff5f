"""Time that a pipeline lets pass: here while it is short, else by a timer of the planner."""

import asyncio
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_contracts.errors import ErrorObject
from noetl_contracts.parking import WAIT_S_MAX, TimeWait, Wait
from noetl_playbook.waits import HELD_S_MAX
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes.block import CompiledTask
from noetl_worker.lanes.emitting import Emitter
from noetl_worker.lanes.parking import Parked, WaitingRow, Walk, key_of

Reason = Literal["retry", "jump", "continue", "rate_limit"]


class Waits(Struct, frozen=True, kw_only=True):
    """How one unit waits: above `held_s` it lets its worker go, if it may."""

    clock: Clock
    held_s: float
    is_parkable: bool
    emitter: Emitter | None
    step: str
    place: str

    @property
    def may_park(self) -> bool:
        """Tell whether another worker could go on: not with rows of a stream that lie here."""
        return self.is_parkable and (self.emitter is None or not self.emitter.is_over)

    @property
    def patience_s(self) -> float:
        """Return how long this unit may wait with its worker held."""
        return self.held_s if self.may_park else HELD_S_MAX

    async def pause(self, seconds: float, task: CompiledTask, walk: Walk, reason: Reason) -> None:
        """Let time pass; raises `Parked`, or `ToolFailure` where the unit cannot wait so long."""
        if seconds > self.patience_s:
            self.leave(seconds, task, walk, reason)
        # Also without a wait: a pipeline of jumps alone would never hear that it is to stop.
        await asyncio.sleep(max(0.0, seconds))

    def leave(self, seconds: float, task: CompiledTask, walk: Walk, reason: Reason) -> None:
        """Let the worker go until the time has passed; raises `Parked` or `ToolFailure`."""
        if not self.may_park:
            raise ToolFailure(self._refused(seconds, task))
        passing_s = min(seconds, WAIT_S_MAX)
        key = key_of(task.name, visit=max(walk.visits), attempt=walk.attempt, place=self.place)
        raise Parked(
            TimeWait(
                key=f"{key}/{reason}/{walk.jumps}",
                task=task.name,
                reason=reason,
                until=self.clock.now() + timedelta(seconds=passing_s),
                timeout_s=passing_s,
            )
        )

    def _refused(self, seconds: float, task: CompiledTask) -> ErrorObject:
        text = (
            f"step '{self.step}', task '{task.name}': a wait of {seconds:g} s would hold its "
            f"worker, and no more than {HELD_S_MAX:g} s may in a frame with 'transaction: true', "
            "in a loop with 'exec: local' and on Spark: leave that out, or wait in another step"
        )
        return failure("limit", text, code="held_wait", task=task.name)


def is_over(wait: Wait, now: datetime) -> bool:
    """Tell whether nothing but time was waited for, and it has passed."""
    return isinstance(wait, TimeWait) and wait.until <= now


def in_order(rows: list[WaitingRow], now: datetime) -> list[WaitingRow]:
    """Put rows of a frame in the order of their waits: what was asked for first, then by time.

    A wait for time goes on while the frame waits for another row, so it is as long as what is left.
    """
    timed = [(row, row.wait) for row in rows if isinstance(row.wait, TimeWait)]
    others = [row for row in rows if not isinstance(row.wait, TimeWait)]
    timed.sort(key=lambda one: one[1].until)
    left = [
        structs.replace(row, wait=structs.replace(wait, timeout_s=_left_s(wait, now)))
        for row, wait in timed
    ]
    return [*sorted(others, key=lambda row: row.index or 0), *left]


def _left_s(wait: TimeWait, now: datetime) -> float:
    return max(0.0, (wait.until - now).total_seconds())
