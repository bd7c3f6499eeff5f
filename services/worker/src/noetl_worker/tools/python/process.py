"""The child process of a python task: its scope, its two output pipes, and the records in them."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.log_chunks import LOGGING, STDERR, STDOUT
from noetl_worker.sandbox.call_pipes import LENGTH
from noetl_worker.sandbox.task_output import END, MARK, OutputRecord
from noetl_worker.sandbox.user_call import CallAnswer, CallRequest, ProcessReady
from noetl_worker.task_logs.task_log import TaskLogPort
from noetl_worker.tools.calls.call import CheckoutPort, RowSink
from noetl_worker.tools.calls.child_process import SupervisedProcess, start_process
from noetl_worker.tools.python.process_family import ProcessFamily, find_family

_READ_BYTES = 64 * 1024
# A mark without a record behind it was written by a program of the task.
_RECORD_BYTES_MAX = 64 * 1024
# What is still in the pipes when a process has ended.
_REST_S = 1.0
_NO_RECORD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decoder = msgspec.json.Decoder(OutputRecord)
_REST_BYTES = 64 * 1024
_END_S = 2.0
Owner = tuple[str, str]


class OutputParser:
    """Puts the bytes of one pipe into a log; `stream` is what bytes between records are of.

    What follows each other in one stream goes to the log at once: code that prints much sends a
    record for each line.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._unread_bytes = b""
        self._ready_stream = stream
        self._ready: list[bytes] = []

    def feed_bytes(self, data: bytes, log: TaskLogPort) -> bool:
        """Take bytes; tell whether the end of a call was among them."""
        buffer, has_ended = self._unread_bytes + data, False
        at = buffer.rfind(b"\n") + 1
        records = _read_records(buffer[:at])
        for record in records:
            has_ended |= self._take_record(record, log)
        if not records:
            at = 0
        while (mark := buffer.find(MARK, at)) >= 0:
            if mark > at:
                self._gather_bytes(self._stream, buffer[at:mark], log)
            at = mark
            end = buffer.find(b"\n", mark)
            if end < 0:
                break
            has_ended |= self._take_marked(buffer[mark + 1 : end], log)
            at = end + 1
        unread_bytes = buffer[at:]
        if unread_bytes and (
            not unread_bytes.startswith(MARK) or len(unread_bytes) > _RECORD_BYTES_MAX
        ):
            self._gather_bytes(self._stream, unread_bytes, log)
            unread_bytes = b""
        self._unread_bytes = unread_bytes
        self._flush_ready(log)
        return has_ended

    def _take_marked(self, data: bytes, log: TaskLogPort) -> bool:
        try:
            record = _decoder.decode(data)
        except _NO_RECORD:
            self._gather_bytes(self._stream, data + b"\n", log)
            return False
        return self._take_record(record, log)

    def _take_record(self, record: OutputRecord, log: TaskLogPort) -> bool:
        """Write a record of output to the log; True for the record that ends the call."""
        if record.stream == END:
            return True
        if record.stream == LOGGING:
            self._flush_ready(log)
            log.add_line(LOGGING, record.text, level=record.level)
        else:
            stream = STDERR if record.stream == STDERR else STDOUT
            self._gather_bytes(stream, record.text.encode(), log)
        return False

    def _gather_bytes(self, stream: str, data: bytes, log: TaskLogPort) -> None:
        if stream != self._ready_stream:
            self._flush_ready(log)
            self._ready_stream = stream
        self._ready.append(data)

    def _flush_ready(self, log: TaskLogPort) -> None:
        if self._ready:
            log.write_output(self._ready_stream, b"".join(self._ready))
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
        self._log: TaskLogPort | None = None
        self._end_by_stream = {stream: asyncio.Event() for stream, _ in sources}
        self._readers = [
            asyncio.ensure_future(self._read_source(stream, source)) for stream, source in sources
        ]

    def begin_call(self, log: TaskLogPort) -> None:
        """Put what comes from now on into a log."""
        self._log = log
        for call_ended in self._end_by_stream.values():
            call_ended.clear()

    async def finish_call(self) -> bool:
        """Wait for the rest of a call and end its log; False when the rest did not come.

        Code that has closed the pipes leaves a process of which nothing is heard any more.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST_S):
                for call_ended in self._end_by_stream.values():
                    await call_ended.wait()
        if self._log is not None:
            self._log.finish_lines()
        self._log = None
        return all(call_ended.is_set() for call_ended in self._end_by_stream.values())

    async def close(self) -> None:
        """Read no more."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read_source(self, stream: str, source: BinaryIO) -> None:
        parser, call_ended = OutputParser(stream), self._end_by_stream[stream]
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), source
        )
        try:
            while data := await reader.read(_READ_BYTES):
                if self._log is None:
                    continue
                if parser.feed_bytes(data, self._log):
                    call_ended.set()
                await self._log.wait_for_room()
        finally:
            call_ended.set()
            transport.close()


