"""What a `postgres` credential calls its server, for the messages of errors."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from noetl_worker.domain import postgres_connection
from noetl_worker.domain.postgres_connection import UnusableCredential


def describe_server(fields: Mapping[str, Any]) -> str:
    """Tell database, host and port of a credential, as far as it names them, and no secret.

    Of a `dsn` whose parts are in doubt nothing is told: what looks like a host may be a password.
    """
    try:
        if isinstance(dsn := fields.get("dsn"), str) and dsn:
            host, port, database = _parse_server(dsn)
        else:
            connect_arguments = postgres_connection.build_connect_arguments(fields, application="")
            host, port, database = (
                connect_arguments["host"],
                connect_arguments["port"],
                connect_arguments["database"],
            )
    except (UnusableCredential, ValueError):
        return ""
    address = f"{host}:{port}" if host else f"port {port}"
    return f"database '{database}' at {address}" if database else f"the server at {address}"


def _parse_server(dsn: str) -> tuple[str | None, int, str]:
    parts = urlsplit(dsn)
    if "@" in parts.path + parts.query + parts.fragment:
        raise UnusableCredential("its password is not written as an address has it")
    database = unquote(parts.path.removeprefix("/"))
    return parts.hostname, parts.port or postgres_connection.PORT, database
