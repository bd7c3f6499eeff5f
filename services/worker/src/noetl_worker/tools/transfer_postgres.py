"""Rows into a PostgreSQL table or statement, in one transaction."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from noetl_playbook.sql_text import sql_ident
from noetl_storage.table_schema import Kinds
from noetl_worker import statements
from noetl_worker.domain import sql_text, texts
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sql_tokens import Dialect
from noetl_worker.tools import postgres_columns, transfer_rows
from noetl_worker.tools.postgres_intervals import format_duration, write_interval
from noetl_worker.tools.postgres_session import Plan, Session
from noetl_worker.tools.postgres_types import bind
from noetl_worker.tools.transfer_rows import Aim

_QUERIES = statements.load(__package__, "transfer_postgres")
_ARRAY, _BYTES, _INTERVAL = "A", "bytea", "interval"
_JSON = frozenset({"json", "jsonb"})


class Column(Struct, frozen=True, kw_only=True):
    """A column of the target."""

    name: str
    type: str
    category: str

    @property
    def is_array(self) -> bool:
        """Tell whether a list becomes an array, and not JSON."""
        return self.category == _ARRAY


class PostgresTable:
    """A table whose name and columns are those of the catalog."""

    def __init__(self, session: Session, *, parts: list[str], aim: Aim) -> None:
        self._session = session
        self._parts = parts
        self._aim = aim
        self._columns: dict[str, Column] = {}
        self._is_plain = False
        self._plan_by_text: dict[str, Plan] = {}

    async def open(self) -> None:
        """Look the table up, and empty it where it is to be replaced; raises `ToolFailure`."""
        oid, self._parts = await find_table(self._session, self._parts)
        # Describing a statement locks its table: from here on the columns keep their types.
        await self._session.describe(_QUERIES["lock"].format(table=sql_ident(self._parts)))
        self._columns = await columns_of_table(self._session, oid)
        self._is_plain = await self._session.connection.fetchval(_QUERIES["is_plain"], oid)
        if self._aim.mode == "replace":
            await empty(self._session, sql_ident(self._parts))

    def can_copy(self, schema: Any) -> bool:
        """Tell whether columns of an Arrow schema are appended as their rows would be."""
        known = {one.name: (one.type, one.category) for one in self._columns.values()}
        return self._is_plain and bool(schema.names) and postgres_columns.fits(schema, known)

    def type_of(self, name: str) -> str | None:
        """Return the type of a column as the catalog spells it, None for one that is not there."""
        known = self._columns.get(name)
        return None if known is None else known.type

    def json_sources(self, mapping: Mapping[str, str] | None) -> list[str]:
        """Name the source columns that become JSON as they are."""
        kept = [one.name for one in self._columns.values() if one.type in _JSON]
        if mapping is None:
            return kept
        # What else is taken out of the same column needs it as a value.
        tops = [path.split(".")[0].split("[")[0] for path in mapping.values()]
        return [
            mapping[name] for name in kept if name in mapping and tops.count(mapping[name]) == 1
        ]

    async def copy(self, batches: AsyncIterator[Any]) -> int:
        """Append record batches and return how many rows they had."""
        return await postgres_columns.write_columns(self._session, self._parts, batches)

    async def write(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Write a chunk and return how many rows it inserted or changed."""
        names = transfer_rows.columns_of(rows)
        transfer_rows.known_columns(names, self._columns, ".".join(self._parts))
        columns = [self._columns[name] for name in names]
        keys: list[str] = []
        if self._aim.mode == "upsert":
            keys = transfer_rows.keys_of(self._aim, names)
            rows = transfer_rows.latest_by_key(rows, keys)
        for one in columns:
            kind = kinds.get(one.name)
            if getattr(kind, "unit", None) == "ns":
                values = [row.get(one.name) for row in rows]
                transfer_rows.check_nanoseconds(one.name, values, kind, one.type)
        arrays = [[_text(row.get(one.name), one) for row in rows] for one in columns]
        text = self._statement(columns, keys)
        plan = self._plan_by_text.get(text)
        if plan is None:
            plan = self._plan_by_text[text] = await self._session.describe(text)
        await plan.prepared.fetch(*arrays)
        return int((plan.prepared.get_statusmsg() or "0").rpartition(" ")[2])

    def _statement(self, columns: list[Column], keys: list[str]) -> str:
        others = [one.name for one in columns if one.name not in keys]
        wanted = "append" if not keys else "upsert" if others else "upsert_keys"
        return _QUERIES[wanted].format(
            table=sql_ident(self._parts),
            columns=transfer_rows.listed(one.name for one in columns),
            values=", ".join(shown_as(one) for one in columns),
            arrays=", ".join(f"${index}::text[]" for index in range(1, len(columns) + 1)),
            keys=transfer_rows.listed(keys),
            changes=", ".join(f"{sql_ident(n)} = excluded.{sql_ident(n)}" for n in others),
        )


