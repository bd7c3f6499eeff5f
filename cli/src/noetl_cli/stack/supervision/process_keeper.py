"""The keeper of one process: it starts, checks, restarts and ends the process and its children."""

import asyncio
import logging
import os
import signal
import time
from asyncio.subprocess import Process as Child
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from noetl_chassis.lifecycle import EXIT_USAGE
from noetl_chassis.task_group import open_task_group
from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.state import ProcessPhase, ProcessState, StackState, StateBoard
from noetl_cli.stack.processes import probes, process_spec
from noetl_cli.stack.processes.process_spec import ProcessSpec, ProcessTier, StoreWatch

CLOCK_SLACK_S = 1.0
KILLED_TIMEOUT_S = 5.0


def end_orphans(state: StackState) -> list[str]:
    """Stop recorded processes that still run: services first, then servers; name them."""
    orphans = {name: orphan for name, p in state.processes.items() if (orphan := find_running(p))}
    for is_server in (False, True):
        names = [name for name in orphans if state.processes[name].is_server is is_server]
        for name in names:
            _send_signal(orphans[name], state.processes[name].stop_signal)
        for name in names:
            _await_end(orphans[name], patience_s=state.processes[name].stop_timeout_s)
    return list(orphans)


def find_running(process: ProcessState) -> psutil.Process | None:
    """Find a recorded process, unless its number belongs to another one by now."""
    if process.pid is None:
        return None
    try:
        running = psutil.Process(process.pid)
        is_same = abs(running.create_time() - (process.created or 0)) < CLOCK_SLACK_S
        return running if is_same and running.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _await_end(process: psutil.Process, *, patience_s: float) -> None:
    _, survivors = psutil.wait_procs([process], timeout=patience_s)
    if survivors:
        _send_signal(process, signal.SIGKILL)
        psutil.wait_procs(survivors, timeout=KILLED_TIMEOUT_S)


def _send_signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


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


async def _do_nothing() -> None:
    """Do nothing after a restart."""


class ProcessKeeper:
    """Owns one process: starts it, watches it, starts it again, ends it."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        home: StackHome,
        board: StateBoard,
        environ: Mapping[str, str],
        after_restart: Callable[[], Awaitable[None]] = _do_nothing,
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

    def stop_keeping(self, *, discards: bool = False) -> None:
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
                        raise self._build_never_ready_error(f"ended {FIRST_FAILURES_MAX} times")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise self._build_never_ready_error(
                f"did not answer for {self.spec.ready_timeout_s:.0f} s"
            ) from error

    async def keep_alive(self) -> None:
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
            self._board.record_phase(self.spec.name, ProcessPhase.RESTARTING)
            if time.monotonic() - began > STEADY_S:
                backoff_s = BACKOFF_MIN_S
            await self._wait_backoff(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
        self._board.record_phase(self.spec.name, ProcessPhase.STOPPED)
        self._gone.set()

    async def _run_once(self) -> None:
        child = await self._start_child()
        try:
            async with open_task_group() as group:
                prober = group.create_task(self._watch_child(child))
                ender = group.create_task(self._end_on_request(child))
                await child.wait()
                prober.cancel()
                ender.cancel()
        finally:
            if child.returncode is None:
                child.kill()
        # The same settings would be refused again.
        if child.returncode == EXIT_USAGE and self.spec.tier is ProcessTier.SERVICE:
            raise self._build_never_ready_error("refused its settings")

    async def _start_child(self) -> Child:
        self._starts += 1
        self._changed.set()
        if self.spec.before_start is not None:
            await asyncio.to_thread(self.spec.before_start)
        handle = process_spec.open_log(self._home.log_file(self.spec.name))
        try:
            child = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdout=handle,
                stderr=handle,
                **process_spec.build_process_arguments(self.spec, environ=self._environ),
            )
        except OSError as error:
            raise process_spec.build_not_started_error(self.spec, error) from error
        finally:
            os.close(handle)
        self._board.record_start(self.spec, pid=child.pid, restarts=self._starts - 1)
        return child

    async def _watch_child(self, child: Child) -> None:
        await self._probe_until_ready()
        if self.spec.watch is None:
            return
        await self._wait_until_stuck(self.spec.watch)
        _log.warning("%s has given up its store: it is started again", self.spec.name)
        await self._end_child(child)

    async def _wait_until_stuck(self, watch: StoreWatch) -> None:
        """Return when a server refuses to store although its disk has room.

        Starting it again on a disk that is still full would not help.
        """
        looks = 0
        while looks < STUCK_LOOKS:
            await asyncio.sleep(watch.interval_s)
            is_stuck = probes.has_room(watch.folder) and await asyncio.to_thread(
                probes.is_unwell, watch.probe
            )
            looks = looks + 1 if is_stuck else 0

    async def _probe_until_ready(self) -> None:
        while not await asyncio.to_thread(probes.is_answering, self.spec.probe):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(PROBE_INTERVAL_S)
        if self._ready.is_set():
            await self._after_restart()
        self._board.record_phase(self.spec.name, ProcessPhase.READY)
        self._ready.set()
        self._changed.set()

    async def _end_on_request(self, child: Child) -> None:
        await self._let_go.wait()
        await self._end_child(child)

    async def _end_child(self, child: Child) -> None:
        with suppress(ProcessLookupError):  # it may have ended by itself
            child.send_signal(self._stop_signal)
            await asyncio.sleep(self.spec.stop_timeout_s)
            child.kill()

    async def _wait_backoff(self, seconds: float) -> None:
        hold = self._home.hold_file(self.spec.name)
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._let_go.wait()
            except TimeoutError:
                if hold.exists():
                    seconds = HOLD_INTERVAL_S
                    continue
            return

    def _build_never_ready_error(self, outcome: str) -> StackError:
        log = self._home.log_file(self.spec.name)
        if not probes.has_room(self._home.root):
            return StackError(
                f"{self.spec.name} {outcome}: the disk of {self._home.root} is full.",
                way_out="Free some space.",
            )
        return StackError(
            f"{self.spec.name} {outcome} before it was ready. Its log ends with:\n"
            f"{_read_log_tail(log)}",
            way_out=f"Read {log}, or run `noetl doctor`.",
        )


def _read_log_tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(f"  {line}" for line in lines)
