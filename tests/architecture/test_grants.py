"""What each database role may do, written down once more and compared with the database."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.servers import PostgresServer
from tests.support.storage import (
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    a_request,
    a_run,
    a_stream,
    an_append,
    an_execution,
    emptied,
    migrated,
    postgres_stores,
    settled,
)

from noetl_contracts.credentials import SealedCredential
from noetl_contracts.ids import CatalogId
from noetl_contracts.ledger.records import CatalogEntry, Snapshot
from noetl_storage.ports.errors import StorageMisconfigured
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import Database, open_database

ROLES = (
    "noetl_planner",
    "noetl_projector",
    "noetl_outbox",
    "noetl_reaper",
    "noetl_archivist",
    "noetl_reader",
    # Of which every tenant's own reader is a member.
    "noetl_tenants",
)
PROJECTIONS = ("business_object", "command", "execution", "frame", "loop", "stage")
EVERY_SHARD: dict[str, Any] = {
    "shard": 0,
    "shard_count": 1,
    "older_than_s": 0.0,
    "executions_max": 9,
}
LINEAGE = {"lineage", "lineage_position"}
PROJECTED = {
    *PROJECTIONS,
    "result_ref",
    "projection_checkpoint",
    "projection_position",
    "projection_snapshot",
}
RETENTION = (
    "archive_unit",
    "archived_history",
    "legal_hold",
    "retention_log",
    "retention_policy",
)
READS = {
    "noetl_planner": {
        *PROJECTIONS,
        "administration_event",
        "api_key",
        "checkpoint",
        "person_groups",
        "role_binding",
        "tenant_quota",
        "tenant_storage",
        *RETENTION,
        "result_ref",
        "catalog",
        "credential",
        "dead_letter_log",
        "event",
        "execution_head",
        "execution_shard",
        "inbox",
        "notification",
        "notification_rule",
        "projection_checkpoint",
        "projection_past",
        "projection_position",
        "projection_snapshot",
        "request",
        "runtime",
        "schedule",
        "schedule_skip",
        "session",
        "state",
        "state_change",
        "trigger",
        "trigger_place",
        "webhook",
    },
    "noetl_projector": {
        *PROJECTIONS,
        "archive_unit",
        "archived_history",
        "result_ref",
        "catalog",
        "checkpoint",
        "event",
        "execution_head",
        "projection_checkpoint",
        "projection_past",
        "projection_position",
        "projection_snapshot",
        "runtime",
        *LINEAGE,
    },
    "noetl_outbox": {"outbox", "runtime"},
    "noetl_reaper": {
        *PROJECTIONS,
        "checkpoint",
        "archive_unit",
        "archived_history",
        "result_ref",
        "event",
        "execution_head",
        "execution_shard",
        "inbox",
        "notification",
        "notification_rule",
        "outbox",
        "projection_checkpoint",
        "projection_position",
        "request",
        "role_lease",
        "runtime",
        "schedule",
        "tenant_storage",
    },
    "noetl_archivist": {
        *RETENTION,
        "event",
        "execution",
        "execution_head",
        "outbox",
        "projection_position",
        "request",
    },
    "noetl_reader": {*PROJECTIONS, "event", "lineage", "result_ref", "tenant_role"},
    "noetl_tenants": {*PROJECTIONS, "event", "lineage", "result_ref", "tenant_role"},
}
WRITES = {
    "noetl_planner": {
        "insert": {
            "api_key",
            "credential",
            "dead_letter_log",
            "notification_rule",
            "projection_snapshot",
            "person_groups",
            "role_binding",
            "schedule",
            "session",
            "tenant_quota",
            "trigger",
            "webhook",
        },
        "update": {
            "notification_rule",
            "person_groups",
            "projection_snapshot",
            "schedule",
            "session",
            "tenant_quota",
            "trigger",
            "webhook",
        },
        "delete": {
            "notification_rule",
            "role_binding",
            "schedule",
            "session",
            "tenant_quota",
            "trigger",
            "trigger_place",
            "webhook",
        },
    },
    "noetl_reaper": {"insert": {"tenant_storage"}, "update": {"tenant_storage"}},
    "noetl_projector": {
        "insert": {*PROJECTED, *LINEAGE, "checkpoint", "projection_past"},
        "update": {*PROJECTED, *LINEAGE},
        "delete": {*PROJECTED, *LINEAGE, "checkpoint", "projection_past"},
    },
}
CALLS = {
    "noetl_planner": {
        "append",
        "append_administration",
        "change_states",
        "claim_shards",
        "claim_trigger_place",
        "hand_over_letter",
        "keep_begun_request",
        "keep_letter",
        "list_executions",
        "lead_role",
        "lock_administration_head",
        "place_hold",
        "register_instance",
        "register_playbook",
        "keep_draft",
        "release_hold",
        "release_outbox",
        "remove_state",
        "set_retention",
        "settle_outbox",
        "shard_of",
        "submit_request",
    },
    "noetl_projector": {
        "append_administration",
        "lead_role",
        "lock_administration_head",
        "register_instance",
        "shard_of",
    },
    "noetl_outbox": {
        "claim_outbox",
        "lead_role",
        "register_instance",
        "release_outbox",
        "settle_outbox",
    },
    "noetl_reaper": {
        "end_long_reads",
        "ensure_partitions",
        "forget_requests",
        "fire_schedule",
        "hand_over_letter",
        "lead_role",
        "redrive_requests",
        "register_instance",
        "keep_notification",
        "send_held_notifications",
        "send_notification",
        "shard_of",
        "skip_schedule_times",
        "submit_request",
    },
    "noetl_archivist": {
        "advance_archive",
        "append_administration",
        "compact",
        "is_held",
        "lead_role",
        "leave_out",
        "list_due",
        "list_places",
        "lock_administration_head",
        "month_of",
        "plan_archive",
    },
    "noetl_reader": {"encode_segment", "locate_producer"},
    "noetl_tenants": {"encode_segment", "locate_producer"},
}


@pytest.fixture(scope="module")
def schema(postgres: PostgresServer) -> str:
    async def make() -> str:
        dsn = await postgres.create_database("grants")
        async with migrated(dsn):
            return dsn

    return asyncio.run(make())


@pytest.fixture
async def owner(schema: str) -> AsyncIterator[Database]:
    async with emptied(schema) as database:
        yield database


async def tables_with(owner: Database, *, role: str, privilege: str) -> set[str]:
    rows = await owner.fetch_rows(
        """
        select relname from pg_class
        where relnamespace = 'noetl'::regnamespace and relkind in ('r', 'p')
            and has_table_privilege($1, oid, $2)
        """,
        role,
        privilege,
    )
    return {record["relname"] for record in rows}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_reads_what_it_needs_and_nothing_else(owner: Database, role: str) -> None:
    found = await tables_with(owner, role=role, privilege="select")
    assert found - {"schema_migration"} == READS[role]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("privilege", ["insert", "update", "delete", "truncate", "trigger"])
async def test_a_role_writes_what_it_needs_and_nothing_else(
    owner: Database, role: str, privilege: str
) -> None:
    expected = WRITES.get(role, {}).get(privilege, set())
    assert await tables_with(owner, role=role, privilege=privilege) == expected


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_calls_what_it_needs_and_nothing_else(owner: Database, role: str) -> None:
    rows = await owner.fetch_rows(
        """
        select proname from pg_proc
        where pronamespace = 'noetl'::regnamespace and has_function_privilege($1, oid, 'execute')
        """,
        role,
    )
    assert {record["proname"] for record in rows} == CALLS[role]


async def test_no_role_creates_anything_or_may_become_another(owner: Database) -> None:
    rows = await owner.fetch_rows(
        """
        select rolname from pg_roles
        where rolname = any($1::text[])
            and (
                rolsuper or rolcreaterole or rolcreatedb or rolbypassrls
                or has_schema_privilege(rolname, 'noetl', 'create')
                or exists (select from pg_auth_members where member = pg_roles.oid)
            )
        """,
        list(ROLES),
    )
    assert rows == []


async def test_every_definer_function_has_a_safe_search_path(owner: Database) -> None:
    rows = await owner.fetch_rows(
        """
        select proname from pg_proc
        where pronamespace = 'noetl'::regnamespace
            and prosecdef
            and not coalesce(
                'search_path=pg_catalog, pg_temp' = any(proconfig), false
            )
        """
    )
    assert rows == []


def as_role(schema: str, role: str) -> str:
    """Every session of this address acts as the role."""
    return f"{schema}?role={role}"


async def acting(schema: str, role: str) -> AsyncIterator[Stores]:
    async with open_database(as_role(schema, role), must_be_durable=False) as database:
        await migrate.verify_schema(database)
        yield postgres_stores(database)


@pytest.fixture
async def planner(owner: Database, schema: str) -> AsyncIterator[Stores]:
    async for stores in acting(schema, "noetl_planner"):
        yield stores


async def test_the_planner_can_do_its_work(planner: Stores) -> None:
    execution = an_execution()
    place: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    fence = await a_fence(planner)
    request = a_request(execution_id=execution)
    await planner.requests.submit_request(request)
    appended = await planner.ledger.append(
        an_append(
            fence,
            a_stream(execution, [a_run()]),
            messages=1,
            settled_requests=[settled(request)],
            publish_lease_s=5,
        )
    )
    begun = a_request()
    stream = a_stream(begun.execution_id, [a_run()])
    await planner.ledger.append(an_append(fence, stream, begun=begun, latest=CatalogId("1")))
    await planner.outbox.release_rows(appended.outbox_ids)
    await planner.outbox.settle_rows(appended.outbox_ids)
    await planner.outbox.count_backlog()
    await planner.shards.extend_leases(owner=fence.owner, lease_s=60)
    await planner.shards.release_shards(owner=fence.owner, shards=[fence.shard])
    await planner.shards.list_owners()
    assert len(await planner.ledger_reader.read_events(execution)) == 1
    assert await planner.ledger_reader.find_head(execution) is not None
    assert await planner.instances.register_instance(instance="p", kind="planner", lease_s=5) >= 0
    assert await planner.instances.list_live_instances("planner") == ["p"]
    assert await planner.instances.claim_role(role="r", owner="p", lease_s=5)
    await planner.snapshots.put_snapshot(
        Snapshot(
            execution_id=execution,
            version=1,
            fold_version=1,
            upcaster_digest="u",
            checksum="c",
            state=b"s",
        )
    )
    entry = CatalogEntry(
        catalog_id=CatalogId("7"),
        **place,
        path="a",
        version=0,
        digest="d",
        source="s",
        model={},
        diagnostics=[],
    )
    assert (await planner.catalog.register_playbook(entry)).version == 1
    sealed = SealedCredential(name="n", version=1, kind="k", key_id="k", nonce="n", ciphertext="c")
    await planner.credentials.put_credential(sealed, **place)
    assert await planner.projections.list_rows("execution", execution) == []
    assert await planner.projections.list_overdue(grace_s=1, commands_max=1) == []


async def test_the_projector_can_do_its_work(planner: Stores, schema: str) -> None:
    execution = an_execution()
    await planner.ledger.append(
        an_append(await a_fence(planner), a_stream(execution, [a_run(), a_run()]))
    )
    async for projector in acting(schema, "noetl_projector"):
        assert len(await projector.ledger_reader.read_events(execution)) == 2
        row = {
            "execution_id": execution,
            "tenant_id": TENANT,
            "organization_id": ORGANIZATION,
            "path": "p",
            "status": "RUNNING",
            "version": 1,
            "envelope_checksum": "",
        }
        for version in (1, 2):
            left_out = await projector.projections.apply_rows(
                shard=0, rows={"execution": [row]}, positions={execution: (version - 1, version)}
            )
            assert left_out == []
        assert await projector.projections.list_positions([execution]) == {execution: 2}
        assert await projector.projections.list_executions_behind(**EVERY_SHARD) == []
        await projector.projections.clear_execution(execution)
        assert await projector.snapshots.find_snapshot(execution) is None
        await projector.instances.register_instance(instance="j", kind="projector", lease_s=5)


async def test_the_outbox_can_do_its_work(planner: Stores, schema: str) -> None:
    await planner.requests.submit_request(a_request())
    async for outbox in acting(schema, "noetl_outbox"):
        (row,) = await outbox.outbox.claim_rows(owner="o", lease_s=5, rows_max=9)
        await outbox.outbox.release_rows([row.outbox_id])
        await outbox.outbox.settle_rows([row.outbox_id])
        assert await outbox.outbox.count_backlog() == (0, 0.0)
        await outbox.instances.register_instance(instance="o", kind="outbox", lease_s=5)


async def test_the_reaper_can_do_its_work(planner: Stores, schema: str) -> None:
    async for reaper in acting(schema, "noetl_reaper"):
        assert await reaper.instances.claim_role(role="reaper", owner="r", lease_s=5)
        await reaper.requests.submit_request(a_request())
        assert await reaper.requests.redrive_requests(older_than_s=0, requests_max=9) == 0
        assert await reaper.outbox.count_backlog() != (0, 0.0)
        assert await reaper.projections.list_overdue(grace_s=1, commands_max=9) == []
        assert await reaper.projections.list_stalled(older_than_s=1, executions_max=9) == []
        assert await reaper.projections.list_overdue_waits(over_s=1, waits_max=9) == []
        assert await reaper.projections.list_executions_behind(**EVERY_SHARD) == []
        assert await reaper.shards.list_owners() == {}
        assert await reaper.ledger_reader.read_events(an_execution()) == []


@pytest.mark.parametrize("role", [role for role in ROLES if role != "noetl_planner"])
async def test_nobody_else_appends(owner: Database, schema: str, role: str) -> None:
    fence = await a_fence(postgres_stores(owner))
    async with open_database(as_role(schema, role), must_be_durable=False) as database:
        with pytest.raises(StorageMisconfigured, match="append"):
            await postgres_stores(database).ledger.append(
                an_append(fence, a_stream(an_execution(), [a_run()]))
            )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "statement",
    [
        "update noetl.event set producer = 'x'",
        "delete from noetl.event",
        "truncate noetl.event",
        "insert into noetl.outbox (execution_id, subject, message_id) values (1, 's', 'm')",
        "select * from noetl.event_default",
        "create table noetl.mine (n integer)",
        "alter table noetl.event disable row level security",
    ],
)
async def test_no_role_changes_history(
    owner: Database, schema: str, role: str, statement: str
) -> None:
    connection = await asyncpg.connect(as_role(schema, role))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("role", "own", "other"),
    [
        ("noetl_projector", "projection.rebuilt", "retention.run_ended"),
        ("noetl_archivist", "retention.run_ended", "projection.rebuilt"),
    ],
)
async def test_who_records_upkeep_records_nothing_else(
    owner: Database, schema: str, role: str, own: str, other: str
) -> None:
    connection = await asyncpg.connect(schema)
    append = (
        "select noetl.append_administration("
        "'t', 'o', $1, $2, $3, now(), $4, '', 'done', '{}', '{}')"
    )
    try:
        await connection.execute(f"set session authorization {role}")
        await connection.fetch("select * from noetl.lock_administration_head('t', 'o')")
        await connection.execute(append, 1, "", "first", own)
        for action in (other, "role.granted", "tenant.erased", "retention.changed", "projection"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not record"):
                await connection.execute(append, 2, "first", "second", action)
    finally:
        await connection.close()


async def test_a_reader_sees_its_own_tenant_whatever_it_sets(planner: Stores, schema: str) -> None:
    fence = await a_fence(planner)
    for tenant in ("default", "other"):
        stream = a_stream(an_execution(), [a_run()], tenant_id=tenant)
        await planner.ledger.append(an_append(fence, stream))
    connection = await asyncpg.connect(as_role(schema, "noetl_reader"))
    try:
        async with connection.transaction():
            await connection.execute("set local app.tenant = 'other'")
            tenants = await connection.fetch("select tenant_id from noetl.event")
        assert {record["tenant_id"] for record in tenants} == {"default"}
    finally:
        await connection.close()
