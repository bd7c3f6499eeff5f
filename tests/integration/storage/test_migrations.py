import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest
from msgspec import structs
from tests.support.servers import PostgresServer
from tests.support.storage import an_execution

from noetl_contracts import ids
from noetl_storage.ports.errors import (
    RowRefused,
    SchemaMismatch,
    StorageMisconfigured,
    StorageUnavailable,
)
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import Database, check_durability, open_database


@pytest.fixture
async def empty(database: str) -> AsyncIterator[Database]:
    async with open_database(database, must_be_durable=False) as opened:
        yield opened


async def test_migrating_twice_takes_each_step_once(empty: Database) -> None:
    steps = migrate.list_migrations()
    migrations = await migrate.apply_migrations(empty)
    assert [name[:4] for name in migrations] == [f"{step.version:04d}" for step in steps]
    assert await migrate.apply_migrations(empty) == []
    assert await migrate.verify_schema(empty) == len(steps)


async def test_two_migrators_at_once_take_each_step_once(database: str) -> None:
    async def run() -> list[str]:
        async with open_database(database, must_be_durable=False) as opened:
            return await migrate.apply_migrations(opened)

    outcomes = await asyncio.gather(*(run() for _ in range(4)))

    names = [name for outcome in outcomes for name in outcome]
    assert len(names) == len(set(names)) == len(migrate.list_migrations())


async def test_a_step_that_breaks_off_is_undone_and_resumed(
    empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.list_migrations()
    halfway = structs.replace(
        steps[2], statements=steps[2].statements + "\nselect 1 / 0 as killed;"
    )
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "list_migrations", lambda: [*steps[:2], halfway, *steps[3:]])
        with pytest.raises(RowRefused):
            await migrate.apply_migrations(empty)

    assert await empty.get_value("select max(version) from noetl.schema_migration") == 2
    assert await empty.get_value("select to_regproc('noetl.append') is null")
    with pytest.raises(SchemaMismatch, match="0003_append"):
        await migrate.verify_schema(empty)
    assert len(await migrate.apply_migrations(empty)) == len(steps) - 2
    await migrate.verify_schema(empty)


async def test_a_killed_migrator_leaves_nothing_half_done(empty: Database, database: str) -> None:
    first = migrate.list_migrations()[0]
    with pytest.raises(StorageUnavailable):
        await apply_and_die(empty, first.statements, database)

    assert not await empty.get_value("select to_regclass('noetl.event') is not null")
    assert len(await migrate.apply_migrations(empty)) == len(migrate.list_migrations())


async def apply_and_die(empty: Database, statements: str, dsn: str) -> None:
    """Lose the connection between a step's statements and its commit."""
    async with empty.open_transaction() as transaction:
        await transaction.execute_statement(f"create schema noetl; {statements}")
        (row,) = await transaction.fetch_rows("select pg_backend_pid() as pid")
        other = await asyncpg.connect(dsn)
        try:
            await other.execute("select pg_terminate_backend($1)", row["pid"])
        finally:
            await other.close()
        await transaction.execute_statement("select 1")


