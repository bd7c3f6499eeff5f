"""An event loop in which a seed decides what runs next; time jumps. No thread, no file."""

import asyncio
import heapq
import random
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

START = datetime(2025, 3, 1, tzinfo=UTC)
# Whatever runs takes some time, or a loop that never waits would never end.
STEP_S = 0.00002
STEPS_MAX = 2_000_000


class Stuck(Exception):  # noqa: N818 - the simulation's own verdict
    """Nothing can run and nothing is due, or the run takes more steps than any sound one."""


class Owner(Protocol):
    """The process that a callback belongs to."""

    def admits(self, handle: asyncio.Handle) -> bool:
        """Tell whether a callback runs now; one that does not is the owner's to keep."""


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs one ready callback at a time, drawn by lot; when none is ready, time jumps."""

    def __init__(self, chance: random.Random, *, in_order: bool = False) -> None:
        super().__init__()
        self._chance = chance
        self._in_order = in_order
        self._now_s = 0.0
        self._ready: list[asyncio.Handle] = []
        self.steps = 0

    def time(self) -> float:
        """Return virtual seconds since the beginning."""
        return self._now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Call it here and now: there are no threads."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as failure:  # noqa: BLE001 - it belongs to whoever waits
            done.set_exception(failure)
        return done

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """Everything is in one thread."""
        return self.call_soon(callback, *args, context=context)

    def again(self, handles: list[asyncio.Handle]) -> None:
        """Let callbacks that were held back run."""
        self._ready.extend(handles)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            if not scheduled:
                raise Stuck("nothing runs and nothing is due")
            self._now_s = max(self._now_s, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        if not ready:
            return
        place = 0 if self._in_order else int(self._chance.random() * len(ready))
        handle = ready.pop(place)
        if handle._cancelled:
            return
        owner = handle._context.get(OWNER)
        if owner is not None and not owner.admits(handle):
            return
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Stuck(f"{STEPS_MAX} steps and no end")
        self._now_s += STEP_S
        handle._run()

    def _process_events(self, event_list: Any) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""


class VirtualClock:
    """The loop's time; `ahead_s` is how wrong a machine's time of day is."""

    def __init__(self, loop: VirtualLoop, *, ahead_s: float = 0.0) -> None:
        self._loop = loop
        self.ahead_s = ahead_s

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return START + timedelta(seconds=round(self._loop.time() + self.ahead_s, 6))

    def monotonic(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()
