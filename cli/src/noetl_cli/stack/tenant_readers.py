"""The database's readers of a tenant, and a tenant's own database with its roles."""

import asyncio
import getpass
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from noetl_chassis.clock import SystemClock
from noetl_cli.errors import StackError
from noetl_cli.stack.servers import roles
from noetl_cli.stack.stores import CONNECT_S
from noetl_cli.stack.supervision.service_addresses import ORGANIZATION
from noetl_contracts.errors import NoetlError
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.identity.administration import NewRecord
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog
from noetl_storage.postgres.registry.identities import PostgresIdentities
from noetl_storage.postgres.tenant_roles import PostgresTenantRoles

CONNECTIONS_DEFAULT = 5
_PASSWORD_BYTES = 24
# Actions of the administration log.
CREATED, DROPPED = "reader.created", "reader.dropped"
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
            await _record_change(database, CREATED, tenant_id, {"connections": connections_max})
        return role

    role = _ask_database(dsn, make_role)
    database = roles.get_database_name(dsn)
    return role, roles.build_role_dsn(dsn, role=role, password=password, database=database)


def make_own_database(admin_dsn: str, tenant_id: str, *, path: str) -> dict[str, str]:
    """Make a tenant's database; return its address for each service's role."""
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
    return {
        role: roles.build_role_dsn(
            admin_dsn, role=f"{role}{suffix}", password=password, database=database
        )
        for role, password in password_by_role.items()
        if role != roles.TARGET_ROLE
    }


def drop_reader(dsn: str, tenant_id: str) -> bool:
    """Drop the role that reads a tenant; False when there is none. Raises a `StackError`."""

    async def drop_role(database: Database) -> bool:
        async with PostgresAdministrationLog(database).open_change():
            was_there = await PostgresTenantRoles(database).drop_role(tenant_id)
            if was_there:
                await _record_change(database, DROPPED, tenant_id, {})
        return was_there

    return _ask_database(dsn, drop_role)


async def _record_change(
    database: Database, action: str, tenant_id: str, details: dict[str, Any]
) -> None:
    """Record it where the tenant's people look, or for the installation while it has none."""
    is_kept = await PostgresIdentities(database).has_tenant(TenantId(tenant_id))
    place = tenant_id if is_kept else await PostgresTenantRoles(database).find_own_tenant()
    user = getpass.getuser()
    await PostgresAdministrationLog(database).append_record(
        NewRecord(
            tenant_id=TenantId(place),
            organization_id=OrganizationId(ORGANIZATION),
            event_time=SystemClock().now(),
            action=action,
            target=tenant_id,
            actor=Actor(kind=ActorKind.OWNER, id=user, name=user, via=Via.CLI),
            details=details,
        )
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
