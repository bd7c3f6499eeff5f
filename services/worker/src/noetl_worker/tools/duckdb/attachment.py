"""Converts a `postgres` credential to libpq settings, and attaches its database to DuckDB."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import duckdb

from noetl_playbook.templates.output_forms import sql_ident, sql_literal
from noetl_worker.domain import postgres_connection
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.postgres_connection import UnusableCredential
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.sql import server_names

_LIBPQ_NAMES = {"database": "dbname", "ssl": "sslmode"}
_OF_SERVER = ("host", "port", "user", "password", "database", "ssl")


def build_libpq_settings(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a server's settings, a `dsn` taken apart; raises `UnusableCredential`."""
    connect_arguments = postgres_connection.build_connect_arguments(
        fields, application="noetl-worker"
    )
    if "dsn" in connect_arguments:
        return _parse_dsn(connect_arguments["dsn"])
    return {
        _LIBPQ_NAMES.get(name, name): str(connect_arguments[name])
        for name in _OF_SERVER
        if connect_arguments[name] is not None
    }


def _parse_dsn(dsn: str) -> dict[str, str]:
    """Take an address apart; the error repeats nothing of it, for it may hold a password."""
    try:
        parts = urlsplit(dsn)
        settings = {
            "host": parts.hostname,
            "port": str(parts.port or 5432),
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "dbname": unquote(parts.path.removeprefix("/")),
            **dict(parse_qsl(parts.query)),
        }
    except ValueError as problem:
        text = "'dsn' cannot be read: write it as postgresql://user:password@host:port/database"
        raise UnusableCredential(text) from problem
    return {name: value for name, value in settings.items() if value}


# Settings by libpq's names, and the options of DuckDB's secret that hold them.
_SECRET_OPTIONS = {
    "host": "HOST",
    "port": "PORT",
    "user": "USER",
    "password": "PASSWORD",
    "dbname": "DATABASE",
}


def attach_postgres(
    connection: duckdb.DuckDBPyConnection, alias: str, credential: Credential
) -> None:
    """Attach a PostgreSQL database; raises `ToolFailure` where DuckDB has no extension for it."""
    extension_row = connection.execute(
        "SELECT installed FROM duckdb_extensions() WHERE extension_name = 'postgres_scanner'"
    ).fetchone()
    if extension_row is None or not extension_row[0]:
        raise ToolFailure(
            build_error(
                "config",
                f"the database '{alias}' cannot be attached: this worker has no postgres "
                "extension of DuckDB, and tasks may not install one; read rows with "
                f"inputs: {{{alias}: {{auth: {credential.name}, query: …}}}}, write them with "
                "kind transfer, or have an operator install the extension",
            )
        )
    try:
        settings = build_libpq_settings(credential.fields)
    except postgres_connection.UnusableCredential as problem:
        raise credential.build_unusable_failure(f"cannot be used: {problem}") from problem
    # The secret keeps the password out of what a statement can read of the attached database.
    secret_options = ", ".join(
        f"{option} {sql_literal(settings.pop(name))}"
        for name, option in _SECRET_OPTIONS.items()
        if name in settings
    )
    dsn_text = " ".join(f"{name}={_quote_value(value)}" for name, value in settings.items())
    secret = sql_ident(f"secret_{alias}")
    connection.execute("LOAD postgres_scanner")
    connection.execute(f"CREATE TEMPORARY SECRET {secret} (TYPE postgres, {secret_options})")
    try:
        connection.execute(
            f"ATTACH {sql_literal(dsn_text)} AS {sql_ident(alias)} (TYPE postgres, SECRET {secret})"
        )
    except duckdb.Error as problem:
        server = server_names.describe_server(credential.fields)
        credential.note_server(problem, server)
        raise


def _quote_value(value: str) -> str:
    """Quote a value of a connection string of libpq."""
    escaped_value = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped_value}'"
