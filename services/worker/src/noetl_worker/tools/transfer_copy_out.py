"""A query's rows out of PostgreSQL by columns, where that gives what rows would give.

They go by `COPY` into batches of columns, and from there into a table of PostgreSQL or into a
Parquet file; no row is a value of Python's on the way. Only columns whose text means the same on
both sides go like that: not numbers with fractions (NaN has no JSON), JSON, bytes and arrays.
"""

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from typing import Any, Protocol

import pyarrow as pa

from noetl_chassis.blocking_work import in_thread
from noetl_worker.domain import sql_text
from noetl_worker.tools import postgres_columns
from noetl_worker.tools.postgres_reading import one_statement
from noetl_worker.tools.postgres_session import Session
from noetl_worker.tools.postgres_types import bind
from noetl_worker.tools.transfer_postgres import PostgresTable
from noetl_worker.tools.transfer_rows import Aim, Target

# What `COPY (…) TO` takes.
_QUERY = re.compile(r"\s*(select|with|values|table)\b", re.IGNORECASE)
_IN_FILES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "uuid": pa.string(),
}
# Moments go as the text of one server for the same type of the other.
_TIMES = {
    "date": "date",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}


class Sheet(Protocol):
    """A file that takes columns."""

    @property
    def takes_columns(self) -> bool:
        """Tell whether its format is one of columns."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch; it blocks."""


async def copied_out(
    source: dict[str, Any],
    session: Session,
    aim: Aim,
    *,
    size: int,
    table: Target | None = None,
    sheet: Sheet | None = None,
) -> dict[str, int] | None:
    """Copy a query's columns; None where it has to go by rows, which also say what is wrong."""
    if aim.mode == "upsert" or aim.mapping is not None:
        return None
    found = one_statement(source.get("query"), source.get("params"))
    if not _QUERY.match(found.text):
        return None
    is_inside = session.connection.is_in_transaction()
    own = nullcontext() if is_inside else session.connection.transaction(readonly=True)
    async with own:
        return await _copied_inside(source, found, session, size=size, table=table, sheet=sheet)


async def _copied_inside(
    source: dict[str, Any],
    found: sql_text.Statement,
    session: Session,
    *,
    size: int,
    table: Target | None,
    sheet: Sheet | None,
) -> dict[str, int] | None:
    plan = await session.describe(found.text)
    kinds = {one.name: one.type.name for one in plan.prepared.get_attributes()}
    if not kinds or len(kinds) < len(plan.columns):
        return None
    write: Callable[[_Counted], Any]
    if sheet is not None and sheet.takes_columns and kinds.keys() and _in_file(kinds):
        types = {name: _IN_FILES[kind] for name, kind in kinds.items()}
        write = lambda batches: _into_file(sheet, batches)  # noqa: E731 - one of two ends
    elif isinstance(table, PostgresTable) and _in_table(kinds, table):
        types = dict.fromkeys(kinds, pa.string())
        types |= {name: _IN_FILES[kind] for name, kind in kinds.items() if kind in _IN_FILES}
        write = lambda batches: table.copy(batches.batches())  # noqa: E731 - as above
    else:
        return None
    values = bind(
        sql_text.arguments(found, source.get("params")), plan.binders, plan.parameter_types
    )
    reading = postgres_columns.read_columns(session, found.text, values, types=types)
    async with aclosing(reading):
        counted = _Counted(reading)
        moved = await write(counted)
    return {
        "rows_transferred": moved,
        # As many as rows would have come in.
        "chunks": -(-counted.rows // size),
        "records_fetched": counted.rows,
    }


def _in_file(kinds: dict[str, str]) -> bool:
    # In a file it is no text.
    return all(kind in _IN_FILES and kind != "uuid" for kind in kinds.values())


def _in_table(kinds: dict[str, str], table: PostgresTable) -> bool:
    """Tell whether every column means the same in the target."""
    times = {name: kind for name, kind in kinds.items() if kind in _TIMES}
    if any(kind not in _IN_FILES and kind not in _TIMES for kind in kinds.values()):
        return False
    if any(table.type_of(name) != _TIMES[kind] for name, kind in times.items()):
        return False
    schema = {name: _IN_FILES.get(kind, pa.string()) for name, kind in kinds.items()}
    return table.can_copy(pa.schema(list(schema.items())))


async def _into_file(sheet: Sheet, batches: "_Counted") -> int:
    async for batch in batches.batches():
        await in_thread(sheet.write_batch, batch)
    return batches.rows


class _Counted:
    """Batches as they come, and how many rows they had."""

    def __init__(self, reading: AsyncGenerator[pa.RecordBatch, None]) -> None:
        self._reading = reading
        self.rows = 0

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield batch after batch."""
        async for batch in self._reading:
            self.rows += batch.num_rows
            yield batch
