"""One command: its output within bounds, and all that it started ended with it."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from noetl_contracts.log_chunks import STDERR, STDOUT
from noetl_worker.domain.log_port import Log, NoLog
from noetl_worker.tools.supervised_process import SupervisedProcess, start_process

_CHUNK_BYTES = 64 * 1024
# For output that is still in the pipes.
_LAST_WORDS_S = 1.0


class OutputTooLong(Exception):  # noqa: N818 - it says what happened
    """A process wrote more than it may."""


class Launch(Struct, frozen=True, kw_only=True):
    """What to start; its environment is exactly `environ`, and `walls` those around it."""

    command: tuple[str, ...]
    environ: dict[str, str]
    directory: Path
    stdin: bytes
    grace_s: float
    walls: dict[str, Any] | None = None


class Captured:
    """What a process has written so far, both streams within one bound."""

    def __init__(self, bytes_max: int, log: Log | None = None) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        # The lines go there as they come.
        self.log = log or NoLog()
        self._bytes_max = bytes_max

    def add(self, stream: bytearray, data: bytes) -> None:
        """Take more output; raises `OutputTooLong`."""
        room = self._bytes_max - len(self.stdout) - len(self.stderr)
        stream += data[:room]
        if len(data) > room:
            raise OutputTooLong


async def run(launch: Launch, captured: Captured) -> int:
    """Run a command to its end and return its code; raises `OutputTooLong`.

    What the command leaves behind is ended, also when this is cancelled: all its processes get
    SIGTERM, and SIGKILL after `grace_s`. Raises `OSError` when it cannot be started.
    """
    async with _pipe() as (out, out_end), _pipe() as (err, err_end):
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
            asyncio.ensure_future(_drain(out, captured, STDOUT)),
            asyncio.ensure_future(_drain(err, captured, STDERR)),
        )
        try:
            await _ended(process, readers)
        finally:
            await process.end()
            await _finish(readers)
        for reader in readers:
            if not reader.cancelled() and (problem := reader.exception()) is not None:
                raise problem
        return await process.wait()


async def _ended(process: SupervisedProcess, readers: tuple["asyncio.Future[None]", ...]) -> None:
    """Wait for the command's end, or for a reader that gives up."""
    end = asyncio.ensure_future(process.wait())
    waiting: set[asyncio.Future[int] | asyncio.Future[None]] = {end, *readers}
    try:
        while not end.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(one is not end and one.exception() is not None for one in done):
                return
    finally:
        end.cancel()


async def _finish(readers: tuple["asyncio.Future[None]", ...]) -> None:
    _, pending = await asyncio.wait(readers, timeout=_LAST_WORDS_S)
    for reader in pending:
        reader.cancel()
    if pending:
        await asyncio.wait(pending)


async def _drain(source: asyncio.StreamReader, captured: Captured, stream: str) -> None:
    held = captured.stdout if stream == STDOUT else captured.stderr
    while data := await source.read(_CHUNK_BYTES):
        captured.log.write(stream, data)
        captured.add(held, data)
        await captured.log.wait_for_room()


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
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
