"""Columns into PostgreSQL and out of it: Arrow on one side, `COPY` on the other, no row in between.

Values pass as the text that PostgreSQL's types and Arrow's both read. Out of a query come numbers,
truth values, dates, times and moments (in UTC) as such; a `numeric` whose digits nobody has named,
and a value of any other type, comes as its text. What is in memory is a few batches: between the
server and the batches stands a file.
"""

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.csv

from noetl_chassis.blocking_work import run_in_thread
from noetl_worker.domain.failures import ToolFailure, build_error, check_column_names
from noetl_worker.sql import queries
from noetl_worker.tools.postgres.postgres_session import PostgresSession

# No row is longer than a block.
BLOCK_BYTES = 4 * 1024 * 1024
_SPOOL_BYTES = 8 * 1024 * 1024
_QUERIES = queries.load_queries(__package__, "postgres_columns")
_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
# How PostgreSQL names one whose text it cannot read.
_COPY_COLUMN = re.compile(r"^COPY .*, line \d+, column (.*?): \"", re.MULTILINE)
# How Arrow names a column whose text it cannot read.
_COLUMN = re.compile(r"CSV column #(\d+)")
# The categories of PostgreSQL's types whose text is that of Arrow's.
_TIMES, _NUMBERS, _ARRAYS = "D", "N", "A"


async def read_columns(
    session: PostgresSession,
    query: str,
    values: Iterable[Any] = (),
    *,
    types: Mapping[str, pa.DataType] | None = None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield a query's rows as batches; `types` gives columns a type that the query cannot tell.

    It must stand in a transaction. Raises `ToolFailure` for a value that does not read as its
    column's type, and for a row that spans several blocks.
    """
    await session.connection.execute(_QUERIES["readable"])
    kinds = _list_kinds(
        (await session.describe_statement(query)).prepared.get_attributes(), types or {}
    )
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:

        async def take_data(data: bytes) -> None:
            await run_in_thread(spool.write, data)

        await session.connection.copy_from_query(query, *values, output=take_data, format="csv")
        if not spool.tell():
            yield pa.RecordBatch.from_pylist([], schema=pa.schema(list(kinds.items())))
            return
        spool.seek(0)
        batches = await run_in_thread(_open_csv, pa.PythonFile(spool, mode="r"), kinds)
        while (batch := await run_in_thread(_read_next, batches, list(kinds))) is not None:
            yield batch


def _list_kinds(
    attributes: Iterable[Any], types: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    columns = list(attributes)
    check_column_names([column.name for column in columns], source="postgres")
    return {
        column.name: types.get(column.name, _TYPES.get(column.type.name, pa.string()))
        for column in columns
    }


def _open_csv(file: Any, kinds: dict[str, pa.DataType]) -> Any:
    with _translate_read_errors(list(kinds)):
        return pyarrow.csv.open_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(
                column_names=list(kinds), block_size=BLOCK_BYTES, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(
                newlines_in_values=True, ignore_empty_lines=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=kinds,
                null_values=[""],
                # An empty text is quoted, and an absent one is not.
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )


def _read_next(batches: Any, names: list[str]) -> pa.RecordBatch | None:
    with _translate_read_errors(names):
        try:
            return batches.read_next_batch()
        except StopIteration:
            return None


@contextmanager
def _translate_read_errors(names: list[str]) -> Iterator[None]:
    """Say in the worker's words what Arrow could not read, and of which column."""
    try:
        yield
    except pa.ArrowInvalid as problem:
        match = _COLUMN.search(str(problem))
        message = (
            f"a row is longer than {BLOCK_BYTES} bytes, or is none"
            if match is None
            else f"column '{names[int(match[1])]}' holds a value that does not read as its type"
        )
        text = f"{message} ({problem}): cast the column to text in the query"
        raise ToolFailure(build_error("schema", text, source="postgres")) from problem


def can_copy_schema(schema: pa.Schema, categories: Mapping[str, tuple[str, str]]) -> bool:
    """Tell whether every column's text is what the target's column reads, and means the same.

    `categories` are PostgreSQL's names of the target's types with their categories, by column.
    """
    return all(
        field.name in categories
        and _can_copy_type(_get_value_type(field.type), *categories[field.name])
        for field in schema
    )


def _can_copy_type(kind: pa.DataType, type_: str, category: str) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if type_ == "bytea" or category == _ARRAYS:
        return False
    if is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return True
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return category == _NUMBERS
    is_time = pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind)
    return is_time and category == _TIMES


def _get_value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


async def write_columns(
    session: PostgresSession, parts: list[str], batches: AsyncIterator[pa.RecordBatch]
) -> int:
    """Append batches to a table, columns by name; return how many rows the server took.

    It must stand in a transaction; `can_copy_schema` must have said that the columns do.
    """
    first = await anext(batches, None)
    if first is None:
        return 0

    async def iterate_texts() -> AsyncIterator[bytes]:
        yield await asyncio.to_thread(_encode_csv, first)
        async for batch in batches:
            yield await asyncio.to_thread(_encode_csv, batch)

    *schema, table = parts
    try:
        status = await session.connection.copy_to_table(
            table,
            schema_name=schema[0] if schema else None,
            columns=first.schema.names,
            source=iterate_texts(),
            format="csv",
            encoding="utf-8",
        )
    except asyncpg.DataError as problem:
        # The server names the column beside its message; its lines are no rows.
        if (column := _COPY_COLUMN.search(getattr(problem, "context", None) or "")) is not None:
            problem.add_note(f"column '{column[1]}'")
        raise
    return int(status.rpartition(" ")[2])


def _encode_csv(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    plain = pa.Table.from_batches([batch])
    for place, field in enumerate(plain.schema):
        if pa.types.is_dictionary(field.type):
            column = plain.column(place).cast(field.type.value_type)
            plain = plain.set_column(place, field.name, column)
    pyarrow.csv.write_csv(
        plain,
        sink,
        # What is quoted is a value, also when it is empty; what is absent is not quoted.
        pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid"),
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data
