"""Opens a PostgreSQL database with a credential."""

from typing import Any

import asyncpg

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.tools.postgres import refused
from noetl_worker.tools.postgres_pool import open_connection

_CLOSE_S = 2.0
_QUERY = """
    SELECT current_setting('server_version') AS server_version,
           current_user::text AS "user",
           current_database()::text AS database,
           pg_is_in_recovery() AS is_standby,
           EXISTS (
               SELECT FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl
           ) AS is_encrypted
"""
_WAYS_OUT = {
    "auth": "check user and password of the credential, and the server's pg_hba.conf",
    "db_connection": "check host, port and sslmode, and whether this worker reaches the server",
}


async def run_probe(credential: Credential) -> dict[str, Any]:
    """Connect and ask who and where this is; raises `ToolFailure`."""
    try:
        connection = await open_connection(credential)
        try:
            row = await connection.fetchrow(_QUERY)
        finally:
            await _close(connection)
    except TimeoutError as problem:
        text = "the database did not answer in time"
        text = f"{text}: {_WAYS_OUT['db_connection']}"
        raise ToolFailure(failure("timeout", text, source="postgres")) from problem
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as problem:
        raise ToolFailure(_told(problem)) from problem
    assert row is not None, "a query without a table has one row"
    found = dict(row)
    return {"server": f"PostgreSQL {found.pop('server_version')}", **found}


def _told(problem: Exception) -> Any:
    error = refused(problem, None)
    way_out = _WAYS_OUT.get(error.kind)
    if isinstance(problem, asyncpg.InvalidCatalogNameError):
        way_out = "check the database of the credential"
    if way_out is None:
        return error
    return failure(
        error.kind,
        f"{error.message}: {way_out}",
        code=error.code,
        pg_code=error.pg_code,
        source=error.source,
    )


async def _close(connection: "asyncpg.Connection[Any]") -> None:
    try:
        await connection.close(timeout=_CLOSE_S)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
