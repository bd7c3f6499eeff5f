import asyncio
import secrets
from typing import Any

import pytest
from msgspec import structs
from tests.support.storage import ORGANIZATION, TENANT, Stores, an_execution

from noetl_contracts.credentials import SealedCredential
from noetl_contracts.ids import CatalogId, OrganizationId, TenantId
from noetl_contracts.ledger.records import CatalogEntry, Snapshot
from noetl_storage.ports.errors import VersionConflict

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


def an_entry(path: str = "demo/a", digest: str = "d1", **fields: Any) -> CatalogEntry:
    values: dict[str, Any] = {
        "catalog_id": CatalogId(str(secrets.randbits(60))),
        **PLACE,
        "path": path,
        "version": 0,
        "digest": digest,
        "source": "name: é\n",
        "model": {"b": 1, "a": [1e20, -0.0, 1.0]},
        "diagnostics": [{"code": "W1"}],
        **fields,
    }
    return CatalogEntry(**values)


def a_credential(name: str = "pg", version: int = 1) -> SealedCredential:
    return SealedCredential(
        name=name, version=version, kind="postgres", key_id="k", nonce="n", ciphertext=f"c{version}"
    )


async def test_a_changed_playbook_gets_the_next_version(stores: Stores) -> None:
    first, second = an_entry(), an_entry(digest="d2")
    assert (await stores.catalog.register_playbook(first)).version == 1
    playbook = await stores.catalog.register_playbook(second)

    assert playbook.version == 2
    assert playbook.created_at is not None
    assert structs.replace(playbook, version=0, created_at=None) == second
    assert await stores.catalog.find_playbook("demo/a", **PLACE) == playbook
    assert await stores.catalog.get_entry(second.catalog_id) == playbook
    earlier = await stores.catalog.find_playbook("demo/a", **PLACE, version=1)
    assert earlier is not None
    assert earlier.catalog_id == first.catalog_id
    assert str(playbook.model) == str(second.model)


async def test_the_same_playbook_keeps_its_version(stores: Stores) -> None:
    first = await stores.catalog.register_playbook(an_entry())
    assert await stores.catalog.register_playbook(an_entry()) == first


async def test_several_playbooks_are_registered_together(stores: Stores) -> None:
    playbook = await stores.catalog.register_playbook(an_entry())
    new = [an_entry(path="demo/z"), an_entry(), an_entry(path="demo/b")]
    kept = await stores.catalog.register_batch(new)
    assert [(item.path, item.version) for item in kept] == [
        ("demo/z", 1),
        ("demo/a", 1),
        ("demo/b", 1),
    ]
    assert kept[1] == playbook
    assert await stores.catalog.find_playbook("demo/z", **PLACE) == kept[0]
    assert await stores.catalog.register_batch([]) == []


async def test_going_back_to_earlier_content_is_a_new_version(stores: Stores) -> None:
    versions = [
        (await stores.catalog.register_playbook(an_entry(digest=digest))).version
        for digest in "aba"
    ]
    assert versions == [1, 2, 3]


async def test_registering_at_once_numbers_without_a_gap(stores: Stores) -> None:
    kept = await asyncio.gather(
        *(stores.catalog.register_playbook(an_entry(digest=f"d{n}")) for n in range(8))
    )
    assert sorted(entry.version for entry in kept) == list(range(1, 9))


async def test_what_is_not_registered_is_not_found(stores: Stores) -> None:
    playbook = await stores.catalog.register_playbook(an_entry())
    assert await stores.catalog.find_playbook("demo/b", **PLACE) is None
    assert await stores.catalog.find_playbook("demo/a", **PLACE, version=9) is None
    assert (
        await stores.catalog.find_playbook(
            "demo/a", tenant_id=TenantId("other"), organization_id=ORGANIZATION
        )
        is None
    )
    with pytest.raises(KeyError):
        await stores.catalog.get_entry(str(int(playbook.catalog_id) + 1))


async def test_paths_are_listed_once_with_their_latest_version(stores: Stores) -> None:
    for path, digest in (("b", "1"), ("a/x", "1"), ("a/x", "2"), ("B", "1")):
        await stores.catalog.register_playbook(an_entry(path, digest))
    await stores.catalog.register_playbook(an_entry("c", tenant_id=TenantId("other")))

    playbooks = await stores.catalog.list_playbooks(**PLACE, entries_max=10)

    assert [(entry.path, entry.version) for entry in playbooks] == [("B", 1), ("a/x", 2), ("b", 1)]
    assert len(await stores.catalog.list_playbooks(**PLACE, entries_max=2)) == 2


