"""Rows of one query as a stored table: by `COPY` into columns, and from there into parts."""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pyarrow.compute

from noetl_worker.domain import sql_text
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.sql_text import Statement
from noetl_worker.stores import TenantPayloads
from noetl_worker.tools import parts, postgres_columns
from noetl_worker.tools.call import Call
from noetl_worker.tools.postgres_fields import is_autocommit
from noetl_worker.tools.postgres_ranges import read_float
from noetl_worker.tools.postgres_session import Session
from noetl_worker.tools.postgres_types import bind

# What `COPY (…) TO` takes.
_QUERY = re.compile(r"\s*(select|with|values|table)\b", re.IGNORECASE)
_FORMATS = frozenset({"arrow", "parquet"})
# The columns whose text reads as the values that rows would have. Integers are as wide as JSON's.
_KINDS = {
    "bool": pa.bool_(),
    **dict.fromkeys(("int2", "int4", "int8"), pa.int64()),
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


async def _note_endless(
    reading: AsyncIterator[pa.RecordBatch], endless: list[tuple[int, str, str]], *, bytes_max: int
) -> AsyncIterator[pa.RecordBatch]:
    """Note where NaN and Infinity stand: JSON has their texts, as in a result by rows.

    A table of more than `bytes_max` stays one, and its cells are not noted.
    """
    rows_before = used = 0
    async for batch in reading:
        used += batch.nbytes
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if used > bytes_max or not pa.types.is_floating(column.type):
                continue
            is_finite = pyarrow.compute.is_finite(column)
            is_endless = pyarrow.compute.invert(
                pyarrow.compute.coalesce(is_finite, pa.scalar(value=True))
            )
            endless += [
                (rows_before + at, name, str(read_float(column[at].as_py())))
                for at in pyarrow.compute.indices_nonzero(is_endless).to_pylist()
            ]
        rows_before += batch.num_rows
        yield batch


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
    endless: list[tuple[int, str, str]] = []
    async with aclosing(reading):
        noted = _note_endless(reading, endless, bytes_max=parts.held_bytes_max(call))
        rows, count = await table.gather(noted)
    if isinstance(rows, list):
        for at, name, text in endless:
            rows[at][name] = text
    return {
        "rows": rows,
        "row_count": count,
        "columns": list(plan.columns),
        "statement_count": 1,
        "status": "ok",
        "message": f"SELECT {count}",
    }
