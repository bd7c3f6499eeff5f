"""Segments in shared memory: mapped without a copy, doubted without an error, swept by owner."""

import asyncio
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from tests.support.manual_clock import ManualClock
from tests.support.polling import eventually
from tests.support.storage import ORGANIZATION, TENANT
from tests.support.tiering import TierCounts, open_shared, ref_of

from noetl_chassis.clock import SystemClock
from noetl_contracts.payloads import PayloadRef
from noetl_storage.arrow.encoding import digest_schema
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.tiers import segment_directory, segment_format, segment_sweep
from noetl_storage.tiers.segment_directory import SegmentDirectoryRefused
from noetl_storage.tiers.segment_format import HEADER_BYTES, TRAILER_BYTES, SegmentOwner
from noetl_storage.tiers.shared import GRACE_S, SharedTier, read_mapped_table
from noetl_storage.tiers.tiered_payloads import TieredPayloads

MEBIBYTE = 1024 * 1024
BATCH_ROWS = MEBIBYTE
BATCHES = 32
PAGE = 4096
KILLS = 100
LEASE_S = 30.0
DATA = b"rows and rows"


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def segment_of(folder: Path, ref: PayloadRef) -> Path:
    (file,) = folder.rglob(segment_format.build_segment_name(ref))
    return file


def budget_of(folder: Path) -> Path:
    (file,) = folder.rglob(segment_directory.BUDGET)
    return file


