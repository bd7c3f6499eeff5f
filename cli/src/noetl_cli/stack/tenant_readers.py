"""The database's readers of a tenant, and a tenant's own database with its roles."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from noetl_cli.errors import StackError
from noetl_cli.stack import administered_work
from noetl_cli.stack.servers import roles
from noetl_cli.stack.stores import CONNECT_S
from noetl_cli.stack.supervision.service_addresses import ORGANIZATION
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog
from noetl_storage.postgres.registry.identities import PostgresIdentities
from noetl_storage.postgres.tenant_roles import PostgresTenantRoles

CONNECTIONS_DEFAULT = 5
_PASSWORD_BYTES = 24
T = TypeVar("T")


def make_reader(
    dsn: str, tenant_id: str, *, password: str, connections_max: int
) -> tuple[str, str]:
    """Make the role that reads a tenant; return its name and address. Raises a `StackError`."""

    async def make_role(database: Database) -> str:
        async with PostgresAdministrationLog(database).open_change():
            role = await PostgresTenantRoles(database).create_role(
                tenant_id, password, connections_max=connections_max
            )
            details = {"connections": connections_max}
            await _record_change(database, administered_work.READER_CREATED, tenant_id, details)
        return role

    role = _ask_database(dsn, make_role)
    database = roles.get_database_name(dsn)
    return role, roles.build_role_dsn(dsn, role=role, password=password, database=database)


def make_own_database(admin_dsn: str, tenant_id: str, *, path: str) -> dict[str, str]:
    """Make a tenant's database with its tables; return its address for each service's role.

    The record that the roles got passwords stands in the database itself.
    """
    database = roles.get_database_name(admin_dsn)
    password_by_role = {role: secrets.token_hex(_PASSWORD_BYTES) for role in roles.ROLES}
    roles.create_own_database(
        admin_dsn=admin_dsn,
        database=database,
        tenant=tenant_id,
        password_by_role=password_by_role,
        path=path,
    )
    suffix = roles.build_role_suffix(tenant_id)
    address_by_role = {
        role: roles.build_role_dsn(
            admin_dsn, role=f"{role}{suffix}", password=password, database=database
        )
        for role, password in password_by_role.items()
        if role != roles.TARGET_ROLE
    }

    async def record_database(opened: Database) -> None:
        is_new = not await migrate.has_schema(opened)
        if is_new:
            await migrate.apply_migrations(opened)
        await administered_work.append_own_record(
            opened,
            administered_work.DATABASE_CREATED,
            database,
            owner=Owner(
                tenant_id=TenantId(tenant_id), organization_id=OrganizationId(ORGANIZATION)
            ),
            details={"is_new": is_new, "roles": list(address_by_role)},
        )

    _ask_database(address_by_role[roles.OWNER_ROLE], record_database)
    return address_by_role


def drop_reader(dsn: str, tenant_id: str) -> bool:
    """Drop the role that reads a tenant; False when there is none. Raises a `StackError`."""

    async def drop_role(database: Database) -> bool:
        async with PostgresAdministrationLog(database).open_change():
            was_there = await PostgresTenantRoles(database).drop_role(tenant_id)
            if was_there:
                await _record_change(database, administered_work.READER_DROPPED, tenant_id, {})
        return was_there

    return _ask_database(dsn, drop_role)


async def _record_change(
    database: Database, action: str, tenant_id: str, details: dict[str, Any]
) -> None:
    """Record it where the tenant's people look, or for the installation while it has none."""
    is_kept = await PostgresIdentities(database).has_tenant(TenantId(tenant_id))
    place = tenant_id if is_kept else await PostgresTenantRoles(database).find_own_tenant()
    owner = Owner(tenant_id=TenantId(place), organization_id=OrganizationId(ORGANIZATION))
    await administered_work.append_own_record(
        database, action, tenant_id, owner=owner, details=details
    )


def _ask_database(dsn: str, ask: Callable[[Database], Awaitable[T]]) -> T:
    async def ask_opened() -> T:
        async with open_database(
            dsn,
            application_name="noetl-cli",
            connections_max=1,
            connect_deadline_s=CONNECT_S,
            must_be_durable=False,
        ) as database:
            return await ask(database)

    try:
        return asyncio.run(ask_opened())
    except NoetlError as failure:
        raise StackError(
            f"The database refuses: {failure}.",
            way_out="Connect as the schema's owner; a superuser lets it with "
            "`alter role noetl_owner createrole`.",
        ) from failure
