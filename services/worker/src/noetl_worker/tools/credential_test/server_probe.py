"""Probes of the servers of a credential: NATS and PostgreSQL."""

from typing import Any

import asyncpg
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.tools.nats.connection import open_nats_connection
from noetl_worker.tools.postgres.postgres_pool import open_postgres_connection
from noetl_worker.tools.postgres.postgres_tool import classify_postgres_error

_FLUSH_S = 5
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


async def probe_nats(credential: Credential) -> dict[str, Any]:
    """Connect, wait for one round trip, and ask JetStream for the account; raises `ToolFailure`."""
    connected = await open_nats_connection(credential)
    client = connected.client
    try:
        await client.flush(timeout=_FLUSH_S)
        version = client.connected_server_version
        return {
            "server": f"NATS {version.major}.{version.minor}.{version.patch}",
            "user": credential.find_text_field("user"),
            **await _ask_jetstream(client),
        }
    except (nats.errors.Error, OSError) as problem:
        reason = connected.complaint or str(problem) or type(problem).__name__
        text = f"the NATS server did not answer after it had accepted the connection: {reason}"
        raise ToolFailure(build_error("connection", text, source="nats")) from problem
    finally:
        await client.close()


async def _ask_jetstream(client: Client) -> dict[str, Any]:
    """Ask for the account's streams; a server without JetStream may be meant."""
    try:
        account = await client.jetstream().account_info()
    except (nats.js.errors.Error, nats.errors.Error) as problem:
        reason = str(problem) or type(problem).__name__
        note = f"the connection is good; JetStream did not answer this user: {reason}"
        return {"jetstream": False, "note": note}
    return {"jetstream": True, "streams": account.streams}


async def probe_postgres(credential: Credential) -> dict[str, Any]:
    """Connect and ask who and where this is; raises `ToolFailure`."""
    try:
        connection = await open_postgres_connection(credential)
        try:
            row = await connection.fetchrow(_QUERY)
        finally:
            await _close_connection(connection)
    except TimeoutError as problem:
        text = "the database did not answer in time"
        text = f"{text}: {_WAYS_OUT['db_connection']}"
        raise ToolFailure(build_error("timeout", text, source="postgres")) from problem
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as problem:
        raise ToolFailure(_explain_failure(problem)) from problem
    assert row is not None, "a query without a table has one row"
    answer = dict(row)
    return {"server": f"PostgreSQL {answer.pop('server_version')}", **answer}


def _explain_failure(problem: Exception) -> Any:
    error = classify_postgres_error(problem, None)
    way_out = _WAYS_OUT.get(error.kind)
    if isinstance(problem, asyncpg.InvalidCatalogNameError):
        way_out = "check the database of the credential"
    if way_out is None:
        return error
    return build_error(
        error.kind,
        f"{error.message}: {way_out}",
        code=error.code,
        pg_code=error.pg_code,
        source=error.source,
    )


async def _close_connection(connection: "asyncpg.Connection[Any]") -> None:
    try:
        await connection.close(timeout=_CLOSE_S)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
