"""A stretch of network between a client and a server: cut, slow or broken as a test wants."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_CHUNK = 65_536


class Wire:
    """Forwards one port; every method may be called from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._passes = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Let nothing through; connections stay open on both sides, as when packets are lost."""
        self._call(self._passes.clear)

    def heal(self) -> None:
        """Let everything through again, what was held back first."""
        self._call(self._passes.set)

    def reset(self) -> None:
        """Break every connection that is open."""

        def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._call(abort)

    def slow(self, delay_s: float) -> None:
        """Hold every piece back for so long."""
        self._delay_s = delay_s

    def _call(self, what: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    async def _serve(self, ready: threading.Event, over: asyncio.Event) -> None:
        self._passes.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = {writer}
        self._writers.add(writer)
        with suppress(OSError, asyncio.CancelledError):
            await self._passes.wait()
            there, back = await asyncio.open_connection(*self._target)
            ends.add(back)
            self._writers.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        for end in ends:
            end.transport.abort()
        self._writers -= ends
        self._tasks.discard(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(_CHUNK):
            await self._passes.wait()
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            sink.write(piece)
            await sink.drain()
        sink.write_eof()


@contextmanager
def wire(host: str, port: int) -> Iterator[Wire]:
    """Run a wire in a thread of its own until the block ends."""
    found, ready, over = Wire(host, port), threading.Event(), asyncio.Event()
    thread = threading.Thread(
        target=found._loop.run_until_complete, args=(found._serve(ready, over),), daemon=True
    )
    thread.start()
    assert ready.wait(10)
    try:
        yield found
    finally:
        found._loop.call_soon_threadsafe(over.set)
        thread.join(10)
        found._loop.close()
