"""The tiers that settings ask for, put in front of a store, swept, counted and put away."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.polling import eventually
from tests.support.storage import ORGANIZATION, TENANT
from tests.support.tiering import ref_of
from tests.support.working import settings_of

from noetl_chassis.clock import SystemClock
from noetl_chassis.observability import instruments, names
from noetl_chassis.observability.names import Metric
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import StorageMisconfigured
from noetl_storage.tiers import segment_directory, segment_format
from noetl_storage.tiers.shared import SharedTier
from noetl_storage.tiers.tiered_payloads import TieredPayloads
from noetl_worker.wiring import open_tiers

DATA = b"a result of some bytes"


def counted(metric: Metric, **labels: str) -> float:
    sums = instruments._get_counter(metric)._sums
    return sum(item.total for key, item in sums.items() if dict(key) == labels)


async def put(store: TieredPayloads) -> None:
    await store.put_payload(
        DATA, tenant_id=TENANT, organization_id=ORGANIZATION, media_type="text/plain"
    )


def segments_in(folder: Path) -> list[Path]:
    return [
        Path(entry)
        for root in folder.glob("noetl-*")
        for entry in segment_directory.iterate_segments(root)
    ]


async def test_a_worker_puts_its_segments_away_when_it_ends(tmp_path: Path) -> None:
    config = settings_of(shared_directory=str(tmp_path), lease_s=30.0)
    hits = counted(names.STORAGE_READS, tier="shared", outcome="hit")
    async with open_tiers(config, MemoryPayloads(), SystemClock()) as store:
        await put(store)
        assert len(segments_in(tmp_path)) == 1
        assert await store.read_payload(ref_of(DATA)) == DATA
    assert segments_in(tmp_path) == []
    assert counted(names.STORAGE_READS, tier="shared", outcome="hit") == hits + 1


async def test_workers_of_a_node_share_and_deployments_do_not(tmp_path: Path) -> None:
    config = settings_of(shared_directory=str(tmp_path))
    other = structs.replace(config, payload_url="s3://another")
    below = MemoryPayloads()
    async with (
        open_tiers(config, below, SystemClock()) as first,
        open_tiers(config, below, SystemClock()) as second,
        open_tiers(other, MemoryPayloads(), SystemClock()) as elsewhere,
    ):
        await put(first)
        below.bytes_by_key.clear()
        assert await second.read_payload(ref_of(DATA)) == DATA
        assert await elsewhere.map_table(ref_of(DATA)) is None
        assert elsewhere._shared is not None
        assert await elsewhere._shared.find_copy(ref_of(DATA)) is None


async def leave_behind(tier: SharedTier) -> None:
    """Keep a segment as a process would that has died since."""
    me = tier._me
    tier._me = structs.replace(me, started=me.started - 1)
    assert segment_format.is_alive(tier._me) is False
    await tier.keep_copy(ref_of(DATA), DATA)
    tier._me = me
    tier._until_by_name.clear()


async def test_what_the_dead_left_goes_at_the_start_and_while_it_runs(tmp_path: Path) -> None:
    config = settings_of(shared_directory=str(tmp_path), shared_sweep_s=0.05)
    async with open_tiers(config, MemoryPayloads(), SystemClock()) as dying:
        assert dying._shared is not None
        swept = counted(names.STORAGE_SWEPT, reason="dead")
        await leave_behind(dying._shared)
        async with open_tiers(config, MemoryPayloads(), SystemClock()) as living:
            assert segments_in(tmp_path) == []

            async def is_counted() -> bool:
                # The first may have swept what it left, and count it when its thread is back.
                return counted(names.STORAGE_SWEPT, reason="dead") > swept

            await eventually(is_counted)
            assert living._shared is not None
            await leave_behind(living._shared)

            async def is_swept() -> bool:
                return segments_in(tmp_path) == []

            await eventually(is_swept)


def closed_to_all(folder: Path) -> None:
    place = folder / f"noetl-{os.geteuid()}"
    place.mkdir()
    place.chmod(0o755)


def a_file(folder: Path) -> None:
    (folder / f"noetl-{os.geteuid()}").write_text("")


@pytest.mark.parametrize("spoil", [closed_to_all, a_file])
async def test_a_tier_that_cannot_be_opened_is_left_out(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path)
    config = settings_of(
        shared_directory=str(tmp_path),
        disk_cache_bytes=1024,
        disk_cache_directory=f"/proc/{os.getpid()}/no",
    )
    async with open_tiers(config, MemoryPayloads(), SystemClock()) as store:
        assert store._tiers == []
        await put(store)
        assert await store.read_payload(ref_of(DATA)) == DATA


async def test_a_disk_cache_without_a_place_is_refused(tmp_path: Path) -> None:
    config = settings_of(shared_bytes=0, disk_cache_bytes=1024)
    with pytest.raises(StorageMisconfigured, match="DISK_CACHE_DIRECTORY"):
        async with open_tiers(config, MemoryPayloads(), SystemClock()):
            pass
