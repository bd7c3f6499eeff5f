"""Rows of a frame into a table of PostgreSQL, by `COPY` of texts that Arrow writes."""

import binascii
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from msgspec import Struct
from pyspark import TaskContext

from noetl_contracts.json_values import to_json_value
from noetl_playbook.templates.output_forms import sql_ident
from noetl_storage.arrow import arrow_values
from noetl_worker.domain import text_values
from noetl_worker.spark.postgres import server_connection
from noetl_worker.spark.postgres.server_connection import Connection
from noetl_worker.spark.tables import arrow_columns, store_access
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress
from noetl_worker.sql import queries, server_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERIES = queries.load_queries(__package__, "table_copy")
# PostgreSQL's own letters of the categories of types.
_ARRAY, _NUMBER, _TIME = "A", "N", "D"
_BYTES = "bytea"
# Days and microseconds since 1970 of the years 1 to 9999; others are written in another way.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


class CopyColumn(Struct, frozen=True, kw_only=True):
    """A column of a target: its type, and the category of that as PostgreSQL's catalog has it."""

    name: str
    type: str
    category: str


class CopyPlan(Struct, frozen=True, kw_only=True):
    """Where a frame's rows go: a table of the target's types, and one of the tasks that are done.

    `target` is the name of the table that errors tell.
    """

    home: StoreAddress
    credential: str
    schema: str
    table: str
    done_table: str
    columns: list[CopyColumn]
    target: str


def copy_in(frame: "DataFrame", plan: CopyPlan) -> list[int]:
    """Copy a frame's rows in; one task's rows never go in twice. Count them by task."""
    count_rows = frame.mapInArrow(_Copier(plan), "row_count bigint").collect()
    return [int(row[0]) for row in count_rows]


class _Copier:
    """The part of `copy_in` that runs in executors, once for each task."""

    def __init__(self, plan: CopyPlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy a task's rows in one transaction."""
        plan = self._plan
        count = 0
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()

        async def iterate_pieces() -> AsyncIterator[bytes]:
            nonlocal count
            for batch in batches:
                if batch.num_rows:
                    count += batch.num_rows
                    yield encode_csv(batch, plan.columns)

        async def copy_once(connection: Connection) -> None:
            async with connection.transaction():
                done_table = sql_ident([plan.schema, plan.done_table])
                is_new = await connection.fetchval(_QUERIES["mark"].format(done=done_table), task)
                if is_new is None:
                    # Its rows may be others than those of the task that was lost.
                    text = f"task {task} was lost when it had copied rows to '{plan.target}'"
                    raise SparkRefusal("connection", f"{text}: all rows are copied again")
                await connection.copy_to_table(
                    plan.table,
                    schema_name=plan.schema,
                    columns=[column.name for column in plan.columns],
                    source=iterate_pieces(),
                    format="csv",
                    encoding="utf-8",
                )

        fields = store_access.open_credential_fields(plan.home, plan.credential)
        server = server_names.describe_server(fields)
        server_text = ", ".join(filter(None, (f"credential '{plan.credential}'", server)))
        server_connection.run_connected(
            fields,
            copy_once,
            credential=plan.credential,
            about=f"target '{plan.target}' ({server_text})",
        )
        yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], names=["row_count"])


def encode_csv(batch: pa.RecordBatch, columns: list[CopyColumn]) -> bytes:
    """Write rows as texts: an absent value is nothing, a text is quoted."""
    arrays = [
        format_column(batch.column(batch.schema.get_field_index(column.name)), column)
        for column in columns
    ]
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(
        pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns]),
        sink,
        pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid"),
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def format_column(values: pa.Array, column: CopyColumn) -> pa.Array:
    """Write a column's values as texts that its type reads; an absent value stays absent."""
    is_array = column.category == _ARRAY
    if is_array and _is_list(values.type):
        texts = _find_list_texts(values, column)
    else:
        texts = _find_scalar_texts(values, column)
    return texts if texts is not None else _format_each(values, column)


