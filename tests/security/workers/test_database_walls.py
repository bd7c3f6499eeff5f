"""What the database's reader of a tenant can do: read that tenant, and trouble nobody else."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec import Struct
from tests.support.servers import PostgresServer
from tests.support.storage import (
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
    eventually,
    migrated,
    postgres_stores,
)

from noetl_cli.stack import tenant_readers
from noetl_cli.stack.servers import roles
from noetl_contracts.identity.administration import RecordFilter
from noetl_contracts.identity.role_bindings import RoleBinding, SubjectKind
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.ports.errors import StorageMisconfigured
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog
from noetl_storage.postgres.registry.identities import PostgresIdentities
from noetl_storage.postgres.tenant_roles import PostgresTenantRoles

PASSWORD = "read-on"  # noqa: S105 - of roles that live as long as the test
ACME, GLOBEX = "walls-acme", "walls-globex"
CONNECTIONS = 3
OPS = OrganizationId("default")
GUARDED = (
    *("event", "execution", "stage", "frame", "command", "loop", "business_object"),
    *("lineage", "result_ref", "event_envelope"),
)

Refused = (asyncpg.PostgresError, asyncpg.InterfaceError)


class Ledger(Struct, frozen=True, kw_only=True):
    """A database with histories of two tenants."""

    dsn: str
    admin: str
    role_by_tenant: dict[str, str]

    def service(self, role: str) -> str:
        """Spell the address of a service's role."""
        return roles.build_role_dsn(self.dsn, role=role, password=PASSWORD, database="walls")

    def address(self, tenant: str) -> str:
        """Spell the address of a tenant's reader."""
        return self.service(self.role_by_tenant[tenant])


@pytest.fixture(scope="module")
def ledger(postgres: PostgresServer) -> Iterator[Ledger]:
    made = asyncio.run(make_ledger(postgres))
    yield made
    asyncio.run(drop_readers(made))


async def make_ledger(postgres: PostgresServer) -> Ledger:
    """Make it as `noetl up` does: the owner of the schema is no superuser."""
    password_by_role = dict.fromkeys(roles.ROLES, PASSWORD)
    await asyncio.to_thread(
        roles.create_roles,
        admin_dsn=postgres.admin_dsn(),
        database="walls",
        password_by_role=password_by_role,
        path=os.environ["PATH"],
    )
    owner = roles.build_role_dsn(
        postgres.admin_dsn(), role="noetl_owner", password=PASSWORD, database="walls"
    )
    async with migrated(owner) as database:
        stores, readers = postgres_stores(database), PostgresTenantRoles(database)
        fence = await a_fence(stores)
        made = {}
        for tenant in (ACME, GLOBEX, "default"):
            stream = a_stream(an_execution(), [a_run()], tenant_id=tenant)
            await stores.ledger.append(an_append(fence, stream))
            if tenant != "default":
                made[tenant] = await readers.create_role(
                    tenant, PASSWORD, connections_max=CONNECTIONS
                )
    return Ledger(
        dsn=owner,
        admin=postgres.admin_dsn("walls"),
        role_by_tenant=made,
    )


async def drop_readers(made: Ledger) -> None:
    async with open_database(made.dsn, must_be_durable=False) as database:
        for tenant in (ACME, GLOBEX):
            assert await PostgresTenantRoles(database).drop_role(tenant)
            assert not await PostgresTenantRoles(database).drop_role(tenant)


@pytest.fixture
async def reader(ledger: Ledger) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(ledger.address(ACME))
    # Its own to lift.
    await connection.execute("set default_transaction_read_only = off")
    yield connection
    await connection.close()


async def seen(connection: "asyncpg.Connection[asyncpg.Record]") -> set[str]:
    return {row["tenant_id"] for row in await connection.fetch("select tenant_id from noetl.event")}


async def test_a_reader_sees_its_tenant(reader: "asyncpg.Connection[asyncpg.Record]") -> None:
    assert await seen(reader) == {ACME}
    for table in GUARDED:
        rows = await reader.fetch(f"table noetl.{table}")
        assert {row["tenant_id"] for row in rows} <= {ACME}


@pytest.mark.parametrize(
    "setting",
    [
        f"set app.tenant = '{GLOBEX}'",
        f"select set_config('app.tenant', '{GLOBEX}', false)",
        "set row_security = on",
        "set search_path = noetl, public",
        "set session_replication_role = default",
    ],
)
async def test_no_setting_opens_another_tenant(
    reader: "asyncpg.Connection[asyncpg.Record]", setting: str
) -> None:
    try:
        await reader.execute(setting)
    except asyncpg.InsufficientPrivilegeError:
        return
    assert await seen(reader) == {ACME}


