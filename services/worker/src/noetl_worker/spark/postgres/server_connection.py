"""Connections to PostgreSQL by a credential: one reads Arrow batches, one writes by `COPY`."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import adbc_driver_manager
import asyncpg
import pyarrow as pa
from adbc_driver_postgresql import StatementOptions, dbapi

from noetl_worker.domain import postgres_connection
from noetl_worker.domain.failures import classify_sqlstate, format_problem
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.sql import queries, server_names

APPLICATION = "noetl-spark"

T = TypeVar("T")
Connection = Any

_QUERIES = queries.load_queries(__package__, "server_connection")
_BATCH_BYTES = 8 * 1024 * 1024
_NO_STATE = "00000"
# Texts of the server besides its message, in the order in which they are told.
_DETAILS = ("PG_DIAG_MESSAGE_DETAIL", "PG_DIAG_MESSAGE_HINT", "PG_DIAG_CONTEXT")
_MESSAGE = "PG_DIAG_MESSAGE_PRIMARY"


class ArrowSession:
    """One connection in one transaction that only reads; `about` begins each error's message."""

    def __init__(self, connection: dbapi.Connection, *, about: str) -> None:
        self._connection = connection
        self._about = about

    def begin_reading(self, snapshot: str | None) -> None:
        """Begin a transaction, in which an exported snapshot is seen where there is one."""
        self.run_statement(_QUERIES["begin"])
        if snapshot is not None:
            self.run_statement(_QUERIES["join_snapshot"].format(snapshot=snapshot))
        for name in ("write_iso_dates", "write_utc", "write_intervals", "read_quotes"):
            self.run_statement(_QUERIES[name])

    def limit_statements(self, seconds: float) -> None:
        """Bound every later statement; raises `SparkRefusal`."""
        self.run_statement(
            _QUERIES["limit_statements"].format(milliseconds=f"{seconds * 1000:.0f}")
        )

    def run_statement(self, text: str) -> None:
        """Run a statement without rows; raises `SparkRefusal`."""
        with self._translate_errors(), self._connection.cursor() as cursor:
            cursor.execute(text)

    def fetch_rows(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of a small query; raises `SparkRefusal`."""
        with self._translate_errors(), self._connection.cursor() as cursor:
            cursor.execute(text)
            rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
        return rows

    def describe_query(self, text: str) -> pa.Schema:
        """Return a query's columns without running it; raises `SparkRefusal`."""
        with self._translate_errors(), self._connection.cursor() as cursor:
            return cursor.adbc_execute_schema(text)

    def read_batches(self, text: str) -> Generator[pa.RecordBatch, None, None]:
        """Yield a query's rows as they come; raises `SparkRefusal`."""
        options = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_BATCH_BYTES)}
        with self._translate_errors(), self._connection.cursor(adbc_stmt_kwargs=options) as cursor:
            cursor.execute(text)
            # The reader that the client shows tells no SQLSTATE of what ends a stream.
            yield from cursor._results.reader  # noqa: SLF001 - as above

    def cancel_statement(self) -> None:
        """End the statement that runs, from another thread."""
        # One that ends by itself meanwhile, or a server that is away, ends it as well.
        with suppress(adbc_driver_manager.Error):
            self._connection.adbc_cancel()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except adbc_driver_manager.Error as problem:
            raise _build_refusal(problem, self._about) from problem
        except pa.ArrowException as problem:
            # A stream that breaks off raises Arrow's own error around that of the driver.
            text = f"{self._about}: the connection was lost while rows were read: {problem}"
            raise SparkRefusal(
                "db_connection", text, code="PG_08006", source="postgres"
            ) from problem


@contextmanager
def open_arrow_session(
    fields: Mapping[str, Any], *, credential: str, about: str
) -> Iterator[ArrowSession]:
    """Hold a connection by a credential's fields; raises `SparkRefusal`."""
    try:
        address = build_address(fields, application=APPLICATION)
    except postgres_connection.UnusableCredential as problem:
        text = f"{about}: credential '{credential}' cannot be used: {problem}"
        raise SparkRefusal("config", text, source="postgres") from problem
    try:
        connection = dbapi.connect(address, autocommit=True)
    except adbc_driver_manager.Error:
        # This client does not tell the SQLSTATE of a connection that failed; the other one does.
        _check_connection(fields, credential=credential, about=about)
        # What libpq says of an address may hold a part of its password.
        text = (
            f"{about}: libpq could not connect by credential '{credential}', another client could: "
            "give host, port, user, password and database instead of 'dsn', or try again"
        )
        raise SparkRefusal("db_connection", text, code="PG_08006", source="postgres") from None
    try:
        yield ArrowSession(connection, about=about)
    finally:
        connection.close()


