"""The types of a data frame, in Spark's terms and in Arrow's."""

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from noetl_worker.spark.executors import Refused


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's types of Arrow's; a moment without a zone stays one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's types of Spark's; all may be null, as Arrow demands of the null type.

    Raises `Refused` for a column of a type that Arrow has none for.
    """
    fields = []
    for column in _nullable(schema):
        try:
            fields.extend(to_arrow_schema(StructType([column]), timezone="UTC"))
        except (PySparkException, ValueError) as problem:
            kind = column.dataType.simpleString()
            text = (
                f"column '{column.name}' of the result is {kind}, which cannot be stored: cast it"
            )
            raise Refused("schema", text) from problem
    return pa.schema(fields)


def _nullable(kind: Any) -> Any:
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, _nullable(one.dataType)) for one in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind
