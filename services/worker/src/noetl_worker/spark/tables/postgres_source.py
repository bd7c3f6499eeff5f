"""PostgreSQL tables in Spark: read in partitions and written by `COPY`, by the executors."""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import pyarrow as pa
import pyarrow.csv
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.json_values import to_json_value
from noetl_playbook.templates.output_forms import sql_ident
from noetl_storage.arrow import arrow_values
from noetl_worker.domain import postgres_connection, text_values
from noetl_worker.domain.failures import classify_sqlstate, format_problem
from noetl_worker.spark.tables import arrow_columns, store_access
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress
from noetl_worker.sql import queries, server_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
Connection = Any

QUERIES = queries.load_queries(__package__, "postgres_source")
NAME = "noetl_postgres"
_BLOCK_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 10_000
_WHOLE = frozenset({"int2", "int4", "int8"})
_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int32(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "numeric": pa.decimal128(38, 18),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_SHOWN = {"timestamptz": "{name} at time zone 'UTC'", "bytea": "encode({name}, 'base64')"}


class RangePartition(InputPartition):
    """The rows of one task, as a condition on them."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


class PostgresSource(DataSource):
    """A query's rows.

    Options: `store`, `tenant`, `organization`, `credential`, `query`, `values` (of `$1` …),
    `column` and `partitions` (cut into ranges of a whole-number column), `snapshot` (read what a
    transaction that is still open has exported).
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the query's columns."""
        columns = _run_with_connection(self.options, _read_columns)
        return from_arrow_schema(_build_schema(columns))

    def reader(self, schema: StructType) -> "PostgresReader":
        """Return a reader that gives exactly these columns."""
        return PostgresReader(dict(self.options), schema)


class PostgresReader(DataSourceReader):
    """Cuts a query by ranges, and copies each of them out."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the rows into ranges of the column, else leave them whole."""
        column, count = self._options.get("column"), int(self._options.get("partitions", "1"))
        if column is None or count <= 1:
            return [RangePartition("true")]
        options = self._options

        async def read_bounds(connection: Connection) -> tuple[Any, Any]:
            kinds = dict(await _read_columns(connection, options))
            if kinds.get(column) not in _WHOLE:
                text = f"partition column {column!r} must be a whole-number column of the query"
                raise SparkRefusal("validation", text)
            text = QUERIES["bounds"].format(column=sql_ident(column), query=options["query"])
            found = await connection.fetchrow(text, *_decode_values(options))
            return found["low"], found["high"]

        low, high = _run_with_connection(options, lambda one, _: read_bounds(one))
        if low is None:
            return [RangePartition("true")]
        return [RangePartition(text) for text in _cut_ranges(sql_ident(column), low, high, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Copy a range out, and read it as it comes."""
        assert isinstance(partition, RangePartition), "Spark hands back what `partitions` gave"
        columns = _run_with_connection(self._options, _read_columns)
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        reading, writing = os.pipe()
        with ThreadPoolExecutor(1) as threads:
            copied = threads.submit(_copy_out, self._options, columns, partition, writing)
            with io.BufferedReader(io.FileIO(reading), _BLOCK_BYTES) as source:
                if source.peek(1):
                    yield from _parse_csv(source, columns, wanted)
            # Who stops reading early closes the pipe under it.
            with suppress(BrokenPipeError):
                copied.result()


def _parse_csv(
    source: Any, columns: list[tuple[str, str]], wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    kinds = {name: _get_csv_type(kind) for name, kind in columns}
    try:
        reader = pyarrow.csv.open_csv(
            source,
            read_options=pyarrow.csv.ReadOptions(
                column_names=list(kinds), block_size=_BLOCK_BYTES, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=kinds,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
        for batch in reader:
            table = pa.Table.from_batches([batch])
            for index, (name, kind) in enumerate(columns):
                if kind == "timestamptz":
                    column = table.column(index).cast(_TYPES[kind])
                    table = table.set_column(index, name, column)
            yield from (
                arrow_columns.cast_table(table, wanted).combine_chunks().to_batches(_BATCH_ROWS)
            )
    except pa.ArrowException as problem:
        text = f"a value of the query has no form in Spark, cast it to text: {problem}"
        raise SparkRefusal("schema", text) from problem


def _get_csv_type(kind: str) -> pa.DataType:
    return pa.timestamp("us") if kind == "timestamptz" else _TYPES.get(kind, pa.string())


def _build_schema(columns: list[tuple[str, str]]) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES.get(kind, pa.string())) for name, kind in columns])


def _cut_ranges(column: str, low: int, high: int, count: int) -> Iterator[str]:
    """Cut whole numbers into half-open ranges; rows without a number are in the first."""
    width = max(1, -(-(high - low + 1) // count))
    starts = list(range(low, high + 1, width))
    for index, start in enumerate(starts):
        parts = [] if index == 0 else [f"{column} >= {start}"]
        if index + 1 < len(starts):
            parts.append(f"{column} < {starts[index + 1]}")
        text = " and ".join(parts) or "true"
        yield f"({text}) or {column} is null" if index == 0 and parts else text


async def _read_columns(connection: Connection, options: Any) -> list[tuple[str, str]]:
    """Return the names of a query's columns and of their types."""
    prepared = await connection.prepare(options["query"])
    columns = [(attribute.name, attribute.type.name) for attribute in prepared.get_attributes()]
    if not columns:
        raise SparkRefusal("validation", "the query returns no columns")
    return columns


def _copy_out(
    options: dict[str, str], columns: list[tuple[str, str]], partition: RangePartition, writing: int
) -> None:
    shown = ", ".join(
        f"{_SHOWN.get(kind, '{name}').format(name=sql_ident(name))} as {sql_ident(name)}"
        for name, kind in columns
    )
    statement = QUERIES["range"].format(
        columns=shown, query=options["query"], condition=partition.condition
    )
    with os.fdopen(writing, "wb") as target:

        async def copy_range(connection: Connection, _: Any) -> None:
            await connection.copy_from_query(
                statement, *_decode_values(options), output=target, format="csv"
            )

        _run_with_connection(options, copy_range)


def _decode_values(options: Any) -> list[Any]:
    found: list[Any] = codec.decode_json(options.get("values", "[]").encode())
    return found


def _run_with_connection(options: Any, work: Callable[[Connection, Any], Awaitable[T]]) -> T:
    """Do some work on a connection of the credential; raises `SparkRefusal`."""
    home = StoreAddress(
        url=options["store"],
        tenant_id=TenantId(options["tenant"]),
        organization_id=OrganizationId(options["organization"]),
    )
    snapshot = options.get("snapshot")

    async def run_in_snapshot(connection: Connection) -> T:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            if snapshot is not None:
                await connection.execute(QUERIES["snapshot"].format(snapshot=snapshot))
            return await work(connection, options)

    return _run_connected(home, options["credential"], run_in_snapshot)


def _run_connected(
    home: StoreAddress, credential: str, work: Callable[[Connection], Awaitable[T]]
) -> T:
    fields = store_access.open_credential_fields(home, credential)

    async def connect_and_run() -> T:
        known = postgres_connection.build_connect_arguments(fields, application="noetl-spark")
        with postgres_connection.translate_credential_errors(fields):
            try:
                connection = await asyncpg.connect(**known)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as problem:
                server = server_names.describe_server(fields)
                problem.add_note(", ".join(filter(None, (server, f"credential '{credential}'"))))
                raise
        try:
            return await work(connection)
        finally:
            await connection.close(timeout=postgres_connection.CONNECT_S)

    try:
        return asyncio.run(connect_and_run())
    except postgres_connection.UnusableCredential as problem:
        text = f"credential '{credential}' cannot be used: {problem}"
        raise SparkRefusal("config", text, source="postgres") from problem
    except asyncpg.PostgresError as problem:
        text = format_problem(problem)
        error = classify_sqlstate(problem.sqlstate or "XX000", text, details={})
        raise SparkRefusal(
            error.kind, error.message, code=error.code, pg_code=error.pg_code, source="postgres"
        ) from problem
    except (OSError, TimeoutError, asyncpg.InterfaceError) as problem:
        text = f"the connection to the database failed: {format_problem(problem)}"
        raise SparkRefusal("db_connection", text, code="PG_08006", source="postgres") from problem


class CopyColumn(Struct, frozen=True, kw_only=True):
    """A column of a target; `is_array` when lists become arrays instead of JSON."""

    name: str
    is_array: bool = False


class CopyPlan(Struct, frozen=True, kw_only=True):
    """Where a frame's rows go: a table of texts, and one that tells which tasks are done."""

    home: StoreAddress
    credential: str
    schema: str
    table: str
    done_table: str
    columns: list[CopyColumn]


def copy_in(frame: "DataFrame", plan: CopyPlan) -> list[int]:
    """Copy a frame's rows in; a task that Spark runs twice writes once. Count them by task."""
    counted = frame.mapInArrow(_Copier(plan), "row_count bigint").collect()
    return [int(row[0]) for row in counted]


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
                    yield _encode_csv(batch, plan.columns)

        async def copy_once(connection: Connection) -> None:
            async with connection.transaction():
                done = sql_ident([plan.schema, plan.done_table])
                is_new = await connection.fetchval(QUERIES["mark"].format(done=done), task)
                if is_new is None:
                    return
                await connection.copy_to_table(
                    plan.table,
                    schema_name=plan.schema,
                    columns=[column.name for column in plan.columns],
                    source=iterate_pieces(),
                    format="csv",
                )

        _run_connected(plan.home, plan.credential, copy_once)
        yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], names=["row_count"])


def _encode_csv(batch: pa.RecordBatch, columns: list[CopyColumn]) -> bytes:
    """Write rows as texts: an absent value is nothing, a text is quoted."""
    arrays = [_build_texts(batch, column) for column in columns]
    sink = io.BytesIO()
    pyarrow.csv.write_csv(
        pa.RecordBatch.from_arrays(arrays, names=[copy_column.name for copy_column in columns]),
        sink,
        pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid"),
    )
    return sink.getvalue()


def _build_texts(batch: pa.RecordBatch, column: CopyColumn) -> pa.Array:
    found = batch.column(batch.schema.get_field_index(column.name))
    written = arrow_columns.find_column_texts(found)
    if written is not None:
        return written
    rows = arrow_values.batch_to_rows(pa.RecordBatch.from_arrays([found], names=["value"]), [""])
    shown = []
    for row in rows:
        value = to_json_value(row["value"])
        is_list = column.is_array and isinstance(value, list)
        shown.append(
            text_values.format_array_literal(value)
            if is_list
            else text_values.format_optional_text(value)
        )
    return pa.array(shown, pa.string())