async def find_table(session: Session, parts: list[str]) -> tuple[int, list[str]]:
    """Return a table's identity and its name as the catalog has it; raises `ToolFailure`."""
    connection = session.connection
    for tried in (parts, [part.lower() for part in parts]):
        oid = await connection.fetchval(_QUERIES["find_table"], sql_ident(tried))
        if oid is not None:
            return int(oid), tried
    tables = await connection.fetch(_QUERIES["list_tables"])
    raise transfer_rows.unknown("table", ".".join(parts), [row["relname"] for row in tables])


async def columns_of_table(session: Session, oid: int) -> dict[str, Column]:
    """Return the columns of a table by name."""
    found = await session.connection.fetch(_QUERIES["list_columns"], oid)
    return {
        row["attname"]: Column(name=row["attname"], type=row["type"], category=row["category"])
        for row in found
    }


async def empty(session: Session, table: str) -> None:
    """Remove every row of a table, named as SQL names it."""
    await session.connection.execute(_QUERIES["empty"].format(table=table))


class PostgresStatement:
    """A statement that runs once for every row, its named parameters taken from the row."""

    def __init__(self, session: Session, *, query: Any) -> None:
        self._session = session
        self._query = query
        self._plan: Plan | None = None

    async def open(self) -> None:
        """Nothing is to be looked up."""

    async def write(self, rows: list[dict[str, Any]], _: Kinds) -> int:
        """Run the statement for every row of a chunk."""
        found = statement_of(self._query)
        if self._plan is None:
            self._plan = await self._session.describe(found.text)
        plan = self._plan
        values = [
            bind(sql_text.arguments(found, row), plan.binders, plan.parameter_types) for row in rows
        ]
        await plan.prepared.executemany(values)
        return len(rows)


def statement_of(query: Any, dialect: Dialect = "postgres") -> sql_text.Statement:
    """Read the one statement of a target; raises `ToolFailure`."""
    found = sql_text.statements(query, "mapping", dialect) if isinstance(query, str) else ()
    if len(found) != 1:
        text = "field 'target.query' must hold one statement with :named parameters"
        raise ToolFailure(failure("validation", text, source="transfer"))
    return found[0]


def shown_as(column: Column) -> str:
    """Write the expression that makes a text of `source` a column's value."""
    name = sql_ident(column.name)
    if column.type == _BYTES:
        return f"decode(source.{name}, 'base64')"
    # The type is the catalog's own spelling of it, which is quoted where it must be.
    return f"source.{name}::{column.type}"


def _text(value: Any, column: Column) -> str | None:
    if column.is_array and isinstance(value, list):
        return texts.array_literal(value)
    if value is not None and column.type.startswith(_INTERVAL):
        # PostgreSQL reads no seconds as 1e-06.
        with suppress(ValueError):
            return format_duration(write_interval(value))
    return texts.text_of(value)
