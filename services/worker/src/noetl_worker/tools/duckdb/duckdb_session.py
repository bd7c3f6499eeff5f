"""One hardened DuckDB connection: opened, locked down, used in a thread, closed."""

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import duckdb
import pyarrow as pa
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_playbook.templates.output_forms import sql_literal
from noetl_worker.domain.failures import (
    ToolFailure,
    build_error,
    check_column_names,
    format_problem,
)
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.sql.sql_statements import Statement
from noetl_worker.tools.duckdb import attachment
from noetl_worker.tools.duckdb.results import SpooledRows, show_command, show_commands
from noetl_worker.tools.tables import duckdb_settings, duckdb_types, file_tables

_RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)
_ERROR_HEAD = re.compile(r"([A-Za-z ]+) Error: ")
# Inside a transaction these fail, or would end it.
_CLONE_FS = 0x200
_ALONE = frozenset(
    {
        duckdb.StatementType.TRANSACTION,
        duckdb.StatementType.ATTACH,
        duckdb.StatementType.DETACH,
        duckdb.StatementType.VACUUM,
        duckdb.StatementType.PRAGMA,
    }
)
_COMMANDS = {
    "begin": "BEGIN TRANSACTION",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
}


class DuckdbLimits(Struct, frozen=True, kw_only=True):
    """What one database may use, and how many there may be at once."""

    memory_bytes: int = 512 * 1024**2
    threads: int = 2
    databases_max: int = 4
    result_bytes_max: int = 256 * 1024**2


class DatabasePlaces(Struct, frozen=True, kw_only=True):
    """Where a session finds its database, None in memory, and the files that statements name."""

    database: Path | None = None
    folder: Path | None = None


class QueryScan(Struct, frozen=True, kw_only=True):
    """A query that runs: its columns, their types, DuckDB's names of these, and its batches."""

    columns: list[str]
    types: list[str]
    kinds: list[str]
    schema: pa.Schema
    batches: Iterator[Any]

    @property
    def is_plain(self) -> bool:
        """Tell whether its columns read back from a stored table as they read now."""
        return duckdb_types.are_all_plain(self.kinds)


class SessionInterrupted(Exception):  # noqa: N818 - somebody wanted it to stop, which is no error
    """The call was called off."""


