"""Rows into a PostgreSQL table or statement, in one transaction."""

from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_playbook.sql_text import sql_ident
from noetl_worker.domain import sql_text
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools import postgres_columns, statements, transfer_rows
from noetl_worker.tools.postgres_pool import Session
from noetl_worker.tools.postgres_types import bind
from noetl_worker.tools.transfer_rows import Aim

_QUERIES = statements.load("transfer_postgres")
_ARRAY, _BYTES = "A", "bytea"


class Column(Struct, frozen=True, kw_only=True):
    """A column of the target."""

    name: str
    type: str
    category: str


class PostgresTable:
    """A table whose name and columns are those of the catalog."""

    def __init__(self, session: Session, *, parts: list[str], aim: Aim) -> None:
        self._session = session
        self._parts = parts
        self._aim = aim
        self._columns: dict[str, Column] = {}
        self._is_plain = False

    async def open(self) -> None:
        """Look the table up, and empty it where it is to be replaced; raises `ToolFailure`."""
        oid = await self._find()
        found = await self._session.connection.fetch(_QUERIES["list_columns"], oid)
        self._columns = {
            row["attname"]: Column(name=row["attname"], type=row["type"], category=row["category"])
            for row in found
        }
        self._is_plain = await self._session.connection.fetchval(_QUERIES["is_plain"], oid)
        if self._aim.mode == "replace":
            text = _QUERIES["empty"].format(table=sql_ident(self._parts))
            await self._session.connection.execute(text)

    async def _find(self) -> int:
        connection = self._session.connection
        for parts in (self._parts, [part.lower() for part in self._parts]):
            oid = await connection.fetchval(_QUERIES["find_table"], sql_ident(parts))
            if oid is not None:
                self._parts = parts
                return int(oid)
        tables = await connection.fetch(_QUERIES["list_tables"])
        name = ".".join(self._parts)
        raise transfer_rows.unknown("table", name, [row["relname"] for row in tables])

    def can_copy(self, schema: Any) -> bool:
        """Tell whether columns of an Arrow schema are appended as their rows would be."""
        known = {one.name: (one.type, one.category) for one in self._columns.values()}
        return self._is_plain and bool(schema.names) and postgres_columns.fits(schema, known)

    async def copy(self, batches: AsyncIterator[Any]) -> int:
        """Append record batches and return how many rows they had."""
        return await postgres_columns.write_columns(self._session, self._parts, batches)

    async def write(self, rows: list[dict[str, Any]]) -> int:
        """Write a chunk and return how many rows it inserted or changed."""
        names = transfer_rows.columns_of(rows)
        transfer_rows.known_columns(names, self._columns, ".".join(self._parts))
        columns = [self._columns[name] for name in names]
        keys: list[str] = []
        if self._aim.mode == "upsert":
            keys = transfer_rows.keys_of(self._aim, names)
            rows = transfer_rows.latest_by_key(rows, keys)
        arrays = [[_text(row.get(one.name), one) for row in rows] for one in columns]
        text = self._statement(columns, keys)
        plan = await self._session.plan(text)
        await plan.prepared.fetch(*arrays)
        return int((plan.prepared.get_statusmsg() or "0").rpartition(" ")[2])

    def _statement(self, columns: list[Column], keys: list[str]) -> str:
        others = [one.name for one in columns if one.name not in keys]
        wanted = "append" if not keys else "upsert" if others else "upsert_keys"
        return _QUERIES[wanted].format(
            table=sql_ident(self._parts),
            columns=transfer_rows.listed(one.name for one in columns),
            values=", ".join(_cast(one) for one in columns),
            arrays=", ".join(f"${index}::text[]" for index in range(1, len(columns) + 1)),
            keys=transfer_rows.listed(keys),
            changes=", ".join(f"{sql_ident(n)} = excluded.{sql_ident(n)}" for n in others),
        )


class PostgresStatement:
    """A statement that runs once for every row, its named parameters taken from the row."""

    def __init__(self, session: Session, *, query: Any) -> None:
        self._session = session
        self._query = query

    async def open(self) -> None:
        """Nothing is to be looked up."""

    async def write(self, rows: list[dict[str, Any]]) -> int:
        """Run the statement for every row of a chunk."""
        found = statement_of(self._query)
        plan = await self._session.plan(found.text)
        values = [
            bind(sql_text.arguments(found, row), plan.binders, plan.parameter_types) for row in rows
        ]
        await plan.prepared.executemany(values)
        return len(rows)


def statement_of(query: Any) -> sql_text.Statement:
    """Read the one statement of a target; raises `ToolFailure`."""
    found = sql_text.statements(query, "mapping") if isinstance(query, str) else ()
    if len(found) != 1:
        text = "field 'target.query' must hold one statement with :named parameters"
        raise ToolFailure(failure("validation", text, source="transfer"))
    return found[0]


def _cast(column: Column) -> str:
    name = sql_ident(column.name)
    if column.type == _BYTES:
        return f"decode(source.{name}, 'base64')"
    # The type is the catalog's own spelling of it, which is quoted where it must be.
    return f"source.{name}::{column.type}"


def _text(value: Any, column: Column) -> str | None:
    if column.category == _ARRAY and isinstance(value, list):
        return _array_literal(value)
    return transfer_rows.text_of(value)


def _array_literal(values: list[Any]) -> str:
    """Write a list as PostgreSQL's text form of an array."""
    return "{" + ",".join(_element(value) for value in values) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array_literal(value)
    text = codec.text(value) if isinstance(value, dict) else str(transfer_rows.text_of(value))
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