def build_address(fields: Mapping[str, Any], *, application: str) -> str:
    """Write a credential as libpq reads it; raises `UnusableCredential`."""
    connect_arguments = postgres_connection.build_connect_arguments(fields, application=application)
    added = {
        "application_name": application,
        "connect_timeout": f"{postgres_connection.CONNECT_S:.0f}",
        "client_encoding": "UTF8",
    }
    if "dsn" in connect_arguments:
        dsn = str(connect_arguments["dsn"])
        separator = "&" if urlsplit(dsn).query else "?"
        return f"{dsn.rstrip('?')}{separator}{urlencode(added)}"
    words = {
        "host": connect_arguments["host"],
        "port": connect_arguments["port"],
        "user": connect_arguments["user"],
        "password": connect_arguments["password"],
        "dbname": connect_arguments["database"],
        "sslmode": connect_arguments["ssl"],
        **added,
    }
    return " ".join(
        f"{name}={_quote_word(str(word))}" for name, word in words.items() if word is not None
    )


def _quote_word(word: str) -> str:
    escaped_word = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped_word}'"


def _decode(text: str | bytes) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _build_refusal(problem: adbc_driver_manager.Error, about: str) -> SparkRefusal:
    details = {_decode(name): _decode(value) for name, value in problem.details}
    state = problem.sqlstate or _NO_STATE
    if state == _NO_STATE or _MESSAGE not in details:
        text = f"{about}: the connection to the database failed: {problem}"
        return SparkRefusal("db_connection", text, code="PG_08006", source="postgres")
    text = ". ".join([details[_MESSAGE], *(details[name] for name in _DETAILS if name in details)])
    error = classify_sqlstate(state, f"{about}: {text}", details={})
    return SparkRefusal(
        error.kind, error.message, code=error.code, pg_code=error.pg_code, source="postgres"
    )


def run_connected(
    fields: Mapping[str, Any],
    work: Callable[[Connection], Awaitable[T]],
    *,
    credential: str,
    about: str = "",
) -> T:
    """Do some work on a connection; raises `SparkRefusal`, whose message begins with `about`."""

    async def connect_and_run() -> T:
        connect_arguments = postgres_connection.build_connect_arguments(
            fields, application=APPLICATION
        )
        with postgres_connection.translate_credential_errors(fields):
            try:
                connection = await asyncpg.connect(**connect_arguments)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as problem:
                server = server_names.describe_server(fields)
                problem.add_note(", ".join(filter(None, (server, f"credential '{credential}'"))))
                raise
        try:
            return await work(connection)
        finally:
            await connection.close(timeout=postgres_connection.CONNECT_S)

    start = f"{about}: " if about else ""
    try:
        return asyncio.run(connect_and_run())
    except postgres_connection.UnusableCredential as problem:
        text = f"{start}credential '{credential}' cannot be used: {problem}"
        raise SparkRefusal("config", text, source="postgres") from problem
    except asyncpg.PostgresError as problem:
        # The server's context names line and column of a value that a table does not take.
        parts = filter(None, (format_problem(problem), problem.context))
        error = classify_sqlstate(problem.sqlstate or "XX000", start + ". ".join(parts), details={})
        raise SparkRefusal(
            error.kind, error.message, code=error.code, pg_code=error.pg_code, source="postgres"
        ) from problem
    except (OSError, TimeoutError, asyncpg.InterfaceError) as problem:
        text = f"{start}the connection to the database failed: {format_problem(problem)}"
        raise SparkRefusal("db_connection", text, code="PG_08006", source="postgres") from problem


def _check_connection(fields: Mapping[str, Any], *, credential: str, about: str) -> None:
    """Connect and leave again; raises `SparkRefusal` that says why there is no way in."""

    async def do_nothing(_: Connection) -> None:
        return

    run_connected(fields, do_nothing, credential=credential, about=about)