class DuckdbSession:
    """A connection of one attempt; everything but `interrupt` runs in one thread."""

    def __init__(self, *, limits: DuckdbLimits) -> None:
        self._limits = limits
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._is_interrupted = threading.Event()
        self._scan_stops: list[Callable[[], None]] = []
        self._readers: WeakSet[pa.RecordBatchReader] = WeakSet()

    def open_database(self, places: DatabasePlaces, attached: dict[str, Credential]) -> None:
        """Connect and lock the configuration; raises `duckdb.Error` or `ToolFailure`.

        Statements reach the files below the folder of `places`, and no others.
        """
        place = ":memory:" if places.database is None else str(places.database)
        if places.folder is not None and sys.platform == "linux":
            os.chdir(places.folder)
        with _translate_errors():
            connection = duckdb.connect(place, config=self._build_config(is_open=bool(attached)))
        self._connection = connection
        for alias, credential in attached.items():
            attachment.attach_postgres(connection, alias, credential)
        if places.folder is not None:
            folder = sql_literal(f"{places.folder}/")
            connection.execute(f"SET GLOBAL allowed_directories=[{folder}]")
        duckdb_settings.lock_settings(connection)

    def _build_config(self, *, is_open: bool) -> duckdb_settings.Settings:
        return {
            **duckdb_settings.SETTINGS,
            # Loading an extension reads its file, so attaching needs access until it is done.
            "enable_external_access": "true",
            "autoload_known_extensions": "true" if is_open else "false",
            # A folder for spilling would stay readable and writable for every statement.
            "temp_directory": "",
            "memory_limit": f"{self._limits.memory_bytes}B",
            "threads": str(self._limits.threads),
        }

    def register_table(self, name: str, table: Any) -> None:
        """Make a table or a data set readable under a name, for this connection alone.

        Raises `ToolFailure` for a column that DuckDB has no type for.
        """
        self._get_connection().register(name, duckdb_types.fit_input(f"input '{name}'", table))
        # Loading the class of such data sets loads pandas.
        if (stop := getattr(table, "stop_scans", None)) is not None:
            self._scan_stops.append(stop)

    @contextmanager
    def hold_stop(self, stop: Callable[[], None]) -> Iterator[None]:
        """Have a function called when the call is called off, until the block ends."""
        self._scan_stops.append(stop)
        try:
            yield
        finally:
            self._scan_stops.remove(stop)

    def unregister_table(self, name: str) -> None:
        """Forget a registered table."""
        self._get_connection().unregister(name)

    def fetch_rows(self, text: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows as they are; raises `ToolFailure`."""
        with _translate_errors():
            return self._get_connection().execute(text, values or None).fetchall()

    def begin_transaction(self) -> None:
        """Begin a transaction; `commit_transaction` ends it, and closing without that undoes it."""
        with _translate_errors():
            self._get_connection().execute(_COMMANDS["begin"])

    def commit_transaction(self) -> None:
        """Make what was written since `begin_transaction` last; raises `ToolFailure`."""
        with _translate_errors():
            self._get_connection().execute(_COMMANDS["commit"])

    def read_windows(
        self, text: str, values: list[Any], *, size: int
    ) -> tuple[tuple[str, ...], list[str], Iterator[list[dict[str, Any]]]]:
        """Return a query's columns, their types, and its rows some at a time.

        They are read beside what else is done.
        """
        with _translate_errors():
            # A second cursor keeps its place while this connection writes.
            relation: Any = self._get_connection().cursor().sql(text, params=values or None)
            if relation is None:
                return (), [], iter(())
            kinds = [str(kind) for kind in relation.types]
            reader = self._open_reader(relation, kinds, size)
            types = duckdb_types.list_types(reader.schema, kinds)
            return tuple(relation.columns), types, self._iterate_windows(reader, kinds)

    def _iterate_windows(self, reader: Any, kinds: list[str]) -> Iterator[list[dict[str, Any]]]:
        with _translate_errors():
            for batch in self._iterate_batches(reader):
                yield file_tables.build_rows(batch, kinds)

    def _open_reader(self, relation: Any, kinds: list[str], size: int) -> pa.RecordBatchReader:
        """Begin to read what a query found, at most `size` rows at a time.

        Raises `ToolFailure` where two of its columns have one name.
        """
        check_column_names(relation.columns, source="duckdb")
        reader = duckdb_types.project_readable(relation, kinds).to_arrow_reader(size)
        self._readers.add(reader)
        return reader

    def _iterate_batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        while True:
            self._get_connection()
            try:
                batch = next(reader, None)
            except (OSError, pa.ArrowException) as problem:
                self._get_connection()
                raise _restore_error(problem) from problem
            if batch is None:
                return
            yield batch

    def spool_query(self, text: str, values: list[Any]) -> SpooledRows:
        """Run a query and take all of its rows to disk; raises `ToolFailure`."""
        with _translate_errors():
            relation: Any = self._get_connection().sql(text, params=values or None)
            if relation is None:
                return SpooledRows((), [])
            kinds = [str(kind) for kind in relation.types]
            reader = self._open_reader(relation, kinds, file_tables.BATCH_ROWS)
            return SpooledRows.spool_batches(
                tuple(relation.columns), kinds, reader.schema, self._iterate_batches(reader)
            )

    def scan_query(self, text: str, values: list[Any], *, size: int) -> "QueryScan | None":
        """Begin a query whose rows come in batches; None for any other statement."""
        with _translate_errors(statement=0):
            parts = _parse_statements(self._get_connection(), text)
            if len(parts) != 1 or parts[0].type != duckdb.StatementType.SELECT:
                return None
            query: Any = self._get_connection().sql(parts[0].query, params=values or None)
            kinds = [str(kind) for kind in query.types]
            columns = list(query.columns)
            reader = self._open_reader(query, kinds, size)
            types = duckdb_types.list_types(reader.schema, kinds)
            return QueryScan(
                columns=columns,
                types=types,
                kinds=kinds,
                schema=reader.schema,
                batches=self._iterate_scan(reader),
            )

    def _iterate_scan(self, reader: Any) -> Iterator[pa.RecordBatch]:
        with _translate_errors(statement=0):
            yield from self._iterate_batches(reader)

    def run_statements(self, statements: list[tuple[Statement, list[Any]]]) -> dict[str, Any]:
        """Run statements in one transaction; raises `ToolFailure` that names the failing one."""
        connection = self._get_connection()
        parts_by_statement = [
            self._plan_statement(index, statement)
            for index, (statement, _) in enumerate(statements)
        ]
        is_alone = len(parts_by_statement) == 1 or any(
            part.type in _ALONE for item in parts_by_statement for part in item
        )
        if is_alone:
            return self._run_all(statements, parts_by_statement)
        connection.execute(_COMMANDS["begin"])
        try:
            raw = self._run_all(statements, parts_by_statement)
        except BaseException:
            _roll_back(connection)
            raise
        connection.execute(_COMMANDS["commit"])
        return raw

    def _plan_statement(self, index: int, statement: Statement) -> list[duckdb.Statement]:
        try:
            return _parse_statements(self._get_connection(), statement.text)
        except duckdb.Error as problem:
            raise ToolFailure(classify_duckdb_error(problem, index)) from problem

    def _run_all(
        self,
        statements: list[tuple[Statement, list[Any]]],
        parts_by_statement: list[list[duckdb.Statement]],
    ) -> dict[str, Any]:
        room = self._limits.result_bytes_max
        commands: list[dict[str, Any]] = []
        for index, ((_, values), parts) in enumerate(
            zip(statements, parts_by_statement, strict=True)
        ):
            try:
                for part in parts:
                    command, used = self._run_one(part, values, room)
            except duckdb.InterruptException as problem:
                raise SessionInterrupted from problem
            except duckdb.Error as problem:
                raise ToolFailure(classify_duckdb_error(problem, index)) from problem
            room -= used
            commands.append(command)
        return show_commands(commands)

    def _run_one(
        self, part: duckdb.Statement, values: list[Any], room: int
    ) -> tuple[dict[str, Any], int]:
        connection = self._get_connection()
        expected = part.expected_result_type
        changes = duckdb.ExpectedResultType.CHANGED_ROWS in expected
        if changes and not _RETURNING.search(part.query):
            count_row = connection.execute(part, values or None).fetchone()
            count = int(count_row[0]) if count_row and isinstance(count_row[0], int) else 0
            return show_command(part.type.name, count=count), 0
        # The stubs deny that a statement without a result gives None.
        relation: Any = connection.sql(part.query, params=values or None)
        if relation is None:
            return show_command(part.type.name, count=0), 0
        kinds = [str(kind) for kind in relation.types]
        rows: list[dict[str, Any]] = []
        used_bytes = 0
        reader = self._open_reader(relation, kinds, file_tables.BATCH_ROWS)
        for batch in self._iterate_batches(reader):
            used_bytes += batch.nbytes
            if used_bytes > room:
                raise ToolFailure(_build_too_large_error(self._limits.result_bytes_max))
            rows.extend(file_tables.build_rows(batch, kinds))
        result_fields = {
            "rows": rows,
            "columns": list(relation.columns),
            "types": duckdb_types.list_types(reader.schema, kinds),
        }
        return show_command(part.type.name, count=len(rows), **result_fields), used_bytes

    def _get_connection(self) -> duckdb.DuckDBPyConnection:
        if self._is_interrupted.is_set() or self._connection is None:
            raise SessionInterrupted
        return self._connection

    def interrupt(self) -> None:
        """End what runs, from another thread; nothing is begun after it."""
        self._is_interrupted.set()
        for stop in tuple(self._scan_stops):
            stop()
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Close the connection and, with the last one, its database."""
        connection, self._connection = self._connection, None
        # An open reader keeps the database open: the next one to open the file would wait for ever
        # (duckdb issue 25965).
        for reader in self._readers:
            reader.close()
        if connection is not None:
            connection.close()


def leave_shared_directory() -> None:
    """Give this thread a working directory of its own, which threads that it starts share.

    Where the system cannot do so, relative names in statements lead nowhere that is allowed.
    """
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS) != 0:
        raise OSError(ctypes.get_errno(), "a thread cannot have a working directory of its own")


