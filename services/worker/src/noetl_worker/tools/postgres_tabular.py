"""Rows of one query as a stored table: by `COPY` into columns, and from there into parts."""

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pyarrow as pa

from noetl_contracts import spread
from noetl_storage import table_schema
from noetl_worker.domain import sql_text
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.sql_text import Statement
from noetl_worker.stores import TenantPayloads
from noetl_worker.tools import parts, postgres_columns
from noetl_worker.tools.call import Call
from noetl_worker.tools.postgres_fields import is_autocommit
from noetl_worker.tools.postgres_session import Session
from noetl_worker.tools.postgres_types import bind

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


def is_wanted(statements: tuple[Statement, ...], call: Call) -> bool:
    """Tell whether a call asks for a table and is one query, which may give one."""
    first = statements[0]
    return (
        parts.is_wanted(call)
        and call.output is not None
        and call.output.format in _FORMATS
        and len(statements) == 1
        and _QUERY.match(first.text) is not None
        and not (first.is_transaction_control or first.is_outside_transactions)
        and not is_autocommit(call.fields)
    )


async def read(
    session: Session,
    statement: Statement,
    call: Call,
    *,
    payloads: TenantPayloads,
    mask: Mask,
) -> dict[str, Any] | None:
    """Return what a query gave, its rows in the store if they are many.

    None, and nothing has run, where a column has to go by rows. Raises `ToolFailure`, and what
    the client raises.
    """
    async with session.connection.transaction():
        return await _read_inside(session, statement, call, payloads=payloads, mask=mask)


async def _read_inside(
    session: Session,
    statement: Statement,
    call: Call,
    *,
    payloads: TenantPayloads,
    mask: Mask,
) -> dict[str, Any] | None:
    plan = await session.describe(statement.text)
    kinds = {one.name: one.type.name for one in plan.prepared.get_attributes()}
    is_plain = all(kind in _KINDS for kind in kinds.values())
    if not kinds or len(kinds) < len(plan.columns) or not is_plain:
        return None
    values = sql_text.arguments(statement, call.fields.get("params"))
    bound = bind(values, plan.binders, plan.parameter_types)
    types = {name: _KINDS[kind] for name, kind in kinds.items()}
    table = parts.Gathering(
        call,
        payloads=payloads,
        mask=mask,
        kinds=[""] * len(kinds),
        may_spread=True,
        bytes_max=parts.SMALL_BYTES,
    )
    reading = postgres_columns.read_columns(session, statement.text, bound, types=types)
    async with aclosing(reading):
        rows, count = await table.gather(reading)
    return {
        "rows": rows,
        "row_count": count,
        "columns": list(plan.columns),
        # Parts have the types that were read, rows those of the query.
        "types": _types_of(types) if spread.is_marker(rows) else list(plan.types),
        "statement_count": 1,
        "status": "ok",
        "message": f"SELECT {count}",
    }


def _types_of(types: Mapping[str, pa.DataType]) -> list[str]:
    return [table_schema.format_arrow_type(kind) for kind in types.values()]
