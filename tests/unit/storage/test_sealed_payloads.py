"""One store with and without seals: what was written before, and who may read what."""

from typing import Any

import pytest

from noetl_chassis.payload_sealing import KeyRing, PayloadSeals
from noetl_contracts.errors import PayloadKeyUnknown
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.errors import PayloadCorrupt
from noetl_storage.payload_ports import SEAL_MAGIC, Owner
from noetl_storage.payloads import keys
from noetl_storage.payloads.memory import MemoryPayloads

PLACE: dict[str, Any] = {"tenant_id": TenantId("acme"), "organization_id": OrganizationId("west")}
OTHER: dict[str, Any] = {**PLACE, "tenant_id": TenantId("other")}
SEALS = PayloadSeals(KeyRing({"k1": bytes(32)}))


def both() -> tuple[MemoryPayloads, MemoryPayloads]:
    """The same objects, seen without seals and with them."""
    plain, sealed = MemoryPayloads(), MemoryPayloads(seals=SEALS)
    sealed._objects = plain._objects
    return plain, sealed


async def test_a_reference_names_the_key_and_keeps_the_digest_of_the_content() -> None:
    plain, sealed = both()
    before = await plain.put(b"content", media_type="text/plain", **PLACE)
    after = await sealed.put(b"content", media_type="text/plain", **PLACE)
    assert (before.key_id, after.key_id) == (None, "k1")
    assert (before.uri, before.sha256, before.payload_bytes) == (
        after.uri,
        after.sha256,
        after.payload_bytes,
    )
    assert await sealed.read(before) == b"content"


async def test_what_was_never_sealed_is_still_read() -> None:
    plain, sealed = both()
    ref = await plain.put(b"old", media_type="text/plain", **PLACE)
    await plain.put_named("n", b"old too", **PLACE)
    assert await sealed.read(ref) == b"old"
    assert [piece async for piece in sealed.stream(ref)] == [b"old"]
    assert await sealed.find_named("n", **PLACE) == b"old too"
    assert await sealed.put_named("n", b"new", **PLACE) == b"old too"


async def test_without_keys_nobody_takes_sealed_bytes_for_content() -> None:
    plain, sealed = both()
    ref = await sealed.put(b"secret", media_type="text/plain", **PLACE)
    await sealed.put_named("n", b"secret", **PLACE)
    with pytest.raises(PayloadKeyUnknown, match="PAYLOAD_SEAL_KEY"):
        await plain.read(ref)
    with pytest.raises(PayloadKeyUnknown, match="PAYLOAD_SEAL_KEY"):
        await plain.find_named("n", **PLACE)
    with pytest.raises(PayloadKeyUnknown, match="PAYLOAD_SEAL_KEY"):
        assert [piece async for piece in plain.stream(ref)] == []


async def test_content_that_looks_sealed_and_is_not_is_read_where_nothing_is_sealed() -> None:
    plain, _ = both()
    ref = await plain.put(SEAL_MAGIC + b"...", media_type="text/plain", **PLACE)
    assert await plain.read(ref) == SEAL_MAGIC + b"..."


async def test_another_tenants_object_does_not_open_in_place_of_ones_own() -> None:
    _, sealed = both()
    ours = await sealed.put(b"same", media_type="text/plain", **PLACE)
    theirs = await sealed.put(b"same", media_type="text/plain", **OTHER)
    place = sealed._objects
    place.store(keys.key_of(ours), place.fetch(keys.key_of(theirs)), "")
    with pytest.raises(PayloadCorrupt, match=ours.sha256):
        await sealed.read(ours)
    with pytest.raises(PayloadCorrupt, match=ours.sha256):
        assert [piece async for piece in sealed.stream(ours)] == []
    pieces = sealed.read_text(Owner(**PLACE), ours.sha256, is_name=False)
    with pytest.raises(PayloadCorrupt, match=ours.sha256):
        assert [piece async for piece in pieces] == []
