"""Keep one process alive until told to let go of it."""

import asyncio
import logging
import os
import time
from asyncio.subprocess import Process as Child
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from noetl_chassis.together import together
from noetl_cli.failures import StackError
from noetl_cli.stack import launch, probes
from noetl_cli.stack.board import Board
from noetl_cli.stack.home import Home
from noetl_cli.stack.specs import ProcessSpec, StoreWatch
from noetl_cli.stack.state import ProcessPhase

BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 10.0
# A process that ran this long starts its backoff anew.
STEADY_S = 20.0
PROBE_INTERVAL_S = 0.05
# As often in a row a server must seem stuck: one answer may be of a moment.
STUCK_LOOKS = 3
HOLD_INTERVAL_S = 0.2
FIRST_FAILURES_MAX = 4
LOG_LINES = 8

_log = logging.getLogger("noetl.supervisor")


async def _nothing() -> None:
    """Do nothing after a restart."""


class Keeper:
    """Owns one process: starts it, watches it, starts it again, ends it."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        home: Home,
        board: Board,
        environ: Mapping[str, str],
        after_restart: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.spec = spec
        self._home = home
        self._board = board
        self._environ = environ
        self._after_restart = after_restart
        self._let_go = asyncio.Event()
        self._stop_signal = spec.stop_signal
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        self._starts = 0
        self._refused: StackError | None = None

    def let_go(self, *, discards: bool = False) -> None:
        """End the process and do not start it again; `discards` when its data is deleted next."""
        if discards and self.spec.discard_signal is not None:
            self._stop_signal = self.spec.discard_signal
        self._let_go.set()

    async def wait_gone(self) -> None:
        """Wait until the process has ended for good."""
        await self._gone.wait()

    async def wait_ready(self) -> None:
        """Wait until the process answered once; raise when it never does."""
        try:
            async with asyncio.timeout(self.spec.ready_timeout_s):
                while not self._ready.is_set():
                    if self._refused is not None:
                        raise self._refused
                    if self._starts > FIRST_FAILURES_MAX:
                        raise self._never_ready(f"ended {FIRST_FAILURES_MAX} times")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise self._never_ready(
                f"did not answer for {self.spec.ready_timeout_s:.0f} s"
            ) from error

    async def keep(self) -> None:
        """Start the process again whenever it ends, later and later when it ends early."""
        backoff_s = BACKOFF_MIN_S
        while not self._let_go.is_set():
            began = time.monotonic()
            try:
                await self._run_once()
            except StackError as error:
                self._refused = error
                self._changed.set()
            if self._let_go.is_set():
                break
            self._board.moved(self.spec.name, ProcessPhase.RESTARTING)
            if time.monotonic() - began > STEADY_S:
                backoff_s = BACKOFF_MIN_S
            await self._pause(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
        self._board.moved(self.spec.name, ProcessPhase.STOPPED)
        self._gone.set()

    async def _run_once(self) -> None:
        child = await self._start()
        try:
            async with together() as group:
                prober = group.create_task(self._look_after(child))
                ender = group.create_task(self._end_when_told(child))
                await child.wait()
                prober.cancel()
                ender.cancel()
        finally:
            if child.returncode is None:
                child.kill()

    async def _start(self) -> Child:
        self._starts += 1
        self._changed.set()
        if self.spec.before_start is not None:
            await asyncio.to_thread(self.spec.before_start)
        handle = launch.open_log(self._home.log(self.spec.name))
        try:
            child = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdout=handle,
                stderr=handle,
                **launch.arguments(self.spec, environ=self._environ),
            )
        except OSError as error:
            raise launch.not_started(self.spec, error) from error
        finally:
            os.close(handle)
        self._board.started(self.spec, pid=child.pid, restarts=self._starts - 1)
        return child

    async def _look_after(self, child: Child) -> None:
        await self._probe()
        if self.spec.watch is None:
            return
        await self._until_stuck(self.spec.watch)
        _log.warning("%s has given up its store: it is started again", self.spec.name)
        await self._end(child)

    async def _until_stuck(self, watch: StoreWatch) -> None:
        """Return when a server refuses to store although its disk has room.

        Starting it again on a disk that is still full would not help.
        """
        looks = 0
        while looks < STUCK_LOOKS:
            await asyncio.sleep(watch.interval_s)
            is_stuck = probes.has_room(watch.folder) and await asyncio.to_thread(
                probes.is_refused, watch.probe
            )
            looks = looks + 1 if is_stuck else 0

    async def _probe(self) -> None:
        while not await asyncio.to_thread(probes.answers, self.spec.probe):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(PROBE_INTERVAL_S)
        if self._ready.is_set():
            await self._after_restart()
        self._board.moved(self.spec.name, ProcessPhase.READY)
        self._ready.set()
        self._changed.set()

    async def _end_when_told(self, child: Child) -> None:
        await self._let_go.wait()
        await self._end(child)

    async def _end(self, child: Child) -> None:
        with suppress(ProcessLookupError):  # it may have ended by itself
            child.send_signal(self._stop_signal)
            await asyncio.sleep(self.spec.stop_timeout_s)
            child.kill()

    async def _pause(self, seconds: float) -> None:
        hold = self._home.hold(self.spec.name)
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._let_go.wait()
            except TimeoutError:
                if hold.exists():
                    seconds = HOLD_INTERVAL_S
                    continue
            return

    def _never_ready(self, how: str) -> StackError:
        log = self._home.log(self.spec.name)
        return StackError(
            f"{self.spec.name} {how} before it was ready. Its log ends with:\n{_tail(log)}",
            way_out=f"Read {log}, or run `noetl doctor`.",
        )


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(f"  {line}" for line in lines)
