"""A child process that runs the code of Python tasks, asked over its pipes."""

import asyncio
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_worker.sandbox.calling import Answer, Ask
from noetl_worker.tools.call import Sink
from noetl_worker.tools.python_output import PythonOutput
from noetl_worker.tools.supervised_process import SupervisedProcess

_REST_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_END_S = 2.0

Owner = tuple[str, str]


class Room(Struct, frozen=True, kw_only=True):
    """What a process was started with: it serves the tasks of one such room."""

    owner: Owner
    has_network: bool
    packages: Path | None


class Child:
    """One process in its home; it serves one tenant and is replaced after many calls."""

    def __init__(
        self,
        process: SupervisedProcess,
        output: PythonOutput,
        *,
        room: Room,
        home: Path,
        checkout: Any,
    ) -> None:
        self.room = room
        self.output = output
        self.home = home
        # The folder in which the code runs, with the files of one execution after another.
        self.checkout = checkout
        self.execution_id = ""
        self.calls = 0
        self._process = process

    async def ask(self, ask: Ask, sink: Sink | None = None) -> Answer:
        """Send one call and read its answer; raises `EOFError` when the process ended.

        Rows that come before the answer go to the `sink`: while that waits, so does the process.
        """
        self.calls += 1
        reader, writer = self._process.stdout, self._process.stdin
        if reader is None or writer is None:
            raise EOFError
        data = codec.encode(ask)
        writer.write(_LENGTH.pack(len(data)) + data)
        try:
            await writer.drain()
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                answer = codec.decode_as(await reader.readexactly(length), Answer)
                if answer.rows is None or sink is None:
                    return answer
                await sink.take(answer.rows)
        except (asyncio.IncompleteReadError, ConnectionError) as problem:
            raise EOFError from problem

    def kill(self) -> None:
        """End it, with all that user code has started, without a warning."""
        self._process.kill()

    async def ended(self) -> int:
        """Wait until it is gone and return how it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        await self._process.end()
        code = await self._process.wait()
        await self._forget_rest()
        return code

    async def _forget_rest(self) -> None:
        """Read what nobody wants any more: a pipe that is not read to its end stays open."""
        reader = self._process.stdout
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while reader is not None and await reader.read(_REST_BYTES):
                    continue
