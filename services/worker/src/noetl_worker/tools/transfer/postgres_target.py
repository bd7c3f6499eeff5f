"""Rows into a PostgreSQL table or statement, in one transaction."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_playbook.templates.output_forms import sql_ident
from noetl_storage.arrow.table_schema import Kinds
from noetl_worker.domain import text_values
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.sql import queries, sql_statements
from noetl_worker.sql.lexer import Dialect
from noetl_worker.tools.postgres import copy_columns
from noetl_worker.tools.postgres.intervals import format_duration, write_interval
from noetl_worker.tools.postgres.postgres_session import (
    PostgresSession,
    StatementPlan,
    note_refused_text,
)
from noetl_worker.tools.postgres.value_types import bind_values
from noetl_worker.tools.tables import transfer_rows
from noetl_worker.tools.tables.transfer_rows import TransferAim
from noetl_worker.tools.transfer.target_table import (
    StagedRows,
    TargetColumn,
    create_staging,
    empty_table,
    get_table,
    list_table_columns,
    write_staged_rows,
)

_QUERIES = queries.load_queries(__package__, "transfer_postgres")
_BYTES, _INTERVAL = "bytea", "interval"
_JSON = frozenset({"json", "jsonb"})
_STAGING = "pg_temp.noetl_staged_rows"


class PostgresTable:
    """A table whose name and columns are those of the catalog."""

    def __init__(
        self,
        session: PostgresSession,
        *,
        parts: list[str],
        aim: TransferAim,
        is_whole: bool = False,
    ) -> None:
        """Take rows by chunks; `is_whole` says that all of them meet the table's at once."""
        self._session = session
        self._parts = parts
        self._aim = aim
        self._row_count = 0
        self._is_staged = aim.is_merge or (is_whole and aim.mode in transfer_rows.KEYED_MODES)
        self._columns: dict[str, TargetColumn] = {}
        self._is_plain = False
        self._plan_by_text: dict[str, StatementPlan] = {}
        # The columns that any staged row has, in the order in which they came.
        self._staged_names: dict[str, None] = {}

    async def open_target(self) -> None:
        """Look the table up, and empty it where it is to be replaced; raises `ToolFailure`."""
        oid, self._parts = await get_table(self._session, self._parts)
        # Describing a statement locks its table: from here on the columns keep their types.
        await self._session.describe_statement(
            _QUERIES["lock"].format(table=sql_ident(self._parts))
        )
        self._columns = await list_table_columns(self._session, oid)
        self._is_plain = await self._session.connection.fetchval(_QUERIES["is_plain"], oid)
        if self._aim.mode == "replace":
            await empty_table(self._session, sql_ident(self._parts))
        if self._is_staged:
            await create_staging(self._session, _STAGING, self._columns)

    async def finish_rows(self) -> int | None:
        """Merge what was staged into the table; None where rows were written as they came."""
        if not self._is_staged:
            return None
        if not self._staged_names:
            return 0
        staged_rows = StagedRows(
            table=sql_ident(self._parts),
            staging=_STAGING,
            columns=[self._columns[name] for name in self._staged_names],
            target_columns=self._columns,
        )
        return await write_staged_rows(self._session, staged_rows, self._aim)

    def can_copy(self, schema: Any) -> bool:
        """Tell whether columns of an Arrow schema are appended as their rows would be."""
        known_names = {
            target_column.name: (target_column.type, target_column.category)
            for target_column in self._columns.values()
        }
        return (
            self._is_plain
            and bool(schema.names)
            and copy_columns.can_copy_schema(schema, known_names)
        )

    def find_column_type(self, name: str) -> str | None:
        """Return the type of a column as the catalog spells it, None for one that is not there."""
        target_column = self._columns.get(name)
        return None if target_column is None else target_column.type

    def list_json_sources(self, mapping: Mapping[str, str] | None) -> list[str]:
        """Name the source columns that become JSON as they are."""
        names = [
            target_column.name
            for target_column in self._columns.values()
            if target_column.type in _JSON
        ]
        if mapping is None:
            return names
        # What else is taken out of the same column needs it as a value.
        tops = [path.split(".")[0].split("[")[0] for path in mapping.values()]
        return [
            mapping[name] for name in names if name in mapping and tops.count(mapping[name]) == 1
        ]

    async def copy_batches(self, batches: AsyncIterator[Any]) -> int:
        """Append record batches, or stage them, and return how many rows they had."""
        if not self._is_staged:
            return await copy_columns.write_columns(self._session, self._parts, batches)
        return await copy_columns.write_columns(
            self._session, _STAGING.split("."), self._note_names(batches)
        )

    async def _note_names(self, batches: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for batch in batches:
            self._staged_names |= dict.fromkeys(batch.schema.names)
            yield batch

    async def write_chunk(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Write a chunk and return how many rows it inserted or changed."""
        names = transfer_rows.list_columns(rows)
        transfer_rows.check_columns(names, self._columns, ".".join(self._parts))
        columns = [self._columns[name] for name in names]
        keys: list[str] = []
        if self._is_staged:
            self._staged_names |= dict.fromkeys(names)
        elif self._aim.mode == "upsert":
            keys = transfer_rows.list_keys(self._aim, names)
            rows = transfer_rows.keep_latest_by_key(rows, keys)
        for column in columns:
            kind = kinds.get(column.name)
            if getattr(kind, "unit", None) == "ns":
                values = [row.get(column.name) for row in rows]
                transfer_rows.check_nanoseconds(column.name, values, kind, column.type)
        arrays = [
            [_format_value(row.get(target_column.name), target_column) for row in rows]
            for target_column in columns
        ]
        text = self._build_statement(columns, keys)
        plan = self._plan_by_text.get(text)
        if plan is None:
            plan = self._plan_by_text[text] = await self._session.describe_statement(text)
        # Of rows with one key only the last is here: a place among them says nothing.
        rows_before = None if keys else self._row_count
        with note_refused_text(dict(zip(names, arrays, strict=True)), rows_before):
            await plan.prepared.fetch(*arrays)
        self._row_count += len(rows)
        return int((plan.prepared.get_statusmsg() or "0").rpartition(" ")[2])

    def _build_statement(self, columns: list[TargetColumn], keys: list[str]) -> str:
        other_names = [column.name for column in columns if column.name not in keys]
        query_name = "append" if not keys else "upsert" if other_names else "upsert_keys"
        return _QUERIES[query_name].format(
            table=_STAGING if self._is_staged else sql_ident(self._parts),
            columns=transfer_rows.quote_names(target_column.name for target_column in columns),
            values=", ".join(build_value_expression(item) for item in columns),
            arrays=", ".join(f"${index}::text[]" for index in range(1, len(columns) + 1)),
            keys=transfer_rows.quote_names(keys),
            changes=", ".join(f"{sql_ident(n)} = excluded.{sql_ident(n)}" for n in other_names),
        )


class PostgresStatement:
    """A statement that runs once for every row, its named parameters taken from the row."""

    def __init__(self, session: PostgresSession, *, query: Any) -> None:
        self._session = session
        self._query = query
        self._plan: StatementPlan | None = None

    async def write_chunk(self, rows: list[dict[str, Any]], _: Kinds) -> int:
        """Run the statement for every row of a chunk."""
        statement = parse_statement(self._query)
        if self._plan is None:
            self._plan = await self._session.describe_statement(statement.text)
        plan = self._plan
        values = [
            bind_values(
                sql_statements.order_arguments(statement, row), plan.binders, plan.parameter_types
            )
            for row in rows
        ]
        await plan.prepared.executemany(values)
        return len(rows)


def parse_statement(query: Any, dialect: Dialect = "postgres") -> sql_statements.Statement:
    """Read the one statement of a target; raises `ToolFailure`."""
    statements = (
        sql_statements.cut_statements(query, "mapping", dialect) if isinstance(query, str) else ()
    )
    if len(statements) != 1:
        text = "field 'target.query' must hold one statement with :named parameters"
        raise ToolFailure(build_error("validation", text, source="transfer"))
    return statements[0]


def build_value_expression(column: TargetColumn) -> str:
    """Write the expression that makes a text of `source` a column's value."""
    name = sql_ident(column.name)
    if column.type == _BYTES:
        return f"decode(source.{name}, 'base64')"
    # The type is the catalog's own spelling of it, which is quoted where it must be.
    return f"source.{name}::{column.type}"


def _read_json_list(value: Any) -> Any:
    """Read the JSON of a list, as csv holds one; leave all else as it is, as an array's own text.

    With bounds, such a text begins alike and is no JSON: `[0:1]={1,2}`.
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    with suppress(msgspec.DecodeError):
        return codec.decode_exactly(value)
    return value


def _format_value(value: Any, column: TargetColumn) -> str | None:
    if column.is_array:
        value = _read_json_list(value)
    if column.is_array and isinstance(value, list):
        return text_values.format_array_literal(value)
    if value is not None and column.type.startswith(_INTERVAL):
        # PostgreSQL reads no seconds as 1e-06.
        with suppress(ValueError):
            return format_duration(write_interval(value))
    return text_values.format_optional_text(value)
