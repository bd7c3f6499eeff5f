"""Blocking work on something that one thread at a time may use, such as a writer or a file.

Nothing stops a thread. `asyncio.to_thread` lets a caller that is cancelled go at once, who then
closes what the thread still uses: with a Parquet writer that ends the process. Here a caller goes
when the work has ended.
"""

import asyncio
import importlib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_INTERRUPT_PAUSE_S = 0.05
# Names of modules. Those that another thread still loads are among the process's modules already.
_loaded: set[str] = set()


async def run_in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do blocking work in a thread; when this returns or raises, the work has ended."""
    return await wait_until_ended(_begin_work(work, *args, **kwargs))


def are_modules_loaded(*names: str) -> bool:
    """Tell whether `load_modules` has ended for these: until then a use of them would wait."""
    return _loaded.issuperset(names)


async def load_modules(*names: str) -> None:
    """Load modules in a thread, so that the event loop is not the first to ask for them."""
    if not are_modules_loaded(*names):
        await run_in_thread(lambda: [importlib.import_module(name) for name in names])
        _loaded.update(names)


async def run_interruptibly(
    interrupt: Callable[[], None], work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Do blocking work in a thread; when the caller is cancelled, it is interrupted first."""
    return await wait_until_ended(_begin_work(work, *args, **kwargs), interrupt=interrupt)


def _begin_work(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
    # No task of its own, which a loop that ends would cancel while the thread goes on.
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(None, partial(copy_context().run, work, *args, **kwargs))


async def wait_until_ended(
    running: "asyncio.Future[R]", *, interrupt: Callable[[], None] | None = None
) -> R:
    """Wait for work that runs; when the caller is cancelled, until it has ended all the same.

    With `interrupt` it is asked to end meanwhile. The cancellation is raised, not what came of it.
    """
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            if interrupt is not None:
                interrupt()
            # Who is cancelled once more waits for the same.
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running}, timeout=_INTERRUPT_PAUSE_S if interrupt else None)
        if not running.cancelled():
            _release_frames(running.exception())
        raise


def _release_frames(error: BaseException | None) -> None:
    """Let go of what the frames of a dropped error hold: open files, connections, rows."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class WorkStopped(Exception):  # noqa: N818 - somebody wanted it to stop, which is no error
    """The work was called off."""


class StopSign:
    """Raised by who waits for work in a thread, looked at by who works."""

    def __init__(self) -> None:
        self._is_raised = threading.Event()
        self._interrupting = threading.Lock()
        self._interrupts: list[Callable[[], None]] = []

    def raise_sign(self) -> None:
        """Call the work off, and interrupt what it waits for."""
        self._is_raised.set()
        if self._interrupts and not self._interrupting.locked():
            # It may block, and an event loop raises the sign.
            threading.Thread(target=self._interrupt_work, daemon=True).start()

    @contextmanager
    def interrupt_by(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have a function called that ends what the block waits for, until the block ends.

        Blocks may stand in one another: all of their functions are called.
        """
        with self._interrupting:
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            # What is interrupted may be closed now: a call that is under way ends first.
            with self._interrupting:
                self._interrupts.remove(interrupt)

    def _interrupt_work(self) -> None:
        with self._interrupting:
            for interrupt in self._interrupts:
                interrupt()

    def iterate_until(self, items: Iterable[R]) -> Iterator[R]:
        """Yield items until the work is called off; raises `WorkStopped` then."""
        for item in items:
            self._check_sign()
            yield item
        self._check_sign()

    def _check_sign(self) -> None:
        if self._is_raised.is_set():
            raise WorkStopped


async def run_until_stopped(work: Callable[[StopSign], R]) -> R:
    """Do blocking work in a thread; when the caller is cancelled, it is called off first."""
    sign = StopSign()
    return await run_interruptibly(sign.raise_sign, work, sign)
