"""Rows of a PostgreSQL query, a window at a time, through a server-side cursor."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Any

from noetl_storage import table_schema
from noetl_storage.table_schema import Kinds
from noetl_worker.domain import sql_text
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site
from noetl_worker.tools import postgres_row_types
from noetl_worker.tools.postgres import BROKEN, PostgresTool, refused
from noetl_worker.tools.postgres_pool import Pool
from noetl_worker.tools.postgres_session import (
    UNREADABLE,
    Session,
    rows_of,
    unread,
    with_json_as_text,
)
from noetl_worker.tools.postgres_types import UnfitValue, bind

# The columns' names, rows, and the columns' types.
Window = tuple[tuple[str, ...], list[dict[str, Any]], Kinds]


@asynccontextmanager
async def leased(postgres: PostgresTool, auth: Any, site: Site) -> AsyncIterator[Session]:
    """Hold a connection of a credential."""
    async with session_of(await postgres.pool(auth, site)) as session:
        yield session


@asynccontextmanager
async def session_of(pool: Pool) -> AsyncIterator[Session]:
    """Hold a connection of a pool; one that something interrupted is not used again."""
    session = await pool.acquire()
    is_sound = False
    try:
        yield session
        is_sound = True
    finally:
        pool.release(session, is_sound=is_sound)


async def read_windows(
    session: Session,
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
    found = one_statement(query, params)
    own = nullcontext() if is_inside else session.connection.transaction(readonly=True)
    async with own:
        plan = with_json_as_text(await session.describe(found.text), json_texts)
        values = bind(sql_text.arguments(found, params), plan.binders, plan.parameter_types)
        cursor = await plan.prepared.cursor(*values)
        count = 0
        while True:
            try:
                records = await cursor.fetch(size)
            except UNREADABLE as problem:
                raise unread(plan, problem) from problem
            if records or not count:
                types = postgres_row_types.types_of_rows(plan.types, records)
                kinds = table_schema.kinds_of(plan.columns, types)
                yield plan.columns, rows_of(records, plan, rows_before=count), kinds
                count += len(records)
            if len(records) < size:
                return


def one_statement(query: Any, params: Any) -> sql_text.Statement:
    """Read the one statement of a source; raises `ToolFailure`."""
    if not isinstance(query, str):
        raise ToolFailure(failure("validation", "field 'query' must be SQL text"))
    found = sql_text.statements(query, sql_text.style_of(params))
    if len(found) != 1:
        text = f"field 'query' must hold one statement, not {len(found)}"
        raise ToolFailure(failure("validation", text))
    return found[0]


async def read_query(
    postgres: PostgresTool, given: dict[str, Any], site: Site, *, size: int
) -> AsyncGenerator[Window, None]:
    """Yield the windows of `{auth, query, params}`; raises `ToolFailure`."""
    try:
        async with leased(postgres, given.get("auth"), site) as session:
            windows = read_windows(session, given.get("query"), given.get("params"), size=size)
            async with aclosing(windows):
                async for window in windows:
                    yield window
    except BROKEN as problem:
        raise ToolFailure(refused(problem, None)) from problem
    except (UnfitValue, sql_text.PlaceholderError) as problem:
        raise ToolFailure(failure("validation", str(problem), source="postgres")) from problem
