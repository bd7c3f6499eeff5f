"""Attaches PostgreSQL databases to a session of DuckDB."""

import duckdb

from noetl_playbook.sql_text import sql_ident, sql_literal
from noetl_worker.domain import postgres_connecting
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.tools import postgres_settings

# Settings by libpq's names, and the options of DuckDB's secret that hold them.
_SECRET_OPTIONS = {
    "host": "HOST",
    "port": "PORT",
    "user": "USER",
    "password": "PASSWORD",
    "dbname": "DATABASE",
}


def attach(connection: duckdb.DuckDBPyConnection, alias: str, credential: Credential) -> None:
    """Attach a PostgreSQL database; raises `ToolFailure` where DuckDB has no extension for it."""
    found = connection.execute(
        "SELECT installed FROM duckdb_extensions() WHERE extension_name = 'postgres_scanner'"
    ).fetchone()
    if found is None or not found[0]:
        raise ToolFailure(
            failure(
                "config",
                f"the database '{alias}' cannot be attached: this worker has no postgres "
                "extension of DuckDB, and tasks may not install one; read rows with "
                f"inputs: {{{alias}: {{auth: {credential.name}, query: …}}}}, write them with "
                "kind transfer, or have an operator install the extension",
            )
        )
    try:
        settings = postgres_settings.settings(credential.fields)
    except postgres_connecting.Unusable as problem:
        raise credential.unusable(f"cannot be used: {problem}") from problem
    # The secret keeps the password out of what a statement can read of the attached database.
    given = ", ".join(
        f"{option} {sql_literal(settings.pop(name))}"
        for name, option in _SECRET_OPTIONS.items()
        if name in settings
    )
    rest = " ".join(f"{name}={_quoted(value)}" for name, value in settings.items())
    secret = sql_ident(f"secret_{alias}")
    connection.execute("LOAD postgres_scanner")
    connection.execute(f"CREATE TEMPORARY SECRET {secret} (TYPE postgres, {given})")
    connection.execute(
        f"ATTACH {sql_literal(rest)} AS {sql_ident(alias)} (TYPE postgres, SECRET {secret})"
    )


def _quoted(value: str) -> str:
    """Quote a value of a connection string of libpq."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
