"""Rows of an upsert: read from the files that tasks have written, and held to their key."""

import pyarrow as pa
import pyarrow.compute as pc

from noetl_playbook.model.datasets import DatasetSource
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.file_rows import FilePiece, FileReader
from noetl_worker.datasets.problems import DatasetProblem

BYTES_MAX = 1024 * 1024 * 1024
# No name of a column of a table begins so.
_PLACE = "\0place"


def read_written(
    store: OpenStore,
    files: list[DataFile],
    schema: pa.Schema,
    *,
    root: str,
    shown_path: str,
    keeps_folders: bool = False,
) -> pa.Table:
    """Read files into memory; raises `DatasetProblem` for more than `BYTES_MAX`.

    With `keeps_folders` the files hold the columns of their folders too.
    """
    reader = FileReader(store, DatasetSource(path=root, format="parquet"), "parquet")
    batches: list[pa.RecordBatch] = []
    size = 0
    for item in files:
        file = DataFile(
            path=f"{root}/{item.path}",
            size_bytes=item.size_bytes,
            values={} if keeps_folders else item.values,
        )
        for batch in reader.iterate_batches(FilePiece(file=file), schema, Rejects()):
            batches.append(batch)
            size += batch.nbytes
            if size > BYTES_MAX:
                text = (
                    f"{shown_path}: an upsert of more than {BYTES_MAX} bytes: upsert fewer "
                    "rows at a time, or overwrite the partitions that they are of"
                )
                raise DatasetProblem("payload_too_large", text)
    return pa.Table.from_batches(batches, schema=schema)


def check_unique_keys(rows: pa.Table, key: tuple[str, ...], shown_path: str) -> None:
    """Refuse rows of which two have one key, or one has none; raises `DatasetProblem`."""
    missing_columns = [name for name in key if name not in rows.column_names]
    if missing_columns:
        text = f"output.key names '{missing_columns[0]}', which is no column of the rows"
        raise DatasetProblem("validation", text)
    for name in key:
        if rows[name].null_count:
            text = (
                f"{shown_path}: column '{name}' of the key is null in {rows[name].null_count} rows"
            )
            raise DatasetProblem("schema", text)
    key_counts = rows.group_by(list(key)).aggregate([([], "count_all")])
    repeated_keys = key_counts.filter(pc.greater(key_counts["count_all"], 1))
    if repeated_keys.num_rows:
        shown_key = {name: str(repeated_keys[name][0].as_py()) for name in key}
        text = (
            f"{shown_path}: {repeated_keys.num_rows} keys are in several rows, as {shown_key}: "
            "an upsert takes one row a key"
        )
        raise DatasetProblem("schema", text)


def find_other_places(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """Return the places of the rows that have none of the keys, in order."""
    own_keys = rows.select(keys.column_names)
    numbered = own_keys.append_column(_PLACE, pa.array(range(len(rows)), pa.int64()))
    new_keys = keys.cast(own_keys.schema)
    others = numbered.join(new_keys, keys=keys.column_names, join_type="left anti")
    places = others[_PLACE].combine_chunks()
    return places.take(pc.sort_indices(places))
