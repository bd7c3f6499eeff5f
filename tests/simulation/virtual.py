"""An event loop in which a seed decides what runs next; time jumps. No thread, no file."""

import asyncio
import heapq
import random
from asyncio import futures
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

START = datetime(2025, 3, 1, tzinfo=UTC)
# Whatever runs takes some time, or a loop that never waits would never end.
STEP_S = 0.00002
STEPS_MAX = 2_000_000
# What a timer calls to end a sleep.
_WAKES: Any = vars(futures)["_set_result_unless_cancelled"]


class Stuck(Exception):  # noqa: N818 - the simulation's own verdict
    """Nothing can run and nothing is due, or the run takes more steps than any sound one."""


class Owner(Protocol):
    """The process that a callback belongs to."""

    def admits(self, handle: asyncio.Handle) -> bool:
        """Tell whether a callback runs now; one that does not is the owner's to keep."""


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set follows from the run, and not from where its memory lies.

    A group cancels its tasks in the order of a set.
    """

    def __init__(self, coro: Any, loop: Any, *, number: int, context: Any) -> None:
        self._number = number
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs one ready callback at a time, drawn by lot; when none is ready, time jumps."""

    def __init__(self, chance: random.Random, *, in_order: bool = False) -> None:
        super().__init__()
        self._chance = chance
        self._in_order = in_order
        self._now_s = 0.0
        self._ready: list[asyncio.Handle] = []
        # Futures by when they are done, in the order in which they were asked for.
        self._alarms: list[tuple[float, int, asyncio.Future[None]]] = []
        self._asked = 0
        self.steps = 0
        self._tasks_made = 0
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return virtual seconds since the beginning."""
        return self._now_s

    def alarm(self, delay_s: float) -> "asyncio.Future[None]":
        """Return a future that is done after so long, or as soon as somebody says so."""
        future = self.create_future()
        self._asked += 1
        heapq.heappush(self._alarms, (self._now_s + delay_s, self._asked, future))
        return future

    def _make_task(self, _loop: Any, coro: Any, context: Any = None) -> "NumberedTask":
        self._tasks_made += 1
        return NumberedTask(coro, self, number=self._tasks_made, context=context)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """Let a callback run some time after what runs now."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

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
        ready = self._ready
        if not ready:
            self._jump()
        self._ring()
        if not ready:
            return
        place = 0 if self._in_order or len(ready) == 1 else int(self._chance.random() * len(ready))
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

    def _jump(self) -> None:
        """Let time pass until the next timer."""
        due_s = [self._alarms[0][0]] if self._alarms else []
        due_s += [self._scheduled[0]._when] if self._scheduled else []
        if not due_s:
            raise Stuck("nothing runs and nothing is due")
        self._now_s = max(self._now_s, min(due_s))

    def _ring(self) -> None:
        """Let everything become ready whose time has come."""
        scheduled, alarms, now_s = self._scheduled, self._alarms, self._now_s
        while scheduled and scheduled[0]._when <= now_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if timer._cancelled:
                continue
            if timer._callback is _WAKES:
                # Nothing but the end of a sleep: whoever sleeps may die or stand still then.
                timer._callback(*timer._args)
            else:
                self._ready.append(timer)
        while alarms and alarms[0][0] <= now_s:
            future = heapq.heappop(alarms)[2]
            if not future.done():
                future.set_result(None)

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

    def monotonic_s(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()