async def test_a_step_changed_after_it_was_taken_is_noticed(
    empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate.apply_migrations(empty)
    steps = migrate.list_migrations()
    edited = [structs.replace(steps[0], checksum="0" * 64), *steps[1:]]
    monkeypatch.setattr(migrate, "list_migrations", lambda: edited)
    for check in (migrate.verify_schema, migrate.apply_migrations):
        with pytest.raises(SchemaMismatch, match="never edited"):
            await check(empty)


async def test_a_newer_schema_is_accepted_and_an_older_one_is_not(empty: Database) -> None:
    with pytest.raises(SchemaMismatch, match="no schema"):
        await migrate.verify_schema(empty)
    await migrate.apply_migrations(empty)
    await empty.execute_statement("insert into noetl.schema_migration values (9999, 'later', 'x')")
    assert await migrate.verify_schema(empty) == 9999
    await empty.execute_statement("delete from noetl.schema_migration where version = 5")
    with pytest.raises(SchemaMismatch, match="0005"):
        await migrate.verify_schema(empty)


async def test_partitions_are_made_ahead_once(empty: Database) -> None:
    await migrate.apply_migrations(empty)
    made = await empty.get_value("select noetl.ensure_partitions(5)")
    assert made == 3
    assert await empty.get_value("select noetl.ensure_partitions(5)") == 0
    months = await empty.fetch_rows(
        """
        select c.relname from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'noetl.event'::regclass
        """
    )
    assert len(months) == 7


async def test_an_execution_lies_in_the_partition_of_its_month(empty: Database) -> None:
    await migrate.apply_migrations(empty)
    now = datetime.now(UTC)
    epoch = datetime(2024, 1, 1, tzinfo=UTC)
    snowflake = int((now - epoch).total_seconds() * 1000) << 22
    await empty.execute_statement(
        """
        insert into noetl.event (
            event_id, execution_id, stream_version, tenant_id, organization_id, stream_id,
            aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time,
            producer, context, envelope_checksum
        )
        values (1, $1, 1, 't', 'o', 's', 'a', 'a', 'e', 'n', 1, now(), 'p', '{}', 'c')
        """,
        snowflake,
    )
    place = await empty.get_value("select tableoid::regclass::text from noetl.event")
    assert place == f"noetl.event_{now:%Y_%m}"


async def test_the_database_places_executions_on_the_same_shards(empty: Database) -> None:
    await migrate.apply_migrations(empty)
    for count in (1, 3, 16, 128):
        for execution in [an_execution() for _ in range(50)]:
            value = await empty.get_value("select noetl.shard_of($1, $2)", int(execution), count)
            assert value == ids.find_shard(execution, count)


async def test_results_with_anything_but_a_reference_are_refused(empty: Database) -> None:
    await migrate.apply_migrations(empty)
    insert = """
        insert into noetl.event (
            event_id, execution_id, stream_version, tenant_id, organization_id, stream_id,
            aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time,
            producer, context, envelope_checksum, result
        )
        values (1, $1, 1, 't', 'o', 's', 'a', 'a', 'e', 'n', 1, now(), 'p', '{}', 'c', $2)
    """
    for bad in ([1], {"rows": [1]}, {"status": "ok", "data": 1}, {"context": "x" * 140_000}):
        with pytest.raises(RowRefused):
            await empty.execute_statement(insert, 1, bad)
    good = {"status": "ok", "reference": None, "parent_ref": None, "context": {"data": 1}}
    await empty.execute_statement(insert, 1, good)


HINT = {
    "node_id": "n",
    "shm_name": "/noetl-1",
    "schema_digest": "0" * 64,
    "valid_until": "2026-01-01T00:00:00Z",
}
STORED = {"uri": "noetl://tenant/t", "sha256": "0" * 64, "media_type": "m", "payload_bytes": 1}


async def test_a_reference_that_is_only_a_hint_is_refused(empty: Database) -> None:
    await migrate.apply_migrations(empty)
    insert = """
        insert into noetl.event (
            event_id, execution_id, stream_version, tenant_id, organization_id, stream_id,
            aggregate_type, aggregate_id, event_type, schema_name, schema_version, event_time,
            producer, envelope_checksum, context, result, payload_ref
        )
        values ($1, 1, $1, 't', 'o', 's', 'a', 'a', 'e', 'n', 1, now(), 'p', 'c', $2, $3, $4)
    """
    bad = (
        {"shared": HINT},
        {**STORED, "uri": "shm://noetl-1", "shared": HINT},
        {"sha256": "0" * 64, "shared": HINT},
        {"uri": "noetl://tenant/t", "shared": HINT},
    )
    for reference in bad:
        with pytest.raises(RowRefused, match="references_are_stored"):
            await empty.execute_statement(
                insert, 1, {}, {"status": "ok", "reference": reference}, None
            )
        with pytest.raises(RowRefused, match="payload_ref_is_stored"):
            await empty.execute_statement(insert, 1, {}, None, reference)
    for name in ("rows_ref", "parts_ref", "resume_ref", "workload_ref", "collection_ref"):
        with pytest.raises(RowRefused, match="context_refs_are_stored"):
            await empty.execute_statement(insert, 1, {name: {"shared": HINT}}, None, None)
    hinted = {**STORED, "shared": HINT}
    good = {"status": "ok", "reference": hinted, "context": {"data": {"shared": HINT}}}
    await empty.execute_statement(insert, 1, {"rows_ref": hinted, "parts_ref": None}, good, hinted)
    await empty.execute_statement(insert, 2, {}, {"status": "ok", "reference": None}, None)
    await empty.execute_statement(insert, 3, {}, None, None)


async def test_the_command_migrates_and_verifies(database: str) -> None:
    def run(*arguments: str, dsn: str = database) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", "noetl_storage", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "NOETL_STORAGE_POSTGRES_DSN": dsn,
                "NOETL_STORAGE_CONNECT_DEADLINE_S": "0.2",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    before = await asyncio.to_thread(run, "verify")
    assert (before.returncode, "migrate" in before.stderr) == (1, True)
    first = await asyncio.to_thread(run, "migrate")
    assert (first.returncode, "0001_ledger" in first.stdout) == (0, True), first.stderr
    again = await asyncio.to_thread(run, "migrate")
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)
    after = await asyncio.to_thread(run, "verify")
    assert after.returncode == 0
    wrong = await asyncio.to_thread(run, "drop")
    assert (wrong.returncode, "usage" in wrong.stderr) == (2, True)
    nowhere = await asyncio.to_thread(
        run, "migrate", dsn="postgresql://u:secret-word@127.0.0.1:9/x"
    )
    assert nowhere.returncode == 1
    assert "127.0.0.1:9/x" in nowhere.stderr
    assert "secret-word" not in nowhere.stderr
    assert "Traceback" not in nowhere.stderr


