"""A change and its record of administration are stored together, or neither is."""

import asyncio

import pytest
from tests.conformance.storage.test_identities import SCOPE, a_binding, a_record
from tests.support.storage import Stores, emptied, migrated, postgres_stores

from noetl_contracts.identity import administration
from noetl_contracts.identity.administration import RecordFilter


class _CutError(Exception):
    """The process stops between a change and its record."""


async def put_and_stop(stores: Stores) -> None:
    async with stores.administration.open_change():
        await stores.identities.put_binding(a_binding(1))
        raise _CutError


async def test_a_change_without_its_record_is_undone(database: str) -> None:
    async with migrated(database), emptied(database) as opened:
        stores = postgres_stores(opened)
        with pytest.raises(_CutError):
            await put_and_stop(stores)
        assert await stores.identities.list_bindings(**SCOPE, bindings_max=9) == []
        async with stores.administration.open_change():
            await stores.identities.put_binding(a_binding(1))
            await stores.administration.append_record(a_record())
        assert len(await stores.identities.list_bindings(**SCOPE, bindings_max=9)) == 1


async def test_records_of_many_at_once_make_one_chain(database: str) -> None:
    async with migrated(database), emptied(database) as opened:
        stores = postgres_stores(opened)
        await asyncio.gather(*(stores.administration.append_record(a_record()) for _ in range(40)))
        records = await stores.administration.list_records(
            RecordFilter(), **SCOPE, after_version=0, records_max=99
        )
        assert len(records) == 40
        assert administration.find_broken_record(records) is None


async def test_nobody_changes_a_record(database: str) -> None:
    async with migrated(database) as admin:
        grants = await admin.fetch_rows(
            "select grantee, privilege_type from information_schema.role_table_grants "
            "where table_schema = 'noetl' and table_name like 'administration%' "
            "and grantee like 'noetl\\_%'"
        )
    assert {(row["grantee"], row["privilege_type"]) for row in grants} == {
        ("noetl_planner", "SELECT")
    }
