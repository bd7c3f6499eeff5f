"""Upserts into Iceberg: files that hold rows of the keys are written again without these rows.

pyiceberg's own upsert compares rows in Python, one by one: a minute for a million of them.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.io.pyarrow import ArrowScan, parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import Table, TableProperties

# No name of a column of a table begins so.
_PLACE = "\0place"
# Their signatures are those of models, which name every argument.
_AT_LEAST: Any = GreaterThanOrEqual
_AT_MOST: Any = LessThanOrEqual


def copy_other_rows(
    table: Table, keys: pa.Table, write_batch: Callable[[pa.RecordBatch], None]
) -> list[TableFile]:
    """Write the rows of those files that hold some of the keys, without these; return the files.

    The files are read one after another, each whole.
    """
    reader = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    replaced_files = []
    for task in table.scan(row_filter=_build_range(keys)).plan_files():
        rows = reader.to_table([task])
        places = _find_other_places(rows, keys)
        if len(places) == len(rows):
            continue
        replaced_files.append(task.file)
        for batch in rows.take(places).cast(schema).combine_chunks().to_batches():
            write_batch(batch)
    return replaced_files


def replace_files(
    table: Table, replaced_files: list[TableFile], paths: list[str], mark: dict[str, str]
) -> None:
    """Put files in the place of others, in one snapshot that carries a mark."""
    with table.transaction() as transaction:
        metadata = transaction.table_metadata
        if metadata.name_mapping() is None:
            # Our files have no ids of columns.
            mapping = metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        with transaction.update_snapshot(snapshot_properties=mark).overwrite() as overwrite:
            for file in replaced_files:
                overwrite.delete_data_file(file)
            for path in paths:
                overwrite.append_data_file(parquet_file_to_data_file(table.io, metadata, path))


def _find_other_places(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """Return the places of the rows that have none of the keys, in order."""
    own_keys = rows.select(keys.column_names)
    numbered = own_keys.append_column(_PLACE, pa.array(range(len(rows)), pa.int64()))
    new_keys = keys.cast(own_keys.schema)
    others = numbered.join(new_keys, keys=keys.column_names, join_type="left anti")
    places = others[_PLACE].combine_chunks()
    return places.take(pc.sort_indices(places))


def _build_range(keys: pa.Table) -> BooleanExpression:
    """Return a condition that leaves out files whose statistics show other keys."""
    condition: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        kind = keys.schema.field(name).type
        if pa.types.is_integer(kind) or pa.types.is_string(kind):
            bounds = pc.min_max(keys[name]).as_py()
            lower, upper = _AT_LEAST(name, bounds["min"]), _AT_MOST(name, bounds["max"])
            condition = And(condition, And(lower, upper))
    return condition
