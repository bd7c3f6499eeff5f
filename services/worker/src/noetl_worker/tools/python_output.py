"""Reads what the code of Python tasks writes: records and plain bytes out of two pipes."""

import asyncio
import os
from contextlib import suppress
from typing import BinaryIO

import msgspec

from noetl_contracts.log_chunks import LOGGING, STDERR, STDOUT
from noetl_worker.domain.log_port import Log
from noetl_worker.sandbox.output_records import END, MARK, OutputRecord

_READ_BYTES = 64 * 1024
# A mark without a record behind it was written by a program of the task.
_RECORD_BYTES_MAX = 64 * 1024
# What is still in the pipes when a process has ended.
_REST_S = 1.0
_NO_RECORD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decoder = msgspec.json.Decoder(OutputRecord)


class OutputParser:
    """Puts the bytes of one pipe into a log; `stream` is what bytes between records are of.

    What follows each other in one stream goes to the log at once: code that prints much sends a
    record for each line.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._waiting = b""
        self._ready_stream = stream
        self._ready: list[bytes] = []

    def feed(self, data: bytes, log: Log) -> bool:
        """Take bytes; tell whether the end of a call was among them."""
        waiting, has_ended = self._waiting + data, False
        at = waiting.rfind(b"\n") + 1
        records = _read_records(waiting[:at])
        for record in records:
            has_ended |= self._take_record(record, log)
        if not records:
            at = 0
        while (mark := waiting.find(MARK, at)) >= 0:
            if mark > at:
                self._gather(self._stream, waiting[at:mark], log)
            at = mark
            end = waiting.find(b"\n", mark)
            if end < 0:
                break
            has_ended |= self._take_marked(waiting[mark + 1 : end], log)
            at = end + 1
        rest = waiting[at:]
        if rest and (not rest.startswith(MARK) or len(rest) > _RECORD_BYTES_MAX):
            self._gather(self._stream, rest, log)
            rest = b""
        self._waiting = rest
        self._hand_over(log)
        return has_ended

    def _take_marked(self, data: bytes, log: Log) -> bool:
        try:
            record = _decoder.decode(data)
        except _NO_RECORD:
            self._gather(self._stream, data + b"\n", log)
            return False
        return self._take_record(record, log)

    def _take_record(self, record: OutputRecord, log: Log) -> bool:
        if record.stream == END:
            return True
        if record.stream == LOGGING:
            self._hand_over(log)
            log.add_line(LOGGING, record.text, level=record.level)
        else:
            stream = STDERR if record.stream == STDERR else STDOUT
            self._gather(stream, record.text.encode(), log)
        return False

    def _gather(self, stream: str, data: bytes, log: Log) -> None:
        if stream != self._ready_stream:
            self._hand_over(log)
            self._ready_stream = stream
        self._ready.append(data)

    def _hand_over(self, log: Log) -> None:
        if self._ready:
            log.write(self._ready_stream, b"".join(self._ready))
            self._ready.clear()


def _read_records(data: bytes) -> list[OutputRecord]:
    """Read lines that are records, all of them, at once; else nothing."""
    count = data.count(b"\n")
    has_others = data.count(MARK) != count or data.count(b"\n" + MARK) != count - 1
    if has_others or not data.startswith(MARK):
        return []
    try:
        return _decoder.decode_lines(data.replace(MARK, b""))
    except _NO_RECORD:
        return []


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