@contextmanager
def _translate_errors(statement: int | None = None) -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as problem:
        raise SessionInterrupted from problem
    except duckdb.Error as problem:
        raise ToolFailure(classify_duckdb_error(problem, statement)) from problem


def _restore_error(problem: Exception) -> duckdb.Error:
    """Give an error of a query that runs its class, which it loses on its way through Arrow."""
    text = str(problem)
    match = _ERROR_HEAD.match(text)
    words = match[1].split() if match else []
    name = "".join(word[:1].upper() + word[1:] for word in words) + "Exception"
    kind = getattr(duckdb, name, duckdb.Error)
    return kind(text)


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.execute(_COMMANDS["rollback"])
    except duckdb.TransactionException:
        # A failed commit has ended the transaction already.
        return


def _parse_statements(connection: duckdb.DuckDBPyConnection, text: str) -> list[duckdb.Statement]:
    # Of a text that is none in UTF-8 it would say that its function takes no such argument.
    text.encode()
    return connection.extract_statements(text)


def _build_too_large_error(bytes_max: int) -> ErrorObject:
    return build_error(
        "payload_too_large",
        f"the rows exceed {bytes_max} bytes: aggregate in the query, select fewer columns, or "
        "keep them in a table of the database",
        source="duckdb",
    )


def classify_duckdb_error(problem: Exception, statement: int | None) -> ErrorObject:
    """Say what DuckDB refused."""
    return build_error(
        "db_error",
        format_problem(problem),
        code="DUCKDB",
        exception_type=type(problem).__name__,
        source="duckdb",
        details=None if statement is None else {"statement": statement},
    )
