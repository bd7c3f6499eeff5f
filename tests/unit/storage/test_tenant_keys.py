"""A tenant's key seals its payloads alone, turns without a loss, and erases with its end."""

from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.storage import NOON, ORGANIZATION, TENANT

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals import tenant_keys
from noetl_chassis.seals.credential_seal import KeyUnusable
from noetl_chassis.seals.payload_seal import narrow_payload_keys, read_payload_keys
from noetl_contracts.errors import PayloadKeyUnknown
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads import key_turns
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.payloads.tenant_key_objects import StoredTenantKeys
from noetl_storage.ports.errors import PayloadCorrupt, StorageMisconfigured
from noetl_storage.ports.payload_ports import Owner

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
OWNER = Owner(**PLACE)
OTHER = Owner(tenant_id=TenantId("other"), organization_id=OrganizationId("west"))
KEY = f"k1:{b64encode(b'k' * 32).decode()}"


def open_store(
    before: MemoryPayloads | None = None, *, key: str = f"tenant+{KEY}"
) -> MemoryPayloads:
    """A store as another process opens it, over the same objects."""
    seals = read_payload_keys(key, file="")
    assert seals is not None
    store = MemoryPayloads(seals=seals)
    if before is not None:
        store._objects = before._objects
        store._seals = seals.bind_objects(StoredTenantKeys(before._objects))
    return store


async def put(store: MemoryPayloads, data: bytes, owner: Owner = OWNER) -> PayloadRef:
    return await store.put_payload(
        data,
        media_type="text/plain",
        tenant_id=owner.tenant_id,
        organization_id=owner.organization_id,
    )


async def test_each_tenant_has_a_key_that_every_process_finds() -> None:
    store = open_store()
    mine, yours = await put(store, b"mine"), await put(store, b"yours", OTHER)
    assert mine.key_id is not None
    assert mine.key_id.startswith("t-")
    assert mine.key_id != yours.key_id
    later = open_store(store)
    assert await later.read_payload(mine) == b"mine"
    assert (await put(later, b"again")).key_id == mine.key_id


async def test_what_the_deployments_key_sealed_before_still_opens() -> None:
    before = open_store(key=KEY)
    ref = await put(before, b"old")
    after = open_store(before)
    assert await after.read_payload(ref) == b"old"
    assert await after.reseal_owner(OWNER) == (1, 0)
    assert await after.read_payload(ref) == b"old"


async def test_a_key_without_its_wrapping_key_opens_nothing() -> None:
    store = open_store()
    ref = await put(store, b"mine")
    stranger = open_store(store, key=f"tenant+k2:{b64encode(b'z' * 32).decode()}")
    with pytest.raises(PayloadKeyUnknown, match="'k1'"):
        await stranger.read_payload(ref)


async def test_turning_makes_a_key_and_later_destroys_the_older_one(tmp_path: Path) -> None:
    url, seals = f"file://{tmp_path}", read_payload_keys(f"tenant+{KEY}", file="")
    now = SystemClock().now()
    async with open_payloads(url, seals=seals) as store:
        ref = await store.put_payload(b"mine", media_type="text/plain", **PLACE)
        first = await key_turns.turn_owner_key(store, OWNER, now=now)
        assert (first.sealed, first.destroyed) == (1, [])
        assert first.older_until is not None
        assert await store.read_payload(ref) == b"mine"
        again = await key_turns.turn_owner_key(store, OWNER, now=now)
        assert (again.sealed, again.unchanged, again.destroyed) == (0, 1, [])
        over = now + key_turns.OLDER_KEYS_STAY + timedelta(minutes=1)
        last = await key_turns.turn_owner_key(store, OWNER, now=over)
        assert last.destroyed == [ref.key_id]
    async with open_payloads(url, seals=seals) as later:
        assert await later.read_payload(ref) == b"mine"


async def test_an_erased_tenant_is_erased_for_every_process_and_no_other_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store()
    mine, yours = await put(store, b"mine"), await put(store, b"yours", OTHER)
    working = open_store(store)
    assert await working.read_payload(mine) == b"mine"
    erasure = await key_turns.erase_owner(store, OWNER, now=NOON)
    assert (erasure.key_ids, erasure.objects) == ([mine.key_id], 1)
    with pytest.raises(PayloadKeyUnknown, match="destroyed: what it sealed is erased"):
        await store.read_payload(mine)
    # A process that has the key in memory forgets it within a minute.
    seconds = tenant_keys.monotonic() + tenant_keys.REMEMBERED_S + 1
    monkeypatch.setattr(tenant_keys, "monotonic", lambda: seconds)
    with pytest.raises(PayloadKeyUnknown, match="destroyed"):
        await working.read_payload(mine)
    assert await store.read_payload(yours) == b"yours"
    fresh = await put(store, b"new")
    assert fresh.key_id not in {mine.key_id, None}
    assert await store.read_payload(fresh) == b"new"


async def test_without_keys_of_tenants_nothing_is_erased() -> None:
    store = open_store(key=KEY)
    ref = await put(store, b"mine")
    with pytest.raises(StorageMisconfigured, match=r"tenant\+k1"):
        await key_turns.erase_owner(store, OWNER, now=NOON)
    assert await store.read_payload(ref) == b"mine"


def test_keys_of_tenants_need_one_that_wraps_them() -> None:
    with pytest.raises(KeyUnusable, match="need a key that wraps them"):
        read_payload_keys("tenant+", file="")


@pytest.mark.parametrize("key", [KEY, f"tenant+{KEY}"])
async def test_narrow_keys_open_what_is_one_owners_and_nothing_of_others(key: str) -> None:
    store = open_store(key=key)
    mine, yours = await put(store, b"mine"), await put(store, b"yours", OTHER)
    narrow_key, file = narrow_payload_keys(key, file="", owner=OWNER)
    assert (file, KEY.partition(":")[2] in narrow_key) == ("", False)
    narrow = open_store(store, key=narrow_key)
    assert await narrow.read_payload(mine) == b"mine"
    with pytest.raises((PayloadKeyUnknown, PayloadCorrupt)):
        await narrow.read_payload(yours)
    again = await put(narrow, b"again")
    assert await store.read_payload(again) == b"again"


def test_keys_that_a_service_holds_are_narrowed_by_it() -> None:
    assert narrow_payload_keys("kms+aws://k", file="f", owner=OWNER) == ("kms+aws://k", "f")
    assert narrow_payload_keys("", file="", owner=OWNER) == ("", "")
