"""Every tier keeps, forgets and doubts alike; only its place differs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.storage import ORGANIZATION, TENANT
from tests.support.tiering import TierCounts, open_shared, ref_of

from noetl_chassis.clock import SystemClock
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import PayloadMissing
from noetl_storage.ports.payload_ports import Tier
from noetl_storage.tiers.disk import DiskTier
from noetl_storage.tiers.memory import MemoryTier
from noetl_storage.tiers.tiered_payloads import TieredPayloads

ROOM = 4096
SMALL = b"a result"


@pytest.fixture(params=["memory", "shared", "disk"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    match request.param:
        case "memory":
            return MemoryTier(bytes_max=ROOM)
        case "shared":
            return open_shared(tmp_path, bytes_max=ROOM, clock=SystemClock())
        case _:
            return DiskTier(tmp_path, store_url="memory://", bytes_max=ROOM)


async def test_what_was_kept_is_found_and_what_was_not_is_a_miss(tier: Tier) -> None:
    assert await tier.find_copy(ref_of(SMALL)) is None
    assert await tier.keep_copy(ref_of(SMALL), SMALL)
    assert await tier.keep_copy(ref_of(SMALL), SMALL)
    assert await tier.find_copy(ref_of(SMALL)) == SMALL
    assert await tier.find_copy(ref_of(b"another")) is None


async def test_an_empty_payload_is_kept_too(tier: Tier) -> None:
    assert await tier.keep_copy(ref_of(b""), b"")
    assert await tier.find_copy(ref_of(b"")) == b""


async def test_the_same_content_of_another_tenant_is_not_found(tier: Tier) -> None:
    await tier.keep_copy(ref_of(SMALL), SMALL)
    assert await tier.find_copy(ref_of(SMALL, tenant="other")) is None


async def test_what_was_forgotten_is_a_miss(tier: Tier) -> None:
    await tier.keep_copy(ref_of(SMALL), SMALL)
    await tier.forget_copy(ref_of(SMALL))
    await tier.forget_copy(ref_of(SMALL))
    assert await tier.find_copy(ref_of(SMALL)) is None


async def test_a_tier_holds_no_more_than_its_bytes(tier: Tier) -> None:
    payloads = [bytes([i]) * 700 for i in range(20)]
    for data in payloads:
        await tier.keep_copy(ref_of(data), data)
        assert tier.used_bytes() <= ROOM
    found = [await tier.find_copy(ref_of(data)) for data in payloads]
    assert any(found)
    assert not all(found)


async def test_what_is_larger_than_the_tier_is_refused(tier: Tier) -> None:
    large = b"x" * (ROOM + 1)
    assert not await tier.keep_copy(ref_of(large), large)
    assert await tier.find_copy(ref_of(large)) is None
    assert await tier.keep_copy(ref_of(SMALL), SMALL)


async def put(store: TieredPayloads, data: bytes) -> PayloadRef:
    return await store.put_payload(
        data, tenant_id=TENANT, organization_id=ORGANIZATION, media_type="text/plain"
    )


async def test_a_read_falls_through_to_the_store_and_fills_what_is_nearer(tmp_path: Path) -> None:
    below = MemoryPayloads()
    ref = await put(TieredPayloads(below, watch=TierCounts()), SMALL)
    seen = TierCounts()
    store = TieredPayloads(
        below,
        watch=seen,
        near=[MemoryTier(bytes_max=ROOM)],
        shared=open_shared(tmp_path / "shm", bytes_max=ROOM, clock=SystemClock()),
        disk=DiskTier(tmp_path / "disk", store_url="memory://", bytes_max=ROOM),
    )
    assert [await store.read_payload(ref) for _ in range(3)] == [SMALL] * 3
    assert seen.hits == {"store": 1, "memory": 2}
    assert seen.misses == {"memory": 1, "shared": 1, "disk": 1}


async def test_the_nearest_tier_that_has_it_answers_also_without_the_store(tmp_path: Path) -> None:
    below, seen = MemoryPayloads(), TierCounts()
    disk = DiskTier(tmp_path / "disk", store_url="memory://", bytes_max=ROOM)
    store = TieredPayloads(below, watch=seen, disk=disk)
    ref = await put(store, SMALL)
    below.bytes_by_key.clear()
    assert await store.read_payload(ref) == SMALL
    assert seen.hits == {"disk": 1}
    await store.delete_payload(ref)
    with pytest.raises(PayloadMissing):
        await store.read_payload(ref)


async def test_a_store_that_refuses_leaves_nothing_in_any_tier(tmp_path: Path) -> None:
    class Full(MemoryPayloads):
        async def put_payload(self, *_: object, **__: object) -> PayloadRef:
            raise OSError("no room")

    shared = open_shared(tmp_path, bytes_max=ROOM, clock=SystemClock())
    with pytest.raises(OSError, match="no room"):
        await put(TieredPayloads(Full(), watch=TierCounts(), shared=shared), SMALL)
    assert shared.used_bytes() == 0
    assert await shared.find_copy(ref_of(SMALL)) is None


async def test_a_lent_file_outlives_its_eviction(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, store_url="memory://", bytes_max=ROOM)
    store = TieredPayloads(MemoryPayloads(), watch=TierCounts(), disk=disk)
    ref = await put(store, SMALL)
    async with store.lend_file(ref) as file:
        await disk.forget_copy(ref)
        assert file.read_bytes() == SMALL
    assert not file.exists()


@pytest.mark.parametrize("has_disk", [True, False])
async def test_a_file_is_lent_whether_or_not_there_is_a_disk_tier(
    tmp_path: Path, *, has_disk: bool
) -> None:
    disk = DiskTier(tmp_path, store_url="memory://", bytes_max=ROOM) if has_disk else None
    below = MemoryPayloads()
    store = TieredPayloads(below, watch=TierCounts(), disk=disk)
    ref = await put(TieredPayloads(below, watch=TierCounts()), SMALL)
    async with store.lend_file(ref) as file:
        assert file.read_bytes() == SMALL
    with pytest.raises(PayloadMissing):
        async with store.lend_file(ref_of(b"never stored")):
            pass


async def test_what_the_store_seals_is_not_left_on_a_disk_in_the_clear(tmp_path: Path) -> None:
    class Sealing(MemoryPayloads):
        async def put_payload(self, *args: Any, **kwargs: Any) -> PayloadRef:
            return structs.replace(await super().put_payload(*args, **kwargs), key_id="k1")

    disk = DiskTier(tmp_path, store_url="memory://", bytes_max=ROOM)
    near = MemoryTier(bytes_max=ROOM)
    store = TieredPayloads(Sealing(), watch=TierCounts(), near=[near], disk=disk)
    ref = await put(store, SMALL)
    async with store.lend_file(ref) as file:
        assert file.read_bytes() == SMALL
    assert await near.find_copy(ref) == SMALL
    assert await disk.find_copy(ref) is None
    assert disk.used_bytes() == 0


async def test_a_damaged_file_on_disk_is_a_miss_and_goes(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, store_url="memory://", bytes_max=ROOM)
    await disk.keep_copy(ref_of(SMALL), SMALL)
    disk.get_copy_path(ref_of(SMALL)).write_bytes(b"a resulT")
    assert await disk.find_copy(ref_of(SMALL)) is None
    assert not disk.get_copy_path(ref_of(SMALL)).exists()


async def test_the_disk_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    first = DiskTier(tmp_path, store_url="memory://", bytes_max=ROOM)
    await first.keep_copy(ref_of(SMALL), SMALL)
    again = DiskTier(tmp_path, store_url="memory://", bytes_max=ROOM)
    assert again.used_bytes() == len(SMALL)
    assert await again.find_copy(ref_of(SMALL)) == SMALL
    elsewhere = DiskTier(tmp_path, store_url="s3://other", bytes_max=ROOM)
    assert await elsewhere.find_copy(ref_of(SMALL)) is None


async def test_everything_but_reading_is_the_stores(tmp_path: Path) -> None:
    below = MemoryPayloads()
    store = TieredPayloads(below, watch=TierCounts(), near=[MemoryTier(bytes_max=ROOM)])
    place = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    assert await store.put_named("a/b", b"first", **place) is None
    assert await store.put_named("a/b", b"second", **place) == b"first"
    assert await store.find_named("a/b", **place) == b"first"
    assert await store.list_names("a/", **place) == ["a/b"]
    ref = await put(store, SMALL)
    assert [chunk async for chunk in store.stream_payload(ref)] == [SMALL]
    assert await store.has_payload(ref)
    below.bytes_by_key.clear()
    assert not await store.has_payload(ref)
    assert await store.find_named("a/b", **place) is None
