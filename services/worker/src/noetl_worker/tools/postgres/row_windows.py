"""Rows of a PostgreSQL query, a window at a time, through a server-side cursor."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Any

from noetl_storage.arrow import table_schema
from noetl_storage.arrow.table_schema import Kinds
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.sql import sql_statements
from noetl_worker.tools.postgres import arrow_types
from noetl_worker.tools.postgres.postgres_pool import ConnectionPool
from noetl_worker.tools.postgres.postgres_session import (
    UNREADABLE,
    PostgresSession,
    build_rows,
    build_unread_failure,
    keep_json_as_text,
)
from noetl_worker.tools.postgres.postgres_tool import BROKEN, PostgresTool, classify_postgres_error
from noetl_worker.tools.postgres.transactions import hold_transaction
from noetl_worker.tools.postgres.value_types import UnfitValue, bind_values

# The columns' names, rows, and the columns' types.
Window = tuple[tuple[str, ...], list[dict[str, Any]], Kinds]


@asynccontextmanager
async def lease_session(
    postgres: PostgresTool, auth: Any, site: UnitScope
) -> AsyncIterator[PostgresSession]:
    """Hold a connection of a credential."""
    async with hold_session(await postgres.get_pool(auth, site)) as session:
        yield session


@asynccontextmanager
async def hold_session(pool: ConnectionPool) -> AsyncIterator[PostgresSession]:
    """Hold a connection of a pool; one that something interrupted is not used again."""
    session = await pool.acquire_session()
    is_sound = False
    try:
        yield session
        is_sound = True
    finally:
        pool.release_session(session, is_sound=is_sound)


async def read_windows(
    session: PostgresSession,
    query: Any,
    params: Any,
    *,
    size: int,
    is_inside: bool = False,
    json_texts: Sequence[str] = (),
) -> AsyncGenerator[Window, None]:
    """Yield the columns and at most `size` rows at a time.

    It reads in a transaction of its own, unless it stands inside one already. A query without
    rows yields one empty window, which names the columns. Of `json_texts`, the columns of JSON
    come as their texts.
    """
    statement = parse_one_statement(query, params)
    own_transaction = (
        nullcontext() if is_inside else hold_transaction(session.connection, readonly=True)
    )
    async with own_transaction:
        plan = keep_json_as_text(await session.describe_statement(statement.text), json_texts)
        values = bind_values(
            sql_statements.order_arguments(statement, params), plan.binders, plan.parameter_types
        )
        cursor = await plan.prepared.cursor(*values)
        count = 0
        while True:
            try:
                records = await cursor.fetch(size)
            except UNREADABLE as problem:
                raise build_unread_failure(plan, problem) from problem
            if records or not count:
                types = arrow_types.list_row_types(plan.types, records)
                kinds = table_schema.parse_column_kinds(plan.columns, types)
                yield plan.columns, build_rows(records, plan, rows_before=count), kinds
                count += len(records)
            if len(records) < size:
                return


def parse_one_statement(query: Any, params: Any) -> sql_statements.Statement:
    """Read the one statement of a source; raises `ToolFailure`."""
    if not isinstance(query, str):
        raise ToolFailure(build_error("validation", "field 'query' must be SQL text"))
    statements = sql_statements.cut_statements(query, sql_statements.get_placeholder_style(params))
    if len(statements) != 1:
        text = f"field 'query' must hold one statement, not {len(statements)}"
        raise ToolFailure(build_error("validation", text))
    return statements[0]


async def read_query_windows(
    postgres: PostgresTool, query_source: dict[str, Any], site: UnitScope, *, size: int
) -> AsyncGenerator[Window, None]:
    """Yield the windows of `{auth, query, params}`; raises `ToolFailure`."""
    try:
        async with lease_session(postgres, query_source.get("auth"), site) as session:
            windows = read_windows(
                session, query_source.get("query"), query_source.get("params"), size=size
            )
            async with aclosing(windows):
                async for window in windows:
                    yield window
    except BROKEN as problem:
        raise ToolFailure(classify_postgres_error(problem, None)) from problem
    except (UnfitValue, sql_statements.PlaceholderError) as problem:
        raise ToolFailure(build_error("validation", str(problem), source="postgres")) from problem
