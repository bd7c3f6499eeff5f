"""Named places where a process may be killed, paused, delayed or failed; inert unless asked for."""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from noetl_chassis.observability import instruments, names
from noetl_chassis.structured_log import structlog
from noetl_contracts.errors import Retryable

VARIABLE = "NOETL_FAILPOINTS"
ONCE_VARIABLE = "NOETL_FAILPOINTS_ONCE"
SECONDS_MAX = 600.0
_SPELLING = re.compile(
    r"(?P<point>[a-z_.]+):(?P<action>[a-z]+)"
    r"(?:\((?P<time>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s)\))?(?:@(?P<at>[1-9][0-9]{0,8}))?"
)
_ACTIONS = "kill, error, pause(2s), delay(200ms)"

log = structlog.get_logger(__name__)


class Failpoint(StrEnum):
    """Every place, in the order in which a service passes them; the first word is the service."""

    PLANNER_FETCHED = "planner.fetched"
    PLANNER_APPEND_BEFORE = "planner.append.before"
    PLANNER_APPEND_AFTER = "planner.append.after"
    PLANNER_ACK_BEFORE = "planner.ack.before"
    PLANNER_ACK_AFTER = "planner.ack.after"
    PLANNER_PUBLISH_BEFORE = "planner.publish.before"
    PLANNER_PUBLISH_AFTER = "planner.publish.after"
    WORKER_CLAIMED = "worker.claimed"
    WORKER_ROWS_CLAIMED = "worker.rows.claimed"
    WORKER_FRAME_RECORDED = "worker.frame.recorded"
    WORKER_COMMIT_BEFORE = "worker.commit.before"
    WORKER_COMMIT_AFTER = "worker.commit.after"
    WORKER_PAYLOAD_WRITTEN = "worker.payload.written"
    WORKER_BATCH_BEGUN = "worker.batch.begun"
    WORKER_BATCH_WRITTEN = "worker.batch.written"
    WORKER_REPORT_BEFORE = "worker.report.before"
    WORKER_REPORT_AFTER = "worker.report.after"
    WORKER_ACK_BEFORE = "worker.ack.before"
    WORKER_ACK_AFTER = "worker.ack.after"
    OUTBOX_CLAIMED = "outbox.claimed"
    OUTBOX_PUBLISHED = "outbox.published"
    OUTBOX_ACK_AFTER = "outbox.ack.after"
    PROJECTOR_FETCHED = "projector.fetched"
    PROJECTOR_APPLY_BEFORE = "projector.apply.before"
    PROJECTOR_APPLY_AFTER = "projector.apply.after"
    PROJECTOR_ACK_BEFORE = "projector.ack.before"
    PROJECTOR_ACK_AFTER = "projector.ack.after"
    PROJECTOR_LINEAGE_KEPT = "projector.lineage.kept"
    PROJECTOR_LINEAGE_DELIVERED = "projector.lineage.delivered"
    REAPER_LED = "reaper.led"
    REAPER_REPORTED = "reaper.reported"
    REAPER_SWEPT = "reaper.swept"


class FailpointAction(StrEnum):
    """What may happen there."""

    KILL = "kill"
    ERROR = "error"
    PAUSE = "pause"
    DELAY = "delay"


_TIMED = {FailpointAction.PAUSE, FailpointAction.DELAY}


class FailpointError(Retryable):
    """A failpoint was told to fail here."""


class FailpointSpellingError(ValueError):
    """The variable does not say what should happen where."""


class FailpointTrigger(Struct, frozen=True, kw_only=True):
    """What happens at a point, at every passing or at one of them, counted from 1."""

    point: Failpoint
    action: FailpointAction
    seconds: float = 0.0
    at: int | None = None


class FailpointPlan:
    """Owns the counts of this process; `once` is a folder that remembers across processes."""

    def __init__(self, triggers: list[FailpointTrigger], *, once: Path | None = None) -> None:
        self.reached: Counter[Failpoint] = Counter()
        self._triggers = triggers
        self._once = once

    async def pass_point(self, point: Failpoint) -> None:
        """Count a passing and do what was asked for; raises `FailpointError`."""
        self.reached[point] += 1
        instruments.add_to_counter(names.FAILPOINTS_REACHED, labels={names.POINT: point})
        for trigger in self._triggers:
            is_meant = trigger.point is point and trigger.at in {None, self.reached[point]}
            if is_meant and self._is_first_passing(trigger):
                await _run_action(trigger)

    def _is_first_passing(self, trigger: FailpointTrigger) -> bool:
        """Let a trigger happen once in all processes together, where that was asked for."""
        if self._once is None:
            return True
        try:
            (self._once / f"{trigger.point}-{trigger.action}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


_plan: FailpointPlan | None = None


async def pass_failpoint(point: Failpoint) -> None:
    """Pass a point; without a plan this is one comparison."""
    if _plan is not None:
        await _plan.pass_point(point)


def arm_plan(plan: FailpointPlan | None) -> None:
    """Make a plan hold for this process from now on, or none."""
    global _plan  # noqa: PLW0603 - one process, one plan, and nothing to pay without one
    _plan = plan
    if plan is not None:
        log.warning("failpoints armed")


def parse_plan(text: str, *, once: str = "") -> FailpointPlan | None:
    """Read `point:action@n, ...`, None for nothing; raises `FailpointSpellingError`."""
    triggers = [_parse_trigger(part.strip()) for part in text.split(",") if part.strip()]
    return FailpointPlan(triggers, once=Path(once) if once else None) if triggers else None


def _parse_trigger(text: str) -> FailpointTrigger:
    match = _SPELLING.fullmatch(text)
    if match is None:
        raise FailpointSpellingError(f"{text!r} is not point:action@n with an action of {_ACTIONS}")
    if match["point"] not in set(Failpoint):
        known_names = ", ".join(Failpoint)
        raise FailpointSpellingError(
            f"there is no point {match['point']!r}; there are {known_names}"
        )
    if match["action"] not in set(FailpointAction):
        raise FailpointSpellingError(f"{match['action']!r} of {text!r} is none of {_ACTIONS}")
    action = FailpointAction(match["action"])
    if (action in _TIMED) is not bool(match["time"]):
        raise FailpointSpellingError(f"{text!r}: say how long to pause or delay, and nothing else")
    seconds = float(match["time"] or 0) / (1000 if match["unit"] == "ms" else 1)
    if seconds > SECONDS_MAX:
        raise FailpointSpellingError(f"{text!r} lasts longer than {SECONDS_MAX:.0f} s")
    at = int(match["at"]) if match["at"] else None
    return FailpointTrigger(point=Failpoint(match["point"]), action=action, seconds=seconds, at=at)


async def _run_action(trigger: FailpointTrigger) -> None:
    log.warning("failpoint reached", point=trigger.point, action=trigger.action)
    match trigger.action:
        case FailpointAction.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FailpointAction.PAUSE:
            _block_process(trigger.seconds)
        case FailpointAction.DELAY:
            await asyncio.sleep(trigger.seconds)
        case FailpointAction.ERROR:
            raise FailpointError(f"the failpoint {trigger.point} was told to fail")


def _block_process(seconds: float) -> None:
    """Stop the whole process, as a machine that is taken away would."""
    time.sleep(seconds)
