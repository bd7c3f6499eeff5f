"""Rows of a frame into a table of PostgreSQL, by `COPY` from the executors."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv
from msgspec import Struct
from pyspark import TaskContext

from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.spark.postgres import copy_texts, server_connection
from noetl_worker.spark.postgres.copy_texts import CopyColumn
from noetl_worker.spark.postgres.server_connection import Connection
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.sql import queries, server_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERIES = queries.load_queries(__package__, "table_copy")


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
                    yield encode_csv(batch, plan.columns)

        async def copy_once(connection: Connection) -> None:
            async with connection.transaction():
                done = sql_ident([plan.schema, plan.done_table])
                is_new = await connection.fetchval(_QUERIES["mark"].format(done=done), task)
                if is_new is None:
                    return
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
        where = ", ".join(filter(None, (f"credential '{plan.credential}'", server)))
        server_connection.run_connected(
            fields,
            copy_once,
            credential=plan.credential,
            about=f"target '{plan.target}' ({where})",
        )
        yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], names=["row_count"])


def encode_csv(batch: pa.RecordBatch, columns: list[CopyColumn]) -> bytes:
    """Write rows as texts: an absent value is nothing, a text is quoted."""
    arrays = [
        copy_texts.format_column(batch.column(batch.schema.get_field_index(column.name)), column)
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
