"""Tables that Spark stores under a name: schemas in Spark and Arrow, parts, and their manifest."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from noetl_contracts import codec
from noetl_contracts.spread_table import SpreadTable
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.spark.tables import part_writer, store_access
from noetl_worker.spark.tables.part_writer import FrameWriter, PartManifest, WritePlan
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress


def build_spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's types of Arrow's; a moment without a zone stays one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def build_arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's types of Spark's; all may be null, as Arrow demands of the null type.

    Raises `SparkRefusal` for a column of a type that Arrow has none for.
    """
    fields = []
    for column in _make_nullable(schema):
        try:
            fields.extend(to_arrow_schema(StructType([column]), timezone="UTC"))
        except (PySparkException, ValueError) as problem:
            kind = column.dataType.simpleString()
            text = (
                f"column '{column.name}' of the result is {kind}, which cannot be stored: cast it"
            )
            raise SparkRefusal("schema", text) from problem
    return pa.schema(fields)


def _make_nullable(kind: Any) -> Any:
    if isinstance(kind, StructType):
        return StructType(
            [
                StructField(struct_field.name, _make_nullable(struct_field.dataType))
                for struct_field in kind
            ]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_make_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_make_nullable(kind.keyType), _make_nullable(kind.valueType))
    return kind


_FOLDER = "tables"


class PartsMessage(WriterCommitMessage):
    """What one task has written."""

    def __init__(self, manifests: list[PartManifest]) -> None:
        self.manifests = manifests


class TableWriter(DataSourceArrowWriter):
    """Writes each task's rows as parts, and the table's name when all of them are there."""

    def __init__(
        self, home: StoreAddress, name: str, schema: StructType, *, is_parquet: bool
    ) -> None:
        format_: part_writer.Format = "parquet" if is_parquet else "arrow"
        self._plan = WritePlan(home=home, format=format_, inline_bytes_max=0)
        self._name = name
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartsMessage:
        """Write a task's rows; raises `SparkRefusal`."""
        return PartsMessage(list(FrameWriter(self._plan).write_parts(iterator)))

    def commit(self, messages: list[Any]) -> None:
        """Give the parts their name; raises `SparkRefusal` when it is another table's."""
        manifests = [manifest for message in messages if message for manifest in message.manifests]
        columns = self._schema.names
        if manifests:
            spread_table = part_writer.build_spread(manifests, self._plan, columns)
        else:
            schema = part_writer.encode_schema(build_arrow_schema(self._schema))
            spread_table = SpreadTable(
                row_count=0, payload_bytes=0, schema=schema, columns=columns, parts=[]
            )
        data = codec.encode_json(spread_table)
        before = _write_once(self._plan.home, self._name, data)
        if before is not None and before != data:
            text = f"the table {self._name!r} is there already: tables are written once"
            raise SparkRefusal("validation", text)

    def abort(self, messages: list[Any]) -> None:
        """Leave the parts: nothing names them."""


def _write_once(home: StoreAddress, name: str, data: bytes) -> bytes | None:
    """Write the list of a table's parts under its name, or return what has the name already."""

    async def put_object(payloads: Payloads) -> bytes | None:
        return await payloads.put_named(
            f"{_FOLDER}/{name}",
            data,
            tenant_id=home.tenant_id,
            organization_id=home.organization_id,
        )

    return store_access.run_with_store(home, put_object)


def find_named_table(home: StoreAddress, name: str) -> SpreadTable:
    """Return the parts of a named table; raises `SparkRefusal`."""

    async def read_object(payloads: Payloads) -> bytes | None:
        return await payloads.find_named(
            f"{_FOLDER}/{name}", tenant_id=home.tenant_id, organization_id=home.organization_id
        )

    data = store_access.run_with_store(home, read_object)
    if data is None:
        raise SparkRefusal("not_found", f"there is no table named {name!r}")
    try:
        return codec.decode_as(data, SpreadTable)
    except msgspec.ValidationError as problem:
        raise SparkRefusal("parse", f"the table {name!r} cannot be read: {problem}") from problem