async def test_a_server_that_may_forget_is_refused(empty: Database, database: str) -> None:
    with pytest.raises(StorageMisconfigured, match="fsync"):
        await check_durability(empty)
    with pytest.raises(StorageMisconfigured, match="synchronous_commit"):
        async with open_database(f"{database}?synchronous_commit=off"):
            pytest.fail("opened")


async def test_wrong_credentials_are_refused_at_once(database: str) -> None:
    wrong = database.replace("postgres:", "postgres:no", 1)
    with pytest.raises(StorageMisconfigured, match="password"):
        async with open_database(wrong, connect_deadline_s=60):
            pytest.fail("opened")


async def test_a_missing_database_is_refused_at_once(database: str) -> None:
    with pytest.raises(StorageMisconfigured, match="nowhere"):
        async with open_database(database.rsplit("/", 1)[0] + "/nowhere", connect_deadline_s=60):
            pytest.fail("opened")


async def test_an_owner_without_further_rights_can_migrate(
    postgres: PostgresServer, database: str, empty: Database
) -> None:
    await migrate.apply_migrations(empty)  # makes the roles, which the whole server shares
    name = database.rsplit("/", 1)[1]
    await postgres.execute_async(
        "do $$ begin create role noetl_owner login password 'o'; "
        "exception when duplicate_object then null; end $$"
    )
    await postgres.execute_async(f"create database {name}_owned owner noetl_owner")
    dsn = postgres.dsn(user="noetl_owner", password="o", database=f"{name}_owned")  # noqa: S106 - made above
    async with open_database(dsn, must_be_durable=False) as owned:
        await migrate.apply_migrations(owned)
        assert await owned.get_value("select noetl.ensure_partitions(4)") == 2
    await postgres.drop_database(f"{name}_owned")
