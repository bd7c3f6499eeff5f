"""Rows of one statement poured into a stream, through a server-side cursor."""

from noetl_worker.domain import sql_text
from noetl_worker.domain.sql_text import Statement
from noetl_worker.tools.call import Call
from noetl_worker.tools.postgres_session import UNREADABLE, Session, rows_of, unread
from noetl_worker.tools.postgres_types import bind

_WINDOW_ROWS = 100


async def pour(session: Session, statement: Statement, call: Call) -> str:
    """Hand a statement's rows over as they come; return its status message.

    It must stand inside a transaction, and the call must have a sink.
    """
    assert call.sink is not None, "only calls that stream come here"
    plan = await session.describe(statement.text)
    values = sql_text.arguments(statement, call.fields.get("params"))
    bound = bind(values, plan.binders, plan.parameter_types)
    if not plan.columns:
        await plan.prepared.fetch(*bound)
        return plan.prepared.get_statusmsg() or ""
    await call.sink.take([], plan.columns)
    cursor = await plan.prepared.cursor(*bound)
    count = 0
    while True:
        try:
            records = await cursor.fetch(_WINDOW_ROWS)
        except UNREADABLE as problem:
            raise unread(plan, problem) from problem
        if not records:
            return "SELECT"
        await call.sink.take(rows_of(records, plan, rows_before=count), plan.columns)
        count += len(records)
