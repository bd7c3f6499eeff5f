"""One hardened DuckDB connection: opened, locked down, used in a thread, closed."""

import ctypes
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import duckdb
import pyarrow as pa
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_playbook.sql_text import sql_literal
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sql_text import Statement
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.tools import duckdb_attachment, duckdb_types, tables
from noetl_worker.tools.duckdb_results import show_command, show_commands
from noetl_worker.tools.duckdb_rows import Rows

_RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)
_TOLD = re.compile(r"([A-Za-z ]+) Error: ")
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
_LOCKS = ("TimeZone='UTC'", "enable_external_access=false", "lock_configuration=true")
_COMMANDS = {
    "begin": "BEGIN TRANSACTION",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
}


class Limits(Struct, frozen=True, kw_only=True):
    """What one database may use, and how many there may be at once."""

    memory_bytes: int = 512 * 1024**2
    threads: int = 2
    databases_max: int = 4
    result_bytes_max: int = 256 * 1024**2


class Places(Struct, frozen=True, kw_only=True):
    """Where a session finds its database, None in memory, and the files that statements name."""

    database: Path | None = None
    folder: Path | None = None


class Scan(Struct, frozen=True, kw_only=True):
    """A query that runs: its columns, their types, DuckDB's names of these, and its batches."""

    columns: list[str]
    types: list[str]
    kinds: list[str]
    batches: Iterator[Any]

    @property
    def is_plain(self) -> bool:
        """Tell whether its columns read back from a stored table as they read now."""
        distinct = len(set(self.columns)) == len(self.columns)
        return distinct and duckdb_types.are_plain(self.kinds)


class Interrupted(Exception):  # noqa: N818 - somebody wanted it to stop, which is no error
    """The call was called off."""


