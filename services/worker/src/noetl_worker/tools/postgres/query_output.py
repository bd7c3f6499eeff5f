"""Rows of a query through a server-side cursor: as a stream of chunks or as a table."""

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pyarrow as pa

from noetl_contracts import spread_table
from noetl_storage.arrow import table_schema
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.sql import sql_statements
from noetl_worker.sql.sql_statements import Statement
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.postgres import copy_columns
from noetl_worker.tools.postgres.postgres_session import (
    UNREADABLE,
    PostgresSession,
    build_rows,
    build_unread_failure,
)
from noetl_worker.tools.postgres.task_fields import is_autocommit
from noetl_worker.tools.postgres.transactions import hold_transaction
from noetl_worker.tools.postgres.value_types import bind_values
from noetl_worker.tools.tables import stored_parts

_WINDOW_ROWS = 100
# What `COPY (…) TO` takes.
_QUERY = re.compile(r"\s*(select|with|values|table)\b", re.IGNORECASE)
_FORMATS = frozenset({"arrow", "parquet"})
# The columns whose text reads as the values that rows would have.
_KINDS = {
    "bool": pa.bool_(),
    "int8": pa.int64(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid"), pa.string()),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


async def stream_rows(session: PostgresSession, statement: Statement, call: Call) -> str:
    """Hand a statement's rows over as they come; return its status message.

    It must stand inside a transaction, and the call must have a sink.
    """
    assert call.sink is not None, "only calls that stream come here"
    plan = await session.describe_statement(statement.text)
    values = sql_statements.order_arguments(statement, call.fields.get("params"))
    bound = bind_values(values, plan.binders, plan.parameter_types)
    if not plan.columns:
        await plan.prepared.fetch(*bound)
        return plan.prepared.get_statusmsg() or ""
    await call.sink.write_rows([], plan.columns)
    cursor = await plan.prepared.cursor(*bound)
    count = 0
    while True:
        try:
            records = await cursor.fetch(_WINDOW_ROWS)
        except UNREADABLE as problem:
            raise build_unread_failure(plan, problem) from problem
        if not records:
            return "SELECT"
        await call.sink.write_rows(build_rows(records, plan, rows_before=count), plan.columns)
        count += len(records)


def is_table_wanted(statements: tuple[Statement, ...], call: Call) -> bool:
    """Tell whether a call asks for a table and is one query, which may give one."""
    first = statements[0]
    return (
        stored_parts.is_spread_wanted(call)
        and call.output is not None
        and call.output.format in _FORMATS
        and len(statements) == 1
        and _QUERY.match(first.text) is not None
        and not (first.is_transaction_control or first.is_outside_transactions)
        and not is_autocommit(call.fields)
    )


async def read_table(
    session: PostgresSession,
    statement: Statement,
    call: Call,
    *,
    payloads: TenantPayloads,
    mask: SecretMask,
) -> dict[str, Any] | None:
    """Return what a query gave, its rows in the store if they are many.

    None, and nothing has run, where a column has to go by rows. Raises `ToolFailure`, and what
    the client raises.
    """
    async with hold_transaction(session.connection):
        return await _read_inside(session, statement, call, payloads=payloads, mask=mask)


async def _read_inside(
    session: PostgresSession,
    statement: Statement,
    call: Call,
    *,
    payloads: TenantPayloads,
    mask: SecretMask,
) -> dict[str, Any] | None:
    plan = await session.describe_statement(statement.text)
    kinds = {attribute.name: attribute.type.name for attribute in plan.prepared.get_attributes()}
    is_plain = all(kind in _KINDS for kind in kinds.values())
    if not kinds or not is_plain:
        return None
    values = sql_statements.order_arguments(statement, call.fields.get("params"))
    bound = bind_values(values, plan.binders, plan.parameter_types)
    types = {name: _KINDS[kind] for name, kind in kinds.items()}
    table = stored_parts.TableGatherer(
        call,
        payloads=payloads,
        mask=mask,
        kinds=[""] * len(kinds),
        may_spread=True,
        bytes_max=stored_parts.SMALL_BYTES,
    )
    reading = copy_columns.read_columns(session, statement.text, bound, types=types)
    async with aclosing(reading):
        rows, count = await table.gather_batches(reading)
    return {
        "rows": rows,
        "row_count": count,
        "columns": list(plan.columns),
        # Parts have the types that were read, rows those of the query.
        "types": _format_types(types) if spread_table.is_spread_marker(rows) else list(plan.types),
        "statement_count": 1,
        "status": "ok",
        "message": f"SELECT {count}",
    }


def _format_types(types: Mapping[str, pa.DataType]) -> list[str]:
    return [table_schema.format_arrow_type(kind) for kind in types.values()]
