"""The database's readers of a tenant, and a tenant's own database with its roles."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from noetl_cli.errors import StackError
from noetl_cli.stack.servers import roles
from noetl_cli.stack.stores import CONNECT_S
from noetl_contracts.errors import NoetlError
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.tenant_roles import PostgresTenantRoles

CONNECTIONS_DEFAULT = 5
_PASSWORD_BYTES = 24
T = TypeVar("T")


def make_reader(
    dsn: str, tenant_id: str, *, password: str, connections_max: int
) -> tuple[str, str]:
    """Make the role that reads a tenant; return its name and address. Raises a `StackError`."""
    role = _ask_database(
        dsn,
        lambda readers: readers.create_role(tenant_id, password, connections_max=connections_max),
    )
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
    return _ask_database(dsn, lambda readers: readers.drop_role(tenant_id))


def _ask_database(dsn: str, ask: Callable[[PostgresTenantRoles], Awaitable[T]]) -> T:
    async def ask_opened() -> T:
        async with open_database(
            dsn,
            application_name="noetl-cli",
            connections_max=1,
            connect_deadline_s=CONNECT_S,
            must_be_durable=False,
        ) as database:
            return await ask(PostgresTenantRoles(database))

    try:
        return asyncio.run(ask_opened())
    except NoetlError as failure:
        raise StackError(
            f"The database refuses: {failure}.",
            way_out="Connect as the schema's owner; a superuser lets it with "
            "`alter role noetl_owner createrole`.",
        ) from failure
