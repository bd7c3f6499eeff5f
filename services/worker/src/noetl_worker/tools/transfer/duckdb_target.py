"""DuckDB as the source or target of a transfer: rows in and out in one transaction."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from noetl_playbook.templates.output_forms import sql_ident
from noetl_storage.arrow import json_columns, table_schema
from noetl_storage.arrow.table_schema import Kinds
from noetl_worker.domain import text_values
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.sql import queries, sql_statements
from noetl_worker.tools.duckdb.duckdb_session import DuckdbSession
from noetl_worker.tools.tables import transfer_rows
from noetl_worker.tools.tables.transfer_rows import RowWindow, TransferAim
from noetl_worker.tools.transfer.postgres_target import parse_statement

_QUERIES = queries.load_queries(__package__, "transfer_duckdb")
_CHUNK = "noetl_chunk"
_DAYS = ("DATE", "TIMESTAMP")
_ERA = " BC"
_NESTED = ("STRUCT", "MAP", "UNION")


class DuckdbTable:
    """A table whose name and columns are those of the catalog; its methods block."""

    def __init__(self, session: DuckdbSession, *, parts: list[str], aim: TransferAim) -> None:
        self._session = session
        self._parts = parts if len(parts) > 1 else ["main", *parts]
        self._aim = aim
        self._type_by_column: dict[str, str] = {}

    def open_target(self) -> None:
        """Look the table up, and empty it where it is to be replaced; raises `ToolFailure`."""
        rows = self._session.fetch_rows(_QUERIES["list_columns"], self._parts)
        if not rows:
            tables = [row[0] for row in self._session.fetch_rows(_QUERIES["list_tables"], [])]
            raise transfer_rows.build_unknown_failure("table", self._parts[-1], tables)
        self._type_by_column = {str(name): str(kind) for name, kind in rows}
        if self._aim.mode == "replace":
            self._session.fetch_rows(_QUERIES["empty"].format(table=sql_ident(self._parts)), [])

    def write_chunk(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Write a chunk and return how many rows it inserted or changed."""
        names = transfer_rows.list_columns(rows)
        transfer_rows.check_columns(names, self._type_by_column, ".".join(self._parts))
        keys: list[str] = []
        if self._aim.mode == "upsert":
            keys = transfer_rows.list_keys(self._aim, names)
            rows = transfer_rows.keep_latest_by_key(rows, keys)
        column_by_name = {
            name: self._build_column(name, [row.get(name) for row in rows], kinds.get(name))
            for name in names
        }
        self._session.register_table(_CHUNK, pa.table(column_by_name))
        self._session.fetch_rows(self._build_statement(names, keys), [])
        return len(rows)

    def _build_column(self, name: str, values: list[Any], kind: pa.DataType | None) -> pa.Array:
        """Write values as the texts that DuckDB casts, and what it reads from no text as such."""
        target = self._type_by_column[name]
        if kind is not None and pa.types.is_interval(kind) and target == "INTERVAL":
            return json_columns.build_column(name, values, kind)
        transfer_rows.check_nanoseconds(name, values, kind, target)
        texts = [text_values.format_optional_text(value) for value in values]
        if target.startswith(_DAYS):
            texts = [_format_era(text) for text in texts]
        return pa.array(texts, pa.string())

    def _build_statement(self, names: list[str], keys: list[str]) -> str:
        other_names = [name for name in names if name not in keys]
        query_name = "append" if not keys else "upsert" if other_names else "upsert_keys"
        return _QUERIES[query_name].format(
            table=sql_ident(self._parts),
            columns=transfer_rows.quote_names(names),
            values=", ".join(self._build_cast(name) for name in names),
            chunk=sql_ident(_CHUNK),
            keys=transfer_rows.quote_names(keys),
            changes=", ".join(f"{sql_ident(n)} = excluded.{sql_ident(n)}" for n in other_names),
        )

    def _build_cast(self, name: str) -> str:
        kind, column = self._type_by_column[name], sql_ident(name)
        if kind == "BLOB":
            return f"from_base64({column})"
        if kind.endswith("]") or kind.startswith(_NESTED):
            return f"cast(cast({column} as json) as {kind})"
        return f"cast({column} as {kind})"


def _format_era(text: str | None) -> str | None:
    """Write a date before the year 1 as DuckDB does."""
    if text is None or not text.endswith(_ERA):
        return text
    day, _, clock = text.removesuffix(_ERA).partition(" ")
    return f"{day} (BC) {clock}".rstrip()


class DuckdbStatement:
    """A statement that runs once for every row; its methods block."""

    def __init__(self, session: DuckdbSession, *, query: Any) -> None:
        self._session = session
        self._query = query

    def open_target(self) -> None:
        """Nothing is to be looked up."""

    def write_chunk(self, rows: list[dict[str, Any]], _: Kinds) -> int:
        """Run the statement for every row of a chunk."""
        statement = parse_statement(self._query, "duckdb")
        for row in rows:
            self._session.fetch_rows(statement.text, sql_statements.order_arguments(statement, row))
        return len(rows)


def iterate_query_windows(
    session: DuckdbSession, query: Any, params: Any, *, size: int
) -> Iterator[RowWindow]:
    """Give a query's rows some at a time; each step blocks. Raises `ToolFailure`."""
    statements = sql_statements.cut_statements(
        str(query), sql_statements.get_placeholder_style(params), "duckdb"
    )
    if not statements:
        raise ToolFailure(build_error("validation", "source.query holds no statement"))
    for statement in statements[:-1]:
        session.fetch_rows(statement.text, sql_statements.order_arguments(statement, params))
    last = statements[-1]
    values = sql_statements.order_arguments(last, params)
    columns, types, batches = session.read_windows(last.text, values, size=size)
    kinds = table_schema.parse_column_kinds(columns, types)
    for rows in batches:
        yield RowWindow(rows=rows, columns=columns, kinds=kinds)
