"""A process with everything that it starts: all of it ends with the worker, however that ends.

Each runs beside a launcher, which kills it with its descendants when a pipe of the worker closes.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from noetl_contracts import codec
from noetl_worker.sandbox import launcher

# What stands behind a descriptor of the command: a file, or `PIPE`.
Stream = int | IO[bytes]
# More than the launcher itself takes, which waits 10 s for what it has killed.
_LAUNCHER_S = 15.0


class SupervisedProcess:
    """A command that runs beside its launcher; its code is the command's."""

    def __init__(
        self, process: asyncio.subprocess.Process, life: BinaryIO, *, grace_s: float
    ) -> None:
        self._process = process
        self._life = life
        self._grace_s = grace_s

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """Return what the command reads, where that was asked for."""
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """Return what the command writes, where that was asked for."""
        return self._process.stdout

    async def wait(self) -> int:
        """Wait until the command and all that it started have ended; return its code."""
        return await self._process.wait()

    def kill(self) -> None:
        """Have the command and all its descendants killed at once; `wait` returns after that."""
        self._life.close()

    async def end(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL when the grace is over; wait for their end.

        One that is called off while it waits kills at once.
        """
        try:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGTERM)
                await self._wait_at_most(self._grace_s + _LAUNCHER_S)
        finally:
            self.kill()
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
            *(sys.executable, "-I", "-S", str(launcher.__file__), codec.text(options)),
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
