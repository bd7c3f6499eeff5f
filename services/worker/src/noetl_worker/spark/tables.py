"""`frame.write.format("noetl")`: tables under names of their own, in parts, written once."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from noetl_contracts import codec
from noetl_contracts.spread import Spread
from noetl_storage.ports import Payloads
from noetl_worker.spark import executors, frame_schema, writing
from noetl_worker.spark.executors import Home, Refused
from noetl_worker.spark.writing import Manifest, Plan, Written

_FOLDER = "tables"


class Parts(WriterCommitMessage):
    """What one task has written."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests


class TableWriter(DataSourceArrowWriter):
    """Writes each task's rows as parts, and the table's name when all of them are there."""

    def __init__(self, home: Home, name: str, schema: StructType, *, is_parquet: bool) -> None:
        format_: writing.Format = "parquet" if is_parquet else "arrow"
        self._plan = Plan(home=home, format=format_, inline_bytes_max=0)
        self._name = name
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parts:
        """Write a task's rows; raises `Refused`."""
        return Parts(list(Written(self._plan).parts(iterator)))

    def commit(self, messages: list[Any]) -> None:
        """Give the parts their name; raises `Refused` when it is another table's."""
        manifests = [one for message in messages if message for one in message.manifests]
        columns = self._schema.names
        if manifests:
            found = writing.spread_of(manifests, self._plan, columns)
        else:
            schema = writing.schema_text(frame_schema.arrow_schema(self._schema))
            found = Spread(row_count=0, payload_bytes=0, schema=schema, columns=columns, parts=[])
        data = codec.encode(found)
        before = _with_name(self._plan.home, self._name, data)
        if before is not None and before != data:
            text = f"the table {self._name!r} is there already: tables are written once"
            raise Refused("validation", text)

    def abort(self, messages: list[Any]) -> None:
        """Leave the parts: nothing names them."""


def _with_name(home: Home, name: str, data: bytes) -> bytes | None:
    async def put(payloads: Payloads) -> bytes | None:
        return await payloads.put_named(
            f"{_FOLDER}/{name}",
            data,
            tenant_id=home.tenant_id,
            organization_id=home.organization_id,
        )

    return executors.with_store(home, put)


def find(home: Home, name: str) -> Spread:
    """Return the parts of a named table; raises `Refused`."""

    async def get(payloads: Payloads) -> bytes | None:
        return await payloads.find_named(
            f"{_FOLDER}/{name}", tenant_id=home.tenant_id, organization_id=home.organization_id
        )

    data = executors.with_store(home, get)
    if data is None:
        raise Refused("not_found", f"there is no table named {name!r}")
    try:
        return codec.decode_as(data, Spread)
    except msgspec.ValidationError as problem:
        raise Refused("parse", f"the table {name!r} cannot be read: {problem}") from problem
