"""Rows into a DuckDB table or statement, and out of a query, in one transaction."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from noetl_playbook.sql_text import sql_ident
from noetl_storage import json_columns, table_schema
from noetl_storage.table_schema import Kinds
from noetl_worker import statements
from noetl_worker.domain import sql_text, texts
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools import transfer_rows
from noetl_worker.tools.duckdb_session import DuckSession
from noetl_worker.tools.transfer_postgres import statement_of
from noetl_worker.tools.transfer_rows import Aim, Window

_QUERIES = statements.load(__package__, "transfer_duckdb")
_CHUNK = "noetl_chunk"
_DAYS = ("DATE", "TIMESTAMP")
_ERA = " BC"
_NESTED = ("STRUCT", "MAP", "UNION")


class DuckTable:
    """A table whose name and columns are those of the catalog; its methods block."""

    def __init__(self, session: DuckSession, *, parts: list[str], aim: Aim) -> None:
        self._session = session
        self._parts = parts if len(parts) > 1 else ["main", *parts]
        self._aim = aim
        self._type_by_column: dict[str, str] = {}

    def open(self) -> None:
        """Look the table up, and empty it where it is to be replaced; raises `ToolFailure`."""
        found = self._session.fetch(_QUERIES["list_columns"], self._parts)
        if not found:
            tables = [row[0] for row in self._session.fetch(_QUERIES["list_tables"], [])]
            raise transfer_rows.unknown("table", self._parts[-1], tables)
        self._type_by_column = {str(name): str(kind) for name, kind in found}
        if self._aim.mode == "replace":
            self._session.fetch(_QUERIES["empty"].format(table=sql_ident(self._parts)), [])

    def write(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Write a chunk and return how many rows it inserted or changed."""
        names = transfer_rows.columns_of(rows)
        transfer_rows.known_columns(names, self._type_by_column, ".".join(self._parts))
        keys: list[str] = []
        if self._aim.mode == "upsert":
            keys = transfer_rows.keys_of(self._aim, names)
            rows = transfer_rows.latest_by_key(rows, keys)
        written = {
            name: self._column(name, [row.get(name) for row in rows], kinds.get(name))
            for name in names
        }
        self._session.show(_CHUNK, pa.table(written))
        self._session.fetch(self._statement(names, keys), [])
        return len(rows)

    def _column(self, name: str, values: list[Any], kind: pa.DataType | None) -> pa.Array:
        """Write values as the texts that DuckDB casts, and what it reads from no text as such."""
        target = self._type_by_column[name]
        if kind is not None and pa.types.is_interval(kind) and target == "INTERVAL":
            return json_columns.column_of(name, values, kind)
        transfer_rows.check_nanoseconds(name, values, kind, target)
        found = [texts.text_of(value) for value in values]
        if target.startswith(_DAYS):
            found = [_with_era(text) for text in found]
        return pa.array(found, pa.string())

    def _statement(self, names: list[str], keys: list[str]) -> str:
        others = [name for name in names if name not in keys]
        wanted = "append" if not keys else "upsert" if others else "upsert_keys"
        return _QUERIES[wanted].format(
            table=sql_ident(self._parts),
            columns=transfer_rows.listed(names),
            values=", ".join(self._cast(name) for name in names),
            chunk=sql_ident(_CHUNK),
            keys=transfer_rows.listed(keys),
            changes=", ".join(f"{sql_ident(n)} = excluded.{sql_ident(n)}" for n in others),
        )

    def _cast(self, name: str) -> str:
        kind, column = self._type_by_column[name], sql_ident(name)
        if kind == "BLOB":
            return f"from_base64({column})"
        if kind.endswith("]") or kind.startswith(_NESTED):
            return f"cast(cast({column} as json) as {kind})"
        return f"cast({column} as {kind})"


def _with_era(text: str | None) -> str | None:
    """Write a date before the year 1 as DuckDB does."""
    if text is None or not text.endswith(_ERA):
        return text
    day, _, clock = text.removesuffix(_ERA).partition(" ")
    return f"{day} (BC) {clock}".rstrip()


class DuckStatement:
    """A statement that runs once for every row; its methods block."""

    def __init__(self, session: DuckSession, *, query: Any) -> None:
        self._session = session
        self._query = query

    def open(self) -> None:
        """Nothing is to be looked up."""

    def write(self, rows: list[dict[str, Any]], _: Kinds) -> int:
        """Run the statement for every row of a chunk."""
        found = statement_of(self._query, "duckdb")
        for row in rows:
            self._session.fetch(found.text, sql_text.arguments(found, row))
        return len(rows)


def windows(session: DuckSession, query: Any, params: Any, *, size: int) -> Iterator[Window]:
    """Give a query's rows some at a time; each step blocks. Raises `ToolFailure`."""
    found = sql_text.statements(str(query), sql_text.style_of(params), "duckdb")
    if not found:
        raise ToolFailure(failure("validation", "source.query holds no statement"))
    for statement in found[:-1]:
        session.fetch(statement.text, sql_text.arguments(statement, params))
    last = found[-1]
    values = sql_text.arguments(last, params)
    columns, types, batches = session.read(last.text, values, size=size)
    kinds = table_schema.kinds_of(columns, types)
    for rows in batches:
        yield Window(rows=rows, columns=columns, kinds=kinds)
