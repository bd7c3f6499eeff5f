"""Runs a child process with everything that it starts; all of it ends with the worker.

Each runs beside a launcher, which kills it with its descendants when a pipe of the worker closes.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.log_chunks import STDERR, STDOUT
from noetl_worker.sandbox import launcher
from noetl_worker.task_logs.task_log import NullTaskLog, TaskLogPort

# What stands behind a descriptor of the command: a file, or `PIPE`.
Stream = int | IO[bytes]
# More than the launcher itself takes, which waits 10 s for what it has killed.
_LAUNCHER_S = 15.0
_CHUNK_BYTES = 64 * 1024
# For output that is still in the pipes.
_LAST_WORDS_S = 1.0


class SupervisedProcess:
    """A command that runs beside its launcher; its code is the command's."""

    def __init__(
        self, process: asyncio.subprocess.Process, life: BinaryIO, *, grace_s: float
    ) -> None:
        self._process = process
        self._life = life
        self._grace_s = grace_s

    @property
    def pid(self) -> int:
        """Return the launcher's number, of which the command is a descendant."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self._process.returncode is None

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """Return what the command reads, where that was asked for."""
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """Return what the command writes, where that was asked for."""
        return self._process.stdout

    async def wait_until_ended(self) -> int:
        """Wait until the command and all that it started have ended; return its code."""
        return await self._process.wait()

    def kill_all(self) -> None:
        """Kill the command and all its descendants; `wait_until_ended` returns after that."""
        self._life.close()

    async def end_gracefully(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL when the grace is over; wait for their end.

        One that is called off while it waits kills at once.
        """
        try:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGTERM)
                await self._wait_at_most(self._grace_s + _LAUNCHER_S)
        finally:
            self.kill_all()
            await self._wait_at_most(_LAUNCHER_S)

    async def _wait_at_most(self, seconds: float) -> None:
        """Wait for the launcher, which a command may have stopped: then the launcher is killed."""
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def start_process(
    command: tuple[str, ...],
    *,
    environ: Mapping[str, str],
    directory: Path,
    streams: tuple[Stream, Stream, Stream],
    walls: dict[str, Any] | None = None,
    grace_s: float = 0.0,
    pass_fds: tuple[int, ...] = (),
) -> SupervisedProcess:
    """Start a command, a session of its own, behind walls where there are some.

    `streams` are its standard input, output and error. Raises `OSError` when its directory or its
    launcher is missing. A command that is missing ends with code 126.
    """
    stdin, stdout, stderr = streams
    source, life = os.pipe()
    options = {"life": source, "grace_s": grace_s, "walls": walls}
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(launcher.__file__), codec.encode_text(options)),
            *command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(environ),
            cwd=directory,
            pass_fds=(source, *pass_fds),
            start_new_session=True,
        )
    except BaseException:
        os.close(life)
        raise
    finally:
        os.close(source)
    return SupervisedProcess(process, os.fdopen(life, "wb", 0), grace_s=grace_s)


class OutputTooLong(Exception):  # noqa: N818 - it says what happened
    """A process wrote more than it may."""


class ProcessLaunch(Struct, frozen=True, kw_only=True):
    """What to start; its environment is exactly `environ`, and `walls` those around it."""

    command: tuple[str, ...]
    environ: dict[str, str]
    directory: Path
    stdin: bytes
    grace_s: float
    walls: dict[str, Any] | None = None


class CapturedOutput:
    """What a process has written so far, both streams within one bound."""

    def __init__(self, bytes_max: int, log: TaskLogPort | None = None) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        # The lines go there as they come.
        self.log = log or NullTaskLog()
        self._bytes_max = bytes_max

    def add_output(self, stream: bytearray, data: bytes) -> None:
        """Take more output; raises `OutputTooLong`."""
        room = self._bytes_max - len(self.stdout) - len(self.stderr)
        stream += data[:room]
        if len(data) > room:
            raise OutputTooLong


async def run_process(launch: ProcessLaunch, captured: CapturedOutput) -> int:
    """Run a command to its end and return its code; raises `OutputTooLong`.

    What the command leaves behind is ended, also when this is cancelled: all its processes get
    SIGTERM, and SIGKILL after `grace_s`. Raises `OSError` when it cannot be started.
    """
    async with _open_pipe() as (out, out_end), _open_pipe() as (err, err_end):
        with tempfile.TemporaryFile() as stdin:
            stdin.write(launch.stdin)
            stdin.seek(0)
            process = await start_process(
                launch.command,
                environ=launch.environ,
                directory=launch.directory,
                streams=(stdin, out_end, err_end),
                walls=launch.walls,
                grace_s=launch.grace_s,
            )
        out_end.close()
        err_end.close()
        readers = (
            asyncio.ensure_future(_drain_stream(out, captured, STDOUT)),
            asyncio.ensure_future(_drain_stream(err, captured, STDERR)),
        )
        try:
            await _wait_for_end(process, readers)
        finally:
            await process.end_gracefully()
            await _finish_readers(readers)
        for reader in readers:
            if not reader.cancelled() and (problem := reader.exception()) is not None:
                raise problem
        return await process.wait_until_ended()


async def _wait_for_end(
    process: SupervisedProcess, readers: tuple["asyncio.Future[None]", ...]
) -> None:
    """Wait for the command's end, or for a reader that gives up."""
    end = asyncio.ensure_future(process.wait_until_ended())
    pending_futures: set[asyncio.Future[int] | asyncio.Future[None]] = {end, *readers}
    try:
        while not end.done():
            ended_futures, pending_futures = await asyncio.wait(
                pending_futures, return_when=asyncio.FIRST_COMPLETED
            )
            if any(item is not end and item.exception() is not None for item in ended_futures):
                return
    finally:
        end.cancel()


async def _finish_readers(readers: tuple["asyncio.Future[None]", ...]) -> None:
    _, pending = await asyncio.wait(readers, timeout=_LAST_WORDS_S)
    for reader in pending:
        reader.cancel()
    if pending:
        await asyncio.wait(pending)


async def _drain_stream(
    source: asyncio.StreamReader, captured: CapturedOutput, stream: str
) -> None:
    buffer = captured.stdout if stream == STDOUT else captured.stderr
    while data := await source.read(_CHUNK_BYTES):
        captured.log.write_output(stream, data)
        captured.add_output(buffer, data)
        await captured.log.wait_for_room()


@asynccontextmanager
async def _open_pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
    """Open a pipe of our own, so that a process's end does not wait for the pipe's."""
    source, end = os.pipe()
    reading, writing = os.fdopen(source, "rb", 0), os.fdopen(end, "wb", 0)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), reading
    )
    try:
        yield reader, writing
    finally:
        writing.close()
        transport.close()
