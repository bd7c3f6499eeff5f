"""What a stack holds at one moment: memory and files of each process, sizes of what is stored."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec
import psutil
from msgspec import Struct
from tests.support.stack import Stack

MIB = 2**20
_STORED = """
SELECT pg_database_size(current_database()) AS ledger_bytes,
       (SELECT coalesce(sum(version), 0)::bigint FROM noetl.execution_head) AS events,
       (SELECT count(*) FROM noetl.outbox) AS outbox_rows,
       (SELECT count(datid) FROM pg_stat_activity) AS connections
"""


class Held(Struct, frozen=True, kw_only=True):
    """One process of the stack with its children.

    Memory in MiB, shared pages divided among those that share them (PSS), and what is theirs
    alone (`private`, USS).
    """

    pid: int
    family_mib: float
    family_private_mib: float
    files: int
    processes: int
    cpu_s: float
    # How late a process answers whether it lives: its loop's delay, and one small request.
    answer_ms: float | None = None


class Sample(Struct, frozen=True, kw_only=True):
    """A stack at one moment, `at_s` after the first."""

    at_s: float
    held: dict[str, Held]
    events: int
    outbox_rows: int
    connections: int
    ledger_mib: float
    jetstream_mib: float
    payloads_mib: float
    shared_mib: float
    logs_mib: float
    machine_busy: float


def take(stack: Stack, *, since: float, shared: Path) -> Sample:
    """Look at everything once; raises `OSError` or a database error where something is away."""
    state = stack.state["processes"]
    held = {
        name: found
        for name, item in state.items()
        if item["pid"] and (found := _held(item["pid"], item.get("health_url"))) is not None
    }
    stored = asyncio.run(_stored(stack.url("postgres")))
    folder = stack.folder
    return Sample(
        at_s=round(time.monotonic() - since, 1),
        held=held,
        events=stored["events"],
        outbox_rows=stored["outbox_rows"],
        connections=stored["connections"],
        ledger_mib=_mib(stored["ledger_bytes"]),
        jetstream_mib=_mib(folder_bytes(folder / "nats")),
        payloads_mib=_mib(folder_bytes(folder / "seaweedfs") + folder_bytes(folder / "payloads")),
        shared_mib=_mib(folder_bytes(shared)),
        logs_mib=_mib(folder_bytes(folder / "logs")),
        machine_busy=psutil.cpu_percent(),
    )


def _held(pid: int, health_url: str | None) -> Held | None:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        memories = [found for item in family if (found := _memory(item)) is not None]
        if not memories:
            return None
        times = process.cpu_times()
        return Held(
            pid=pid,
            family_mib=_mib(sum(one.pss for one in memories)),
            family_private_mib=_mib(sum(one.uss for one in memories)),
            files=sum(_files(item) for item in family),
            processes=len(memories),
            cpu_s=round(times.user + times.system + times.children_user + times.children_system, 1),
            answer_ms=None if health_url is None else _answer_ms(f"{health_url}/livez"),
        )
    except psutil.NoSuchProcess:
        return None  # ended between the listing and the look


def _memory(process: psutil.Process) -> Any:
    with suppress(psutil.NoSuchProcess):
        return process.memory_full_info()
    return None


def _files(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.num_fds())
    return 0


def _answer_ms(url: str) -> float | None:
    began = time.perf_counter()
    try:
        httpx.get(url, timeout=10)
    except httpx.HTTPError:
        return None
    return round((time.perf_counter() - began) * 1000, 1)


async def _stored(dsn: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(_STORED)
    finally:
        await connection.close()
    assert row is not None, "counts are one row"
    return dict(row)


def folder_bytes(folder: Path) -> int:
    """Add up what the files below a folder take on the disk; what goes meanwhile does not count."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(at, name)).st_blocks * 512  # noqa: PTH118 - many files
    return total


def _mib(size: float) -> float:
    return round(size / MIB, 2)


@contextmanager
def sampling(
    stack: Stack, file: Path, *, every_s: float, shared: Path, say: Callable[[str], None]
) -> Iterator[None]:
    """Take a sample every so often until the block ends; each is a line of `file` at once."""
    is_over, since = threading.Event(), time.monotonic()
    psutil.cpu_percent()

    def watch() -> None:
        encode = msgspec.json.Encoder().encode
        while not is_over.wait(every_s):
            try:
                sample = take(stack, since=since, shared=shared)
            except (OSError, asyncpg.PostgresError) as failure:
                say(f"no sample: {failure}")
                continue
            with file.open("ab") as lines:
                lines.write(encode(sample) + b"\n")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def read(file: Path) -> list[Sample]:
    """Read the samples of a file."""
    return [msgspec.json.decode(line, type=Sample) for line in file.read_bytes().splitlines()]