async def test_a_credential_is_found_by_version_and_latest(stores: Stores) -> None:
    for version in (1, 2, 10):
        await stores.credentials.put_credential(a_credential(version=version), **PLACE)
    assert await stores.credentials.find_credential("pg", **PLACE) == a_credential(version=10)
    assert await stores.credentials.find_credential("pg", **PLACE, version=2) == a_credential(
        version=2
    )
    assert await stores.credentials.find_credential("pg", **PLACE, version=3) is None
    assert await stores.credentials.find_credential("other", **PLACE) is None
    assert (
        await stores.credentials.find_credential(
            "pg", tenant_id=TENANT, organization_id=OrganizationId("east")
        )
        is None
    )


async def test_a_version_of_a_credential_is_never_replaced(stores: Stores) -> None:
    await stores.credentials.put_credential(a_credential(), **PLACE)
    changed = structs.replace(a_credential(), ciphertext="forged")
    with pytest.raises(VersionConflict, match="pg"):
        await stores.credentials.put_credential(changed, **PLACE)
    assert await stores.credentials.find_credential("pg", **PLACE) == a_credential()


async def test_names_of_credentials_are_listed_in_order(stores: Stores) -> None:
    for name in ("b", "a", "C"):
        await stores.credentials.put_credential(a_credential(name), **PLACE)
        await stores.credentials.put_credential(a_credential(name, 2), **PLACE)
    assert await stores.credentials.list_credential_names(**PLACE, names_max=10) == ["C", "a", "b"]
    assert await stores.credentials.list_credential_names(**PLACE, names_max=1) == ["C"]


async def test_the_latest_snapshot_is_kept(stores: Stores) -> None:
    execution = an_execution()

    def at(version: int) -> Snapshot:
        return Snapshot(
            execution_id=execution,
            version=version,
            fold_version=1,
            upcaster_digest="u",
            checksum=f"c{version}",
            state=b"\x00" * version,
        )

    assert await stores.snapshots.find_snapshot(execution) is None
    for version in (10, 30, 20):
        await stores.snapshots.put_snapshot(at(version))
    assert await stores.snapshots.find_snapshot(execution) == at(30)


async def test_a_draft_is_no_version_of_its_path(stores: Stores) -> None:
    alone = await stores.catalog.keep_draft(an_entry(digest="d0"))
    assert alone.version == -1
    assert await stores.catalog.find_playbook("demo/a", **PLACE) is None
    assert await stores.catalog.list_playbooks(**PLACE, entries_max=9) == []

    registered = await stores.catalog.register_playbook(an_entry())
    draft = await stores.catalog.keep_draft(an_entry(digest="d2"))
    assert (registered.version, draft.version) == (1, -2)
    assert await stores.catalog.find_playbook("demo/a", **PLACE) == registered
    assert await stores.catalog.list_playbooks(**PLACE, entries_max=9) == [registered]
    assert await stores.catalog.find_playbook("demo/a", **PLACE, version=-2) == draft
    assert await stores.catalog.get_entry(draft.catalog_id) == draft
    assert (await stores.catalog.register_playbook(an_entry(digest="d3"))).version == 2


async def test_the_same_draft_keeps_its_number(stores: Stores) -> None:
    first = await stores.catalog.keep_draft(an_entry())
    await stores.catalog.keep_draft(an_entry(digest="d2"))
    assert await stores.catalog.keep_draft(an_entry()) == first


async def test_drafts_kept_at_once_are_numbered_without_a_gap(stores: Stores) -> None:
    kept = await asyncio.gather(
        *(stores.catalog.keep_draft(an_entry(digest=f"d{n}")) for n in range(8))
    )
    assert sorted(entry.version for entry in kept) == list(range(-8, 0))


async def test_a_text_that_a_release_reads_otherwise_is_a_new_version(stores: Stores) -> None:
    await stores.catalog.register_playbook(an_entry())
    again = await stores.catalog.register_playbook(an_entry(model={"b": 2}))
    assert again.version == 2