@pytest.mark.parametrize(
    "attack",
    [
        # Another name.
        f'set role "noetl_tenant_{GLOBEX}"',
        *("set role noetl_reader", "set role noetl_tenants", "set role noetl_planner"),
        f"set session authorization 'noetl_tenant_{GLOBEX}'",
        f"alter role \"noetl_tenant_{GLOBEX}\" password 'mine'",
        f'grant "noetl_tenant_{GLOBEX}" to current_user',
        "set row_security = off; select * from noetl.event",
        # The map of roles, the schema, the functions of the services.
        "update noetl.tenant_role set tenant_id = 'walls-globex'",
        "insert into noetl.tenant_role values (current_user, 'walls-globex')",
        f"select noetl.create_tenant('{GLOBEX}', 'SCRAM-SHA-256$', 1)",
        *("select noetl.drop_tenant('default')", "select noetl.end_long_reads(0)"),
        "select noetl.append(null, null, null, null, null, null, null, null, null, null)",
        *(
            "select noetl.claim_shards('x', 1, 1, 1)",
            "select noetl.set_retention('a', 'b', 1, 'c', 'd')",
        ),
        *(
            "delete from noetl.event",
            "select * from noetl.credential",
            "select * from noetl.outbox",
        ),
        *(
            "select * from noetl.event_default",
            "alter table noetl.event disable row level security",
        ),
        # What others would have to live with.
        *("select lo_create(0)", "select lo_from_bytea(0, 'x')", "select lo_creat(-1)"),
        *("select pg_advisory_lock(1)", "select pg_try_advisory_lock(1)"),
        "select pg_advisory_xact_lock(hashtext('noetl.claim_outbox'))",
        *(
            "select pg_sleep(3600)",
            "select pg_sleep_for('1 h')",
            "select pg_sleep_until('infinity')",
        ),
        "select pg_logical_emit_message(false, 'x', repeat('x', 1000))",
        *("create temp table t (n int)", "create schema mine", "create table public.t (n int)"),
        "create function pg_temp.leak(t text) returns bool language sql as 'select true'",
        "begin; lock table noetl.event in row exclusive mode",
        # The server around it.
        *(
            "copy noetl.event to program 'id'",
            "copy (select 1) to '/tmp/x'",
            "select pg_read_file('PG_VERSION')",
        ),
        *("create extension dblink", "create extension postgres_fdw", "load 'auto_explain'"),
        "select pg_terminate_backend(pid) from pg_stat_activity where usename <> current_user",
        *("select pg_reload_conf()", "select * from pg_authid", "select pg_switch_wal()"),
        *("alter system set work_mem = '1GB'", "checkpoint", "set temp_file_limit = -1"),
    ],
)
async def test_a_reader_may_not(reader: "asyncpg.Connection[asyncpg.Record]", attack: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await reader.execute(attack)
    assert isinstance(
        refused.value,
        asyncpg.InsufficientPrivilegeError
        | asyncpg.UndefinedFunctionError
        | asyncpg.ObjectNotInPrerequisiteStateError
        | asyncpg.FeatureNotSupportedError
        | asyncpg.UndefinedObjectError,
    ), refused.value


@pytest.mark.parametrize(
    "leaky",
    [
        "select * from noetl.event where (1 / (tenant_id = '{acme}')::int) = 1",
        "select * from noetl.event where tenant_id::int = 1 or tenant_id = '{acme}'",
        "select * from noetl.event_envelope where (1 / (tenant_id = '{acme}')::int) = 1",
        "select query_to_xml('table noetl.event', true, false, '')::text as tenant_id",
    ],
)
async def test_a_failing_expression_tells_nothing_of_others(
    reader: "asyncpg.Connection[asyncpg.Record]", leaky: str
) -> None:
    """An expression that failed for a row of another tenant would say that there is one."""
    try:
        told = str(await reader.fetch(leaky.format(acme=ACME)))
    except asyncpg.PostgresError as failure:
        told = str(failure)
    assert GLOBEX not in told
    assert "default" not in told.replace("default_", "")


async def test_statistics_tell_nothing_of_others(
    ledger: Ledger, reader: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    admin = await asyncpg.connect(ledger.admin)
    await admin.execute("analyze noetl.event")
    await admin.close()
    told = await reader.fetch(
        "select most_common_vals::text, histogram_bounds::text from pg_stats "
        "where schemaname = 'noetl'"
    )
    assert GLOBEX not in str(told)


async def test_what_others_ask_is_not_shown(
    ledger: Ledger, reader: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    other = await asyncpg.connect(ledger.address(GLOBEX))
    admin = await asyncpg.connect(ledger.admin)
    try:
        for connection in (other, admin):
            await connection.execute("select 'whispered-canary'")
        shown = await reader.fetch(
            "select query from pg_stat_activity where usename <> current_user"
        )
        assert shown
        assert "whispered-canary" not in str(shown)
    finally:
        await other.close()
        await admin.close()


async def test_a_reader_has_so_many_connections(ledger: Ledger) -> None:
    held = [await asyncpg.connect(ledger.address(ACME)) for _ in range(CONNECTIONS)]
    try:
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await asyncpg.connect(ledger.address(ACME))
    finally:
        for connection in held:
            await connection.close()


@pytest.mark.parametrize(
    "long_read",
    [
        "select count(*) from pg_proc as a, pg_proc as b, pg_proc as c, pg_proc as d",
        "do $$ begin loop perform 1; end loop; end $$",
    ],
)
async def test_a_read_without_a_limit_is_ended(
    ledger: Ledger, reader: "asyncpg.Connection[asyncpg.Record]", long_read: str
) -> None:
    """The role's own limits are its to lift; the reaper's is not."""
    await reader.execute(
        "set statement_timeout = 0; set idle_session_timeout = 0; "
        "set idle_in_transaction_session_timeout = 0; set transaction_timeout = 0"
    )
    reading = asyncio.ensure_future(reader.execute(long_read))
    async with open_database(ledger.service("noetl_reaper"), must_be_durable=False) as database:
        readers = PostgresTenantRoles(database)
        assert await readers.end_long_reads(3600) == 0

        async def is_ended() -> bool:
            return await readers.end_long_reads(0.01) > 0

        await eventually(is_ended, what="the read is ended")
    with pytest.raises(Refused):
        await reading


async def test_an_open_transaction_is_ended(
    ledger: Ledger, reader: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """It would keep the server from cleaning up behind everybody's changes."""
    await reader.execute("set idle_in_transaction_session_timeout = 0; begin; select 1")
    async with open_database(ledger.service("noetl_reaper"), must_be_durable=False) as database:
        readers = PostgresTenantRoles(database)

        async def is_ended() -> bool:
            return await readers.end_long_reads(0.01) > 0

        await eventually(is_ended, what="the transaction is ended")

    async def is_closed() -> bool:
        return reader.is_closed()

    # The driver fails in its own ways while it reads of its end.
    await eventually(is_closed, what="the reader hears of it")
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await reader.execute("select 1")


@pytest.mark.parametrize("tenant", ["", "a b", "a'b", 'a"b', "x" * 65, "a;b", "../x", "é"])
async def test_a_tenant_is_named_like_one(ledger: Ledger, tenant: str) -> None:
    async with open_database(ledger.dsn, must_be_durable=False) as database:
        with pytest.raises(Exception, match="a tenant is 1 to 64"):
            await PostgresTenantRoles(database).create_role(tenant, PASSWORD, connections_max=1)


async def test_a_role_that_is_there_already_is_not_taken_over(ledger: Ledger) -> None:
    """It may be able to do anything."""
    tenant = "walls-made"
    admin = await asyncpg.connect(ledger.admin)
    await admin.execute(f'create role "noetl_tenant_{tenant}" superuser')
    try:
        async with open_database(ledger.dsn, must_be_durable=False) as database:
            with pytest.raises(Exception, match="exists"):
                await PostgresTenantRoles(database).create_role(tenant, PASSWORD, connections_max=1)
    finally:
        await admin.execute(f'drop role "noetl_tenant_{tenant}"')
        await admin.close()


async def test_a_long_name_has_a_role_and_a_password_can_be_changed(ledger: Ledger) -> None:
    tenant = "walls-" + "x" * 55
    async with open_database(ledger.dsn, must_be_durable=False) as database:
        readers = PostgresTenantRoles(database)
        first = await readers.create_role(tenant, "old", connections_max=1)
        again = await readers.create_role(tenant, PASSWORD, connections_max=1)
        assert first == again
        assert len(first) < 63
        connection = await asyncpg.connect(ledger.service(first))
        assert await seen(connection) == set()
        await connection.close()
        assert await readers.drop_role(tenant)


@pytest.mark.parametrize("tenant", ["walls-own", "walls-own-" + "x" * 45])
async def test_the_reader_of_an_own_database_reads_its_tenant(
    postgres: PostgresServer, tenant: str
) -> None:
    """Whether the database is made before its schema, or once more after it."""
    database, suffix = tenant.replace("-", "_"), roles.build_role_suffix(tenant)

    async def make_own_database() -> None:
        await asyncio.to_thread(
            roles.create_own_database,
            admin_dsn=postgres.admin_dsn(database),
            database=database,
            tenant=tenant,
            password_by_role=dict.fromkeys(roles.ROLES, PASSWORD),
            path=os.environ["PATH"],
        )

    def build_dsn(role: str) -> str:
        return roles.build_role_dsn(
            postgres.admin_dsn(), role=f"{role}{suffix}", password=PASSWORD, database=database
        )

    async def read_tenants() -> set[str]:
        connection = await asyncpg.connect(build_dsn("noetl_reader"))
        try:
            return await seen(connection)
        finally:
            await connection.close()

    await make_own_database()
    async with migrated(build_dsn("noetl_owner")) as opened:
        stores = postgres_stores(opened)
        fence = await a_fence(stores)
        for owner in (tenant, "default"):
            stream = a_stream(an_execution(), [a_run()], tenant_id=owner)
            await stores.ledger.append(an_append(fence, stream))
        assert await read_tenants() == {tenant}
        # As it was before the step that reads the database's comment.
        await opened.execute_statement("update noetl.tenant_role set tenant_id = 'default'")
        await make_own_database()
        assert await read_tenants() == {tenant}
        role = await PostgresTenantRoles(opened).create_role(tenant, PASSWORD, connections_max=1)
        connection = await asyncpg.connect(
            roles.build_role_dsn(
                postgres.admin_dsn(), role=role, password=PASSWORD, database=database
            )
        )
        assert await seen(connection) == {tenant}
        await connection.close()
        assert await PostgresTenantRoles(opened).drop_role(tenant)
    assert await read_tenants() == {tenant}


async def test_the_tenant_default_has_a_reader_of_its_own_too(ledger: Ledger) -> None:
    async with open_database(ledger.dsn, must_be_durable=False) as database:
        readers = PostgresTenantRoles(database)
        role = await readers.create_role("default", PASSWORD, connections_max=2)
        try:
            for name in (role, "noetl_reader"):
                connection = await asyncpg.connect(ledger.service(name))
                assert await seen(connection) == {"default"}
                await connection.close()
        finally:
            assert await readers.drop_role("default")
    connection = await asyncpg.connect(ledger.service("noetl_reader"))
    assert await seen(connection) == {"default"}
    await connection.close()


@pytest.mark.parametrize("is_kept", [True, False])
async def test_whoever_makes_and_drops_a_reader_is_recorded(
    ledger: Ledger, *, is_kept: bool
) -> None:
    """In the stream of a tenant that is kept here, and else in the installation's own."""
    tenant = TenantId("walls-kept" if is_kept else "walls-unknown")
    async with open_database(ledger.dsn, must_be_durable=False) as database:
        log, identities = PostgresAdministrationLog(database), PostgresIdentities(database)
        if is_kept:
            await identities.put_binding(
                RoleBinding(
                    binding_id="1",
                    tenant_id=tenant,
                    organization_id=OPS,
                    subject_kind=SubjectKind.PERSON,
                    subject="ann",
                    role="viewer",
                )
            )
        role, address = await asyncio.to_thread(
            tenant_readers.make_reader, ledger.dsn, tenant, password=PASSWORD, connections_max=2
        )
        assert f"//{role}:" in address
        assert await asyncio.to_thread(tenant_readers.drop_reader, ledger.dsn, tenant)
        assert not await asyncio.to_thread(tenant_readers.drop_reader, ledger.dsn, tenant)
        assert await identities.has_tenant(tenant) is is_kept
        records = await log.list_records(
            RecordFilter(what="reader"),
            tenant_id=tenant if is_kept else TenantId("default"),
            organization_id=OPS,
            after_version=0,
            records_max=10,
        )
    assert [(record.action, record.target, str(record.actor.kind)) for record in records] == [
        ("reader.created", tenant, "owner"),
        ("reader.dropped", tenant, "owner"),
    ]


async def test_whoever_makes_a_tenants_database_is_recorded_in_it(postgres: PostgresServer) -> None:
    tenant = TenantId("walls-recorded")
    admin_dsn, path = postgres.admin_dsn("walls_recorded"), os.environ["PATH"]
    for is_new in (True, False):
        address_by_role = await asyncio.to_thread(
            tenant_readers.make_own_database, admin_dsn, tenant, path=path
        )
        async with open_database(address_by_role["noetl_planner"], must_be_durable=False) as opened:
            await migrate.verify_schema(opened)
            records = await PostgresAdministrationLog(opened).list_records(
                RecordFilter(what="database"),
                tenant_id=tenant,
                organization_id=OrganizationId("default"),
                after_version=0,
                records_max=10,
            )
        assert [record.action for record in records] == ["database.created"] * (2 - is_new)
        assert (records[-1].target, str(records[-1].actor.kind)) == ("walls_recorded", "owner")
        assert records[-1].details["is_new"] is is_new
        words = str(records[-1])
        assert not any(
            str(urlsplit(address).password) in words for address in address_by_role.values()
        )


async def test_only_the_owner_makes_readers(ledger: Ledger) -> None:
    for role in ("noetl_planner", "noetl_reaper", "noetl_archivist", "noetl_reader"):
        async with open_database(ledger.service(role), must_be_durable=False) as database:
            with pytest.raises(StorageMisconfigured):
                await PostgresTenantRoles(database).create_role("x", PASSWORD, connections_max=1)