def open_output_pipe() -> tuple[BinaryIO, int]:
    """Open a pipe; return what to read from, and the descriptor that a process writes to."""
    source, end = os.pipe()
    return os.fdopen(source, "rb", 0), end


async def send_frame(process: SupervisedProcess, data: bytes) -> None:
    """Send a message to a process; raises `EOFError` when it ended."""
    writer = process.stdin
    if writer is None:
        raise EOFError
    try:
        writer.write(LENGTH.pack(len(data)) + data)
        await writer.drain()
    except ConnectionError as problem:
        raise EOFError from problem


async def read_frame(process: SupervisedProcess) -> bytes:
    """Read a message of a process; raises `EOFError` when it ended."""
    reader = process.stdout
    if reader is None:
        raise EOFError
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError) as problem:
        raise EOFError from problem


async def read_rest(process: SupervisedProcess) -> None:
    """Read what nobody wants any more: a pipe that is not read to its end stays open."""
    reader = process.stdout
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            while reader is not None and await reader.read(_REST_BYTES):
                continue


async def start_python_process(
    module: str, bounds: dict[str, Any], home: Path, files: Path, **environ: str
) -> tuple[SupervisedProcess, PythonOutput]:
    """Start a module that confines itself to `bounds`, in the folder `files`."""
    out, out_end = open_output_pipe()
    err, err_end = open_output_pipe()
    try:
        process = await start_process(
            (sys.executable, "-I", "-m", module, codec.encode_text({**bounds, "output": out_end})),
            streams=(asyncio.subprocess.PIPE, asyncio.subprocess.PIPE, err_end),
            pass_fds=(out_end,),
            environ={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "TMPDIR": str(home),
                "LANG": "C.UTF-8",
                **environ,
            },
            directory=files,
        )
    except BaseException:
        out.close()
        err.close()
        raise
    finally:
        os.close(out_end)
        os.close(err_end)
    return process, PythonOutput(((STDOUT, out), (STDERR, err)))


class ProcessScope(Struct, frozen=True, kw_only=True):
    """What a process was started with: it serves the tasks of one such room."""

    owner: Owner
    has_network: bool
    packages: Path | None


class PythonChild:
    """One process in its home; it serves one tenant and is replaced after many calls."""

    def __init__(
        self,
        process: SupervisedProcess,
        output: PythonOutput,
        *,
        room: ProcessScope,
        home: Path,
        checkout: CheckoutPort,
    ) -> None:
        self.room = room
        self.output = output
        self.home = home
        # The folder in which the code runs, with the files of one execution after another.
        self.checkout = checkout
        self.execution_id = ""
        self.calls = 0
        self._process = process
        self._family: ProcessFamily | None = None

    async def wait_until_ready(self) -> dict[str, str]:
        """Wait until it has its walls; return those that it lacks, with reasons.

        Raises `EOFError` when the process ended.
        """
        ready = codec.decode_as(await read_frame(self._process), ProcessReady)
        self._family = find_family(self._process.pid)
        return ready.lacking

    def has_leftovers(self) -> bool:
        """Tell whether a call has left processes behind; the system answers at once."""
        return self._family is not None and self._family.has_grown()

    async def send_call(self, ask: CallRequest, sink: RowSink | None = None) -> CallAnswer:
        """Send one call and read its answer; raises `EOFError` when the process ended.

        Rows that come before the answer go to the `sink`: while that waits, so does the process.
        """
        self.calls += 1
        await send_frame(self._process, codec.encode_json(ask))
        while True:
            answer = codec.decode_as(await read_frame(self._process), CallAnswer)
            if answer.rows is None or sink is None:
                return answer
            await sink.write_rows(answer.rows)

    def kill_process(self) -> None:
        """End it, with all that user code has started, without a warning."""
        self._process.kill_all()

    async def wait_until_ended(self) -> int:
        """Wait until it is gone and return how it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._process.wait_until_ended()
        await self._process.end_gracefully()
        code = await self._process.wait_until_ended()
        if self._family is not None:
            self._family.close()
            self._family = None
        await read_rest(self._process)
        return code