def _find_scalar_texts(values: pa.Array, column: CopyColumn) -> pa.Array | None:
    kind, types = values.type, pa.types
    if column.type == _BYTES:
        return _format_bytes(values) if types.is_binary(kind) else _decode_base64(values, column)
    if column.category == _NUMBER and (types.is_decimal(kind) or types.is_floating(kind)):
        return values.cast(pa.string())
    if column.category == _TIME and types.is_timestamp(kind):
        return _find_moments(values)
    if types.is_date(kind):
        return values.cast(pa.string()) if _is_within(values, pa.int32(), _DAYS) else None
    return arrow_columns.find_column_texts(values)


def _format_bytes(values: pa.Array) -> pa.Array:
    """Write bytes in hexadecimal digits."""
    values = values.cast(pa.large_binary())
    # A copy that begins at its buffers' start.
    values = pa.concat_arrays([values, pa.array([], pa.large_binary())])
    _, offsets, data = values.buffers()
    starts = pa.Array.from_buffers(pa.int64(), len(values) + 1, [None, offsets])
    digits = pa.py_buffer(b"" if data is None else data.to_pybytes().hex().encode())
    doubled = pc.multiply(starts, 2)
    plain = pa.Array.from_buffers(
        pa.large_string(), len(values), [None, doubled.buffers()[1], digits]
    )
    texts = pc.binary_join_element_wise("\\x", plain.cast(pa.string()), "")
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))


def _decode_base64(values: pa.Array, column: CopyColumn) -> pa.Array | None:
    """Write texts of bytes in hexadecimal digits, None for what is no text."""
    if not pa.types.is_string(values.type):
        return None
    try:
        texts = [
            None if text is None else "\\x" + binascii.a2b_base64(text).hex()
            for text in values.to_pylist()
        ]
    except ValueError as problem:
        text = f"column '{column.name}' of the target is bytea, and takes base64: {problem}"
        raise SparkRefusal("schema", text) from problem
    return pa.array(texts, pa.string())


def _find_moments(values: pa.Array) -> pa.Array | None:
    kind = values.type
    if kind.unit != "us" or kind.tz not in (None, "UTC"):
        return None
    if not _is_within(values, pa.int64(), _MICROSECONDS):
        return None
    # Without a zone the cast needs no look at zones' rules: UTC has none.
    texts = values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    return texts if kind.tz is None else pc.binary_join_element_wise(texts, "+00", "")


def _is_within(values: pa.Array, kind: pa.DataType, bounds: tuple[int, int]) -> bool:
    span = pc.min_max(values.cast(kind))
    minimum, maximum = span["min"].as_py(), span["max"].as_py()
    return minimum is None or bounds[0] <= minimum <= maximum <= bounds[1]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _find_list_texts(values: pa.Array, column: CopyColumn) -> pa.Array | None:
    """Write lists as PostgreSQL's arrays, None where the elements have to be looked at."""
    flat = values.flatten()
    elements = _find_element_texts(flat, column)
    if elements is None:
        return None
    lengths = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    lists = pa.ListArray.from_arrays(offsets, pc.fill_null(elements, "NULL"))
    texts = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))


def _find_element_texts(flat: pa.Array, column: CopyColumn) -> pa.Array | None:
    kind, types = flat.type, pa.types
    if _is_list(kind):
        return _find_list_texts(flat, column)
    if types.is_null(kind):
        return flat.cast(pa.string())
    if types.is_decimal(kind) or types.is_floating(kind) or types.is_integer(kind):
        return flat.cast(pa.string())
    element = CopyColumn(
        name=column.name,
        type=column.type.partition("[")[0],
        category=_TIME if types.is_timestamp(kind) else "",
    )
    texts = _find_scalar_texts(flat, element)
    if texts is None:
        return None
    escaped_texts = pc.replace_substring_regex(texts, r'(["\\])', r"\\\1")
    return pc.binary_join_element_wise('"', escaped_texts, '"', "")


def _format_each(values: pa.Array, column: CopyColumn) -> pa.Array:
    """Look at each value of a column whose type has no compiled way to a text."""
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    texts = [
        _format_value(to_json_value(row["value"]), column)
        for row in arrow_values.batch_to_rows(batch, [""])
    ]
    return pa.array(texts, pa.string())


def _format_value(value: Any, column: CopyColumn) -> str | None:
    if column.category == _ARRAY and isinstance(value, list):
        return text_values.format_array_literal(value)
    return text_values.format_optional_text(value)