def resident(what: str) -> int:
    """Bytes that this process holds in memory, as the kernel counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the kernel does not tell {what}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now())


async def test_a_segment_begins_as_the_page_says(tmp_path: Path, clock: ManualClock) -> None:
    tier = open_shared(tmp_path, clock=clock)
    await tier.keep_copy(ref_of(DATA), DATA)
    file = segment_of(tmp_path, ref_of(DATA))
    data = file.read_bytes()
    assert data[:8] == b"NOETLIPC"
    assert int.from_bytes(data[8:14], "little") == len(DATA)
    assert int.from_bytes(data[14:16], "little") == 1
    assert data[HEADER_BYTES : HEADER_BYTES + len(DATA)] == DATA
    assert len(data) == HEADER_BYTES + len(DATA) + TRAILER_BYTES
    assert file.stat().st_mode & 0o777 == 0o600


async def test_record_batches_lie_where_the_segment_is_mapped(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": pa.array(range(1000), pa.int64()),
            "s": pa.array([f"row {i}" for i in range(1000)], pa.large_string()),
            "d": pa.array(["a", None] * 500).dictionary_encode(),
        }
    )
    data = arrow(table)
    tier = open_shared(tmp_path, clock=SystemClock())
    await tier.keep_copy(ref_of(data), data)
    mapped = tier.map_bytes(ref_of(data))
    before = pa.total_allocated_bytes()
    mapped_table = read_mapped_table(mapped)
    assert mapped_table.equals(table)
    buffers = [
        buffer
        for name in ("i", "s")
        for buffer in mapped_table[name].chunk(0).buffers()
        if buffer is not None
    ]
    assert len(buffers) == 3
    for buffer in buffers:
        assert mapped.address <= buffer.address < mapped.address + mapped.size
    assert pa.total_allocated_bytes() == before
    segment_of(tmp_path, ref_of(data)).unlink()
    assert mapped_table["s"][999].as_py() == "row 999"


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A directory in the machine's shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="noetl-test-") as name:
        yield Path(name)


async def test_a_large_table_is_read_without_being_held(memory_folder: Path) -> None:
    """A table of 256 MB: what the reader holds for itself, and that nothing was copied."""
    tier = open_shared(memory_folder, clock=SystemClock(), bytes_max=512 * MEBIBYTE)
    batch = pa.record_batch({"i": pa.array([7] * BATCH_ROWS, pa.int64())})
    data = arrow(pa.Table.from_batches([batch] * BATCHES))
    ref = ref_of(data)
    assert len(data) > 256 * MEBIBYTE
    assert await tier.keep_copy(ref, data)
    del data
    store = TieredPayloads(MemoryPayloads(), watch=TierCounts(), shared=tier)
    pa.default_memory_pool().release_unused()
    alone, allocated = resident("RssAnon"), pa.total_allocated_bytes()
    everything = resident("VmRSS")
    table = await store.map_table(ref)
    assert resident("VmRSS") - everything < 10 * MEBIBYTE
    assert sum(batch["i"][0].as_py() for batch in table.to_batches()) == 7 * BATCHES
    assert table.num_rows == BATCH_ROWS * BATCHES
    assert resident("RssAnon") - alone < 10 * MEBIBYTE
    assert pa.total_allocated_bytes() - allocated < MEBIBYTE
    tier.close()
    assert left(memory_folder) == set()


def doubts() -> dict[str, Any]:
    """What may be wrong with a segment, as a change to its file."""

    def write_at(file: Path, place: int, data: bytes) -> None:
        with file.open("r+b") as opened:
            opened.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
            opened.write(data)

    return {
        "gone": lambda file: file.unlink(),
        "torn header": lambda file: write_at(file, 0, b"NOETLIP"[:3] + b"\0"),
        "another version": lambda file: write_at(file, 14, b"\x02"),
        "a length too large": lambda file: write_at(file, 8, b"\xff\xff"),
        "cut off": lambda file: os.truncate(file, file.stat().st_size - 1),
        "cut to a part of its header": lambda file: os.truncate(file, 5),
        "empty": lambda file: os.truncate(file, 0),
        "another digest": lambda file: write_at(file, -TRAILER_BYTES, b"\xff" * 32),
        "a flipped byte": lambda file: write_at(file, HEADER_BYTES, b"R"),
        "a link to elsewhere": lambda file: (file.unlink(), file.symlink_to("/etc/passwd")),
    }


@pytest.mark.parametrize("doubt", list(doubts()))
async def test_every_doubt_is_only_a_miss(tmp_path: Path, doubt: str) -> None:
    tier, seen = open_shared(tmp_path, clock=SystemClock()), TierCounts()
    store = TieredPayloads(MemoryPayloads(), watch=seen, shared=tier)
    ref = await store.put_payload(
        DATA, tenant_id=TENANT, organization_id=ORGANIZATION, media_type="text/plain"
    )
    doubts()[doubt](segment_of(tmp_path, ref))
    assert await store.read_payload(ref) == DATA
    assert seen.hits == {"store": 1}
    assert seen.misses == {"shared": 1}


async def test_an_expired_segment_is_a_miss_until_it_is_made_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    tier = open_shared(tmp_path, clock=clock, lease_s=LEASE_S)
    await tier.keep_copy(ref_of(DATA), DATA)
    clock.advance_by(LEASE_S + GRACE_S + 1)
    assert await tier.find_copy(ref_of(DATA)) is None
    assert tier.sweep_node() == {"expired": 1}
    assert tier.used_bytes() == 0
    assert await tier.keep_copy(ref_of(DATA), DATA)
    assert await tier.find_copy(ref_of(DATA)) == DATA


async def test_a_segment_that_is_read_stays_and_one_that_is_not_goes(
    tmp_path: Path, clock: ManualClock
) -> None:
    tier = open_shared(tmp_path, clock=clock, lease_s=LEASE_S)
    read, unread = ref_of(DATA), ref_of(b"unread")
    await tier.keep_copy(read, DATA)
    await tier.keep_copy(unread, b"unread")
    for _ in range(3):
        clock.advance_by(LEASE_S)
        assert await tier.find_copy(read) == DATA
    assert tier.sweep_node() == {"expired": 1}
    assert await tier.find_copy(read) == DATA


async def test_of_all_processes_of_a_node_one_sweeps_and_each_tends_its_own(
    tmp_path: Path, clock: ManualClock
) -> None:
    first, second = (open_shared(tmp_path, clock=clock, lease_s=LEASE_S) for _ in range(2))
    second._me = structs.replace(second._me, namespace=1)
    await first.keep_copy(ref_of(DATA), DATA)
    await second.keep_copy(ref_of(b"unseen"), b"unseen")
    assert first.tend_segments(interval_s=1e9) == {}
    clock.advance_by(LEASE_S + GRACE_S + 1)
    assert first.tend_segments(interval_s=1e9) == {"expired": 1}
    assert len(left(tmp_path)) == 1
    assert first.tend_segments(interval_s=1) == {"expired": 1}
    assert left(tmp_path) == set()


async def test_the_clock_of_the_day_does_not_end_a_lease(
    tmp_path: Path, clock: ManualClock
) -> None:
    tier = open_shared(tmp_path, clock=clock)
    await tier.keep_copy(ref_of(DATA), DATA)
    clock.set_back(-3600)
    assert await tier.find_copy(ref_of(DATA)) == DATA


async def test_another_schema_than_promised_is_a_miss(tmp_path: Path) -> None:
    table = pa.table({"i": [1]})
    data = arrow(table)
    tier = open_shared(tmp_path, clock=SystemClock())
    store = TieredPayloads(MemoryPayloads(), watch=TierCounts(), shared=tier)
    await tier.keep_copy(ref_of(data), data)
    assert await store.map_table(ref_of(data, schema_digest=digest_schema(table.schema))) == table
    assert await store.map_table(ref_of(data, schema_digest="0" * 64)) is None


async def test_a_flipped_byte_in_a_table_is_found_when_it_is_asked_for(tmp_path: Path) -> None:
    data = arrow(pa.table({"i": pa.array([1, 2, 3], pa.int64())}))
    tier = open_shared(tmp_path, clock=SystemClock())
    store = TieredPayloads(MemoryPayloads(), watch=TierCounts(), shared=tier)
    await tier.keep_copy(ref_of(data), data)
    file = segment_of(tmp_path, ref_of(data))
    changed = file.read_bytes().replace((2).to_bytes(8, "little"), (9).to_bytes(8, "little"))
    file.write_bytes(changed)
    assert await store.map_table(ref_of(data), is_verified=True) is None


async def test_bytes_that_are_no_arrow_stream_are_a_miss_as_a_table(tmp_path: Path) -> None:
    tier = open_shared(tmp_path, clock=SystemClock())
    store = TieredPayloads(MemoryPayloads(), watch=TierCounts(), shared=tier)
    await tier.keep_copy(ref_of(DATA), DATA)
    assert await store.map_table(ref_of(DATA)) is None


async def test_full_shared_memory_is_only_a_refusal(tmp_path: Path) -> None:
    tier = open_shared(tmp_path, clock=SystemClock())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    write, os.write = os.write, full  # type: ignore[assignment]  # the file system is full
    try:
        assert not await tier.keep_copy(ref_of(DATA), DATA)
    finally:
        os.write = write
    assert tier.used_bytes() == 0
    assert left(tmp_path) == set()


async def test_the_budget_is_that_of_the_node(tmp_path: Path) -> None:
    first = open_shared(tmp_path, clock=SystemClock(), bytes_max=PAGE)
    second = open_shared(tmp_path, clock=SystemClock(), bytes_max=PAGE)
    assert await first.keep_copy(ref_of(b"a" * 500), b"a" * 500)
    assert not await second.keep_copy(ref_of(b"b" * 500), b"b" * 500)
    await first.forget_copy(ref_of(b"a" * 500))
    assert await second.keep_copy(ref_of(b"b" * 500), b"b" * 500)


async def test_a_locked_budget_keeps_nobody_waiting(tmp_path: Path) -> None:
    tier = open_shared(tmp_path, clock=SystemClock())
    with budget_of(tmp_path).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not await tier.keep_copy(ref_of(DATA), DATA)
    assert await tier.keep_copy(ref_of(DATA), DATA)


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"noetl-{os.geteuid()}").mkdir(mode=0o777)
    (tmp_path / f"noetl-{os.geteuid()}").chmod(0o777)
    with pytest.raises(SegmentDirectoryRefused, match="open to other users"):
        open_shared(tmp_path, clock=SystemClock())


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    me = segment_format.find_this_process()
    assert me is not None
    assert segment_format.parse_owner(str(me)) == me
    assert segment_format.is_alive(me)
    assert segment_format.is_alive(structs.replace(me, started=me.started - 1)) is False
    assert segment_format.is_alive(structs.replace(me, namespace=me.namespace + 1)) is None


async def test_a_segment_of_processes_that_cannot_be_seen_goes_by_its_lease(
    tmp_path: Path, clock: ManualClock
) -> None:
    tier = open_shared(tmp_path, clock=clock)
    tier._me = structs.replace(tier._me, namespace=1)
    await tier.keep_copy(ref_of(DATA), DATA)
    other = open_shared(tmp_path, clock=clock)
    assert other.sweep_node() == {}
    clock.advance_by(LEASE_S + GRACE_S + 1)
    assert other.sweep_node() == {"expired": 1}


async def test_an_empty_directory_goes_and_its_owner_makes_it_again(tmp_path: Path) -> None:
    idle = open_shared(tmp_path, clock=SystemClock(), store_url="s3://idle")
    busy = open_shared(tmp_path, clock=SystemClock())
    busy.sweep_node()
    assert not idle._place.exists()
    assert await idle.keep_copy(ref_of(DATA), DATA)
    assert await idle.find_copy(ref_of(DATA)) == DATA
    assert busy.sweep_node() == {}
    assert await idle.find_copy(ref_of(DATA)) == DATA


async def test_a_torn_segment_goes_once_it_is_old(tmp_path: Path, clock: ManualClock) -> None:
    tier = open_shared(tmp_path, clock=clock)
    (tier._place / "torn").write_bytes(b"NOET")
    assert tier.sweep_node() == {}
    clock.advance_by(LEASE_S + GRACE_S + 3600)
    assert tier.sweep_node() == {"torn": 1}


@contextmanager
def nursery() -> Iterator[Any]:
    """Fork producers on demand: a process for each would import everything again."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.producing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def begin(mode: str, folder: Path) -> int:
        process.stdin.write(f"{mode} {folder}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    try:
        yield begin
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()


async def kill_at_some_moment(pid: int) -> None:
    await asyncio.sleep(random.random() / 50)
    os.kill(pid, signal.SIGKILL)


async def gone(pid: int) -> None:
    async def is_gone() -> bool:
        return segment_format._read_process_stat(pid) is None

    await eventually(is_gone)


def left(folder: Path) -> set[str]:
    return {
        entry.name for entry in segment_directory.iterate_segments(next(folder.glob("noetl-*")))
    }


async def test_of_killed_producers_nothing_stays_and_of_living_ones_everything(
    tmp_path: Path,
) -> None:
    mine: SharedTier = open_shared(tmp_path, clock=SystemClock())
    await mine.keep_copy(ref_of(DATA), DATA)
    kept, seen_dead = segment_format.build_segment_name(ref_of(DATA)), 0
    with nursery() as begin:
        living = begin("modest", tmp_path)
        other_owner = owner_of(living)
        for number in range(KILLS):
            mode = ("written", "linked", "busy")[number % 3]
            pid = begin(mode, tmp_path)
            if mode == "busy":
                await kill_at_some_moment(pid)
            await gone(pid)
            seen_dead += mine.sweep_node()["dead"]
        os.kill(living, signal.SIGSTOP)
        mine.sweep_node()
        assert set(owners_in(tmp_path)) <= {other_owner, mine._me}
        assert kept in left(tmp_path)
        theirs = {name for name in left(tmp_path) if name != kept}
        assert theirs, "the living producer has kept nothing at all"
        mine.sweep_node()
        assert theirs <= left(tmp_path)
        assert seen_dead >= KILLS // 3
        os.kill(living, signal.SIGKILL)
        await gone(living)
    mine.sweep_node()
    assert left(tmp_path) == {kept}
    assert mine.used_bytes() == PAGE


def owner_of(pid: int) -> SegmentOwner:
    me, found = segment_format.find_this_process(), segment_format._read_process_stat(pid)
    assert me is not None
    assert found is not None
    return SegmentOwner(pid=pid, started=found[1], namespace=me.namespace)


def owners_in(folder: Path) -> Iterator[SegmentOwner | None]:
    for entry in segment_directory.iterate_segments(next(folder.glob("noetl-*"))):
        trailer = (
            None
            if entry.name.endswith(segment_directory.PART)
            else segment_sweep.read_segment_trailer(Path(entry))
        )
        yield segment_directory.parse_part_owner(entry.name) if trailer is None else trailer.owner