class DuckSession:
    """A connection of one attempt; everything but `interrupt` runs in one thread."""

    def __init__(self, *, limits: Limits) -> None:
        self._limits = limits
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._is_interrupted = threading.Event()
        self._readers: WeakSet[pa.RecordBatchReader] = WeakSet()

    def open(self, places: Places, attached: dict[str, Credential]) -> None:
        """Connect and lock the configuration; raises `duckdb.Error` or `ToolFailure`.

        Statements reach the files below the folder of `places`, and no others.
        """
        place = ":memory:" if places.database is None else str(places.database)
        if places.folder is not None and sys.platform == "linux":
            os.chdir(places.folder)
        with _refusing():
            connection = duckdb.connect(place, config=self._config(is_open=bool(attached)))
        self._connection = connection
        for alias, credential in attached.items():
            duckdb_attachment.attach(connection, alias, credential)
        if places.folder is not None:
            folder = sql_literal(f"{places.folder}/")
            connection.execute(f"SET GLOBAL allowed_directories=[{folder}]")
        # Global, so that further cursors have them too.
        for setting in _LOCKS:
            connection.execute(f"SET GLOBAL {setting}")

    def _config(self, *, is_open: bool) -> dict[str, str | bool | int | float | list[str]]:
        return {
            # Loading an extension reads its file, so attaching needs access until it is done.
            "enable_external_access": "true",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "true" if is_open else "false",
            "allow_community_extensions": "false",
            "allow_unsigned_extensions": "false",
            "python_enable_replacements": "false",
            # A folder for spilling would stay readable and writable for every statement.
            "temp_directory": "",
            "memory_limit": f"{self._limits.memory_bytes}B",
            "threads": str(self._limits.threads),
        }

    def show(self, name: str, table: Any) -> None:
        """Make a table or a data set readable under a name, for this connection alone.

        Raises `ToolFailure` for a column that DuckDB has no type for.
        """
        self._checked().register(name, duckdb_types.fitted(name, table))

    def fetch(self, text: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows as they are; raises `ToolFailure`."""
        with _refusing():
            return self._checked().execute(text, values or None).fetchall()

    def begin(self) -> None:
        """Begin a transaction; `commit` ends it, and closing without that undoes it."""
        with _refusing():
            self._checked().execute(_COMMANDS["begin"])

    def commit(self) -> None:
        """Make what was written since `begin` last; raises `ToolFailure`."""
        with _refusing():
            self._checked().execute(_COMMANDS["commit"])

    def read(
        self, text: str, values: list[Any], *, size: int
    ) -> tuple[tuple[str, ...], list[str], Iterator[list[dict[str, Any]]]]:
        """Return a query's columns, their types, and its rows some at a time.

        They are read beside what else is done.
        """
        with _refusing():
            # A second cursor keeps its place while this connection writes.
            found: Any = self._checked().cursor().sql(text, params=values or None)
            if found is None:
                return (), [], iter(())
            kinds = [str(kind) for kind in found.types]
            reader = self._open_reader(found, kinds, size)
            types = duckdb_types.types_of(reader.schema, kinds)
            return tuple(found.columns), types, self._read(reader, kinds)

    def _read(self, reader: Any, kinds: list[str]) -> Iterator[list[dict[str, Any]]]:
        with _refusing():
            for batch in self._batches(reader):
                yield tables.rows_of(batch, kinds)

    def _open_reader(self, found: Any, kinds: list[str], size: int) -> pa.RecordBatchReader:
        """Begin to read what a query found, at most `size` rows at a time."""
        reader = duckdb_types.readable(found, kinds).to_arrow_reader(size)
        self._readers.add(reader)
        return reader

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        while True:
            self._checked()
            try:
                batch = next(reader, None)
            except (OSError, pa.ArrowException) as problem:
                self._checked()
                raise _unwrapped(problem) from problem
            if batch is None:
                return
            yield batch

    def taken(self, text: str, values: list[Any]) -> Rows:
        """Run a query and take all of its rows to disk; raises `ToolFailure`."""
        with _refusing():
            found: Any = self._checked().sql(text, params=values or None)
            if found is None:
                return Rows((), [])
            kinds = [str(kind) for kind in found.types]
            reader = self._open_reader(found, kinds, tables.BATCH_ROWS)
            return Rows.of(tuple(found.columns), kinds, reader.schema, self._batches(reader))

    def scan(self, text: str, values: list[Any], *, size: int) -> "Scan | None":
        """Begin a query whose rows come in batches; None for any other statement."""
        with _refusing(statement=0):
            parts = _parsed(self._checked(), text)
            if len(parts) != 1 or parts[0].type != duckdb.StatementType.SELECT:
                return None
            found: Any = self._checked().sql(parts[0].query, params=values or None)
            kinds = [str(kind) for kind in found.types]
            columns = list(found.columns)
            reader = self._open_reader(found, kinds, size)
            types = duckdb_types.types_of(reader.schema, kinds)
            return Scan(columns=columns, types=types, kinds=kinds, batches=self._scanned(reader))

    def _scanned(self, reader: Any) -> Iterator[pa.RecordBatch]:
        with _refusing(statement=0):
            yield from self._batches(reader)

    def run(self, statements: list[tuple[Statement, list[Any]]]) -> dict[str, Any]:
        """Run statements in one transaction; raises `ToolFailure` that names the failing one."""
        connection = self._checked()
        planned = [self._planned(index, one) for index, (one, _) in enumerate(statements)]
        alone = len(planned) == 1 or any(part.type in _ALONE for one in planned for part in one)
        if alone:
            return self._run_all(statements, planned)
        connection.execute(_COMMANDS["begin"])
        try:
            raw = self._run_all(statements, planned)
        except BaseException:
            _roll_back(connection)
            raise
        connection.execute(_COMMANDS["commit"])
        return raw

    def _planned(self, index: int, one: Statement) -> list[duckdb.Statement]:
        try:
            return _parsed(self._checked(), one.text)
        except duckdb.Error as problem:
            raise ToolFailure(refused(problem, index)) from problem

    def _run_all(
        self, statements: list[tuple[Statement, list[Any]]], planned: list[list[duckdb.Statement]]
    ) -> dict[str, Any]:
        room = self._limits.result_bytes_max
        commands: list[dict[str, Any]] = []
        for index, ((_, values), parts) in enumerate(zip(statements, planned, strict=True)):
            try:
                for part in parts:
                    command, used = self._run_one(part, values, room)
            except duckdb.InterruptException as problem:
                raise Interrupted from problem
            except duckdb.Error as problem:
                raise ToolFailure(refused(problem, index)) from problem
            room -= used
            commands.append(command)
        return show_commands(commands)

    def _run_one(
        self, part: duckdb.Statement, values: list[Any], room: int
    ) -> tuple[dict[str, Any], int]:
        connection = self._checked()
        expected = part.expected_result_type
        changes = duckdb.ExpectedResultType.CHANGED_ROWS in expected
        if changes and not _RETURNING.search(part.query):
            counted = connection.execute(part, values or None).fetchone()
            count = int(counted[0]) if counted and isinstance(counted[0], int) else 0
            return show_command(part.type.name, count=count), 0
        # The stubs deny that a statement without a result gives None.
        found: Any = connection.sql(part.query, params=values or None)
        if found is None:
            return show_command(part.type.name, count=0), 0
        kinds = [str(kind) for kind in found.types]
        rows: list[dict[str, Any]] = []
        used = 0
        reader = self._open_reader(found, kinds, tables.BATCH_ROWS)
        for batch in self._batches(reader):
            used += batch.nbytes
            if used > room:
                raise ToolFailure(_too_large(self._limits.result_bytes_max))
            rows.extend(tables.rows_of(batch, kinds))
        shown = {
            "rows": rows,
            "columns": list(found.columns),
            "types": duckdb_types.types_of(reader.schema, kinds),
        }
        return show_command(part.type.name, count=len(rows), **shown), used

    def _checked(self) -> duckdb.DuckDBPyConnection:
        if self._is_interrupted.is_set() or self._connection is None:
            raise Interrupted
        return self._connection

    def interrupt(self) -> None:
        """End what runs, from another thread; nothing is begun after it."""
        self._is_interrupted.set()
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
def _refusing(statement: int | None = None) -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as problem:
        raise Interrupted from problem
    except duckdb.Error as problem:
        raise ToolFailure(refused(problem, statement)) from problem


def _unwrapped(problem: Exception) -> duckdb.Error:
    """Give an error of a query that runs its class, which it loses on its way through Arrow."""
    text = str(problem)
    told = _TOLD.match(text)
    words = told[1].split() if told else []
    name = "".join(word[:1].upper() + word[1:] for word in words) + "Exception"
    kind = getattr(duckdb, name, duckdb.Error)
    return kind(text)


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.execute(_COMMANDS["rollback"])
    except duckdb.TransactionException:
        # A failed commit has ended the transaction already.
        return


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> list[duckdb.Statement]:
    # Of a text that is none in UTF-8 it would say that its function takes no such argument.
    text.encode()
    return connection.extract_statements(text)


def _too_large(bytes_max: int) -> ErrorObject:
    return failure(
        "payload_too_large",
        f"the rows exceed {bytes_max} bytes: aggregate in the query, select fewer columns, or "
        "keep them in a table of the database",
        source="duckdb",
    )


def refused(problem: Exception, statement: int | None) -> ErrorObject:
    """Say what DuckDB refused."""
    return failure(
        "db_error",
        str(problem).strip(),
        code="DUCKDB",
        exception_type=type(problem).__name__,
        source="duckdb",
        details=None if statement is None else {"statement": statement},
    )
