"""Computes in a forked child what must not hold this process; the kernel ends what has no end.

A child has all that its parent knows, so that nothing is sent to it. It sends records back, and
closes all else that it has inherited.
"""

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

Send = Callable[[bytes], None]

_HEAD_BYTES = 4
_FILES_MAX = 1 << 20
_STATM = Path("/proc/self/statm")
_GROWTH_BYTES_MAX = 2 * 1024 * 1024 * 1024


class ChildEnd(Struct, frozen=True, kw_only=True):
    """What a child has sent, and how it ended: `killed_by` is a signal's number."""

    records: list[bytes]
    killed_by: int | None = None
    is_late: bool = False


async def run_child(work: Callable[[Send], None], *, wait_s: float) -> ChildEnd:
    """Run `work` in a child, for at most `wait_s`; it gives what sends a record to here."""
    # A fork copies the tables of all memory: what has led to it is not to hold the loop as well.
    await asyncio.sleep(0)
    reader_fd, writer_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_as_child(work, writer_fd)
    os.close(writer_fd)
    records: list[bytes] = []
    is_late = False
    try:
        async with asyncio.timeout(wait_s):
            await _read_records(reader_fd, records)
    except TimeoutError:
        is_late = True
    finally:
        # One that has ended is not hurt: it is not waited for yet.
        if is_late or asyncio.current_task().cancelling():  # type: ignore[union-attr]  # in a task
            os.kill(pid, signal.SIGKILL)
        status = await asyncio.shield(asyncio.to_thread(_wait_for_exit, pid))
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return ChildEnd(records=records, killed_by=killed_by, is_late=is_late)


def limit_seconds(seconds: float) -> None:
    """Let the kernel end this child when it spends so many more seconds of processor time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s_max = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, resource.RLIM_INFINITY))


def _wait_for_exit(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


async def _read_records(reader_fd: int, records: list[bytes]) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reader_fd, "rb", buffering=0)
    )
    try:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(_HEAD_BYTES)
                records.append(await reader.readexactly(int.from_bytes(head)))
    finally:
        transport.close()


def _run_as_child(work: Callable[[Send], None], writer_fd: int) -> NoReturn:
    """Be the child: nothing of the parent's may run on here."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, writer_fd)
        os.closerange(writer_fd + 1, _FILES_MAX)
        gc.freeze()
        _limit_memory()
        work(lambda record: _send_record(writer_fd, record))
        code = 0
    finally:
        os._exit(code)


def _limit_memory() -> None:
    try:
        pages = int(_STATM.read_bytes().split()[0])
    except OSError:
        return
    bytes_max = pages * resource.getpagesize() + _GROWTH_BYTES_MAX
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or bytes_max < hard:
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, hard))


def _send_record(writer_fd: int, record: bytes) -> None:
    data = memoryview(len(record).to_bytes(_HEAD_BYTES) + record)
    while data:
        data = data[os.write(writer_fd, data) :]
