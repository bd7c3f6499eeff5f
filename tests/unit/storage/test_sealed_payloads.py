"""One store with and without seals: what was written before, and who may read what."""

from typing import Any

import pytest

from noetl_chassis.seals.payload_seal import KeyRing, PayloadSeals
from noetl_contracts.errors import PayloadKeyUnknown
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.payloads import object_keys
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import PayloadCorrupt
from noetl_storage.ports.payload_ports import SEAL_MAGIC, Owner

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
    before = await plain.put_payload(b"content", media_type="text/plain", **PLACE)
    after = await sealed.put_payload(b"content", media_type="text/plain", **PLACE)
    assert (before.key_id, after.key_id) == (None, "k1")
    assert (before.uri, before.sha256, before.payload_bytes) == (
        after.uri,
        after.sha256,
        after.payload_bytes,
    )
    assert await sealed.read_payload(before) == b"content"


async def test_what_was_never_sealed_is_still_read() -> None:
    plain, sealed = both()
    ref = await plain.put_payload(b"old", media_type="text/plain", **PLACE)
    await plain.put_named("n", b"old too", **PLACE)
    assert await sealed.read_payload(ref) == b"old"
    assert [piece async for piece in sealed.stream_payload(ref)] == [b"old"]
    assert await sealed.find_named("n", **PLACE) == b"old too"
    assert await sealed.put_named("n", b"new", **PLACE) == b"old too"


async def test_without_keys_nobody_takes_sealed_bytes_for_content() -> None:
    plain, sealed = both()
    ref = await sealed.put_payload(b"secret", media_type="text/plain", **PLACE)
    await sealed.put_named("n", b"secret", **PLACE)
    with pytest.raises(PayloadKeyUnknown, match="PAYLOAD_SEAL_KEY"):
        await plain.read_payload(ref)
    with pytest.raises(PayloadKeyUnknown, match="PAYLOAD_SEAL_KEY"):
        await plain.find_named("n", **PLACE)
    with pytest.raises(PayloadKeyUnknown, match="PAYLOAD_SEAL_KEY"):
        assert [piece async for piece in plain.stream_payload(ref)] == []


async def test_content_that_looks_sealed_and_is_not_is_read_where_nothing_is_sealed() -> None:
    plain, _ = both()
    ref = await plain.put_payload(SEAL_MAGIC + b"...", media_type="text/plain", **PLACE)
    assert await plain.read_payload(ref) == SEAL_MAGIC + b"..."


async def test_another_tenants_object_does_not_open_in_place_of_ones_own() -> None:
    _, sealed = both()
    ours = await sealed.put_payload(b"same", media_type="text/plain", **PLACE)
    theirs = await sealed.put_payload(b"same", media_type="text/plain", **OTHER)
    place = sealed._objects
    place.store_object(
        object_keys.find_place(ours)[0], place.read_object(object_keys.find_place(theirs)[0]), ""
    )
    with pytest.raises(PayloadCorrupt, match=ours.sha256):
        await sealed.read_payload(ours)
    with pytest.raises(PayloadCorrupt, match=ours.sha256):
        assert [piece async for piece in sealed.stream_payload(ours)] == []
    pieces = sealed.stream_content(Owner(**PLACE), ours.sha256, is_name=False)
    with pytest.raises(PayloadCorrupt, match=ours.sha256):
        assert [piece async for piece in pieces] == []
