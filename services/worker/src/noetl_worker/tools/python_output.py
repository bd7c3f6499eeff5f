"""Reads what the code of Python tasks writes: records and plain bytes out of two pipes."""

import asyncio
import os
from contextlib import suppress
from typing import BinaryIO

import msgspec

from noetl_contracts import codec
from noetl_contracts.log_chunks import LOGGING, STDERR, STDOUT
from noetl_worker.sandbox.output_records import END, MARK, OutputRecord
from noetl_worker.tools.call import Log

_READ_BYTES = 64 * 1024
# A mark without a record behind it was written by a program of the task.
_RECORD_BYTES_MAX = 64 * 1024
# What is still in the pipes when a process has ended.
_REST_S = 1.0


class OutputParser:
    """Puts the bytes of one pipe into a log; `stream` is what bytes between records are of."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._waiting = b""

    def feed(self, data: bytes, log: Log) -> bool:
        """Take bytes; tell whether the end of a call was among them."""
        waiting, has_ended, at = self._waiting + data, False, 0
        while (mark := waiting.find(MARK, at)) >= 0:
            if mark > at:
                log.write(self._stream, waiting[at:mark])
            at = mark
            end = waiting.find(b"\n", mark)
            if end < 0:
                break
            has_ended |= self._take_record(waiting[mark + 1 : end], log)
            at = end + 1
        rest = waiting[at:]
        if rest and (not rest.startswith(MARK) or len(rest) > _RECORD_BYTES_MAX):
            log.write(self._stream, rest)
            rest = b""
        self._waiting = rest
        return has_ended

    def _take_record(self, data: bytes, log: Log) -> bool:
        try:
            record = codec.decode_as(data, OutputRecord)
        except (msgspec.DecodeError, msgspec.ValidationError):
            log.write(self._stream, data + b"\n")
            return False
        if record.stream == END:
            return True
        if record.stream == LOGGING:
            log.add_line(LOGGING, record.text, level=record.level)
        else:
            log.write(STDERR if record.stream == STDERR else STDOUT, record.text.encode())
        return False


class PythonOutput:
    """The two pipes of one Python process, read for as long as it lives."""

    def __init__(self, sources: tuple[tuple[str, BinaryIO], ...]) -> None:
        self._log: Log | None = None
        self._ended = {stream: asyncio.Event() for stream, _ in sources}
        self._readers = [
            asyncio.ensure_future(self._read(stream, source)) for stream, source in sources
        ]

    def begin(self, log: Log) -> None:
        """Put what comes from now on into a log."""
        self._log = log
        for ended in self._ended.values():
            ended.clear()

    async def finish(self) -> bool:
        """Wait for the rest of a call and end its log; False when the rest did not come.

        Code that has closed the pipes leaves a process of which nothing is heard any more.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST_S):
                for ended in self._ended.values():
                    await ended.wait()
        if self._log is not None:
            self._log.finish()
        self._log = None
        return all(ended.is_set() for ended in self._ended.values())

    async def close(self) -> None:
        """Read no more."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read(self, stream: str, source: BinaryIO) -> None:
        parser, ended = OutputParser(stream), self._ended[stream]
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), source
        )
        try:
            while data := await reader.read(_READ_BYTES):
                if self._log is None:
                    continue
                if parser.feed(data, self._log):
                    ended.set()
                await self._log.wait_for_room()
        finally:
            ended.set()
            transport.close()


def open_pipe() -> tuple[BinaryIO, int]:
    """Open a pipe; return what to read from, and the descriptor that a process writes to."""
    source, end = os.pipe()
    return os.fdopen(source, "rb", 0), end
