"""Writes batches of rows as files of a dataset: by size, in a folder for each value."""

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
from msgspec import Struct

from noetl_contracts import codec
from noetl_playbook.model.datasets import DatasetSink
from noetl_storage.arrow import arrow_values
from noetl_storage.arrow.arrow_values import ValueWithoutJson
from noetl_worker.datasets import commit_log
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.problems import DatasetProblem

# Files that are written at the same time; of more values the least recent one is finished.
_OPEN_MAX = 64
# Files of one run of a task.
_FILES_MAX = 10_000
_BATCH_ROWS = 64 * 1024
# A row group of Parquet has at most about so many rows, and bytes before they are packed.
_GROUP_ROWS = 1024 * 1024
_GROUP_BYTES = 64 * 1024 * 1024
# Rows that all open files together keep in memory for their next row groups.
_HELD_BYTES_MAX = 128 * 1024 * 1024
_SUFFIXES = {"csv": {"gzip": "csv.gz", "zstd": "csv.zst"}, "ndjson": {"gzip": "ndjson.gz"}}
_PACKED_FORMATS = frozenset({"csv", "ndjson"})


class WriteScope(Struct, frozen=True, kw_only=True):
    """Whose files are written: the commit, its attempt, the task in it, and the task's own run."""

    root: str
    identity: str
    attempt: str
    task: int = 0
    run: int = 0


class DatasetWriter:
    """Writes the rows of one task; every method raises `DatasetProblem`, and blocks."""

    def __init__(
        self, store: OpenStore, sink: DatasetSink, scope: WriteScope, schema: pa.Schema
    ) -> None:
        self._store = store
        self._sink = sink
        self._scope = scope
        missing = [name for name in sink.partition_by if name not in schema.names]
        if missing:
            text = f"output.partition_by names '{missing[0]}', which is no column of the rows"
            raise DatasetProblem("validation", text)
        # A table of Iceberg has the columns of its partitions in its files.
        folders = () if sink.iceberg is not None else sink.partition_by
        self._schema = pa.schema([field for field in schema if field.name not in folders])
        if not self._schema.names:
            text = "output.partition_by names every column: no column is left for the files"
            raise DatasetProblem("validation", text)
        self._open: OrderedDict[tuple[str | None, ...], _OpenFile] = OrderedDict()
        self._files: list[DataFile] = []
        self._count = 0

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write some rows."""
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch.slice(start, _BATCH_ROWS)
            for values, rows in _split_by_values(part, self._sink.partition_by):
                self._write_rows(values, rows)

    def finish_files(self) -> list[DataFile]:
        """Finish all files, and describe them."""
        while self._open:
            self._finish_file(next(iter(self._open)))
        return self._files

    def _write_rows(self, values: tuple[str | None, ...], rows: pa.RecordBatch) -> None:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._finish_file(next(iter(self._open)))
            file = self._open[values] = self._open_file(values)
        self._open.move_to_end(values)
        with self._store.translate_errors(file.path):
            file.write_batch(rows.select(self._schema.names))
        if file.size_bytes >= self._sink.file_bytes:
            self._finish_file(values)
        self._limit_held()

    def _limit_held(self) -> None:
        """Write rows of the files that hold most, until all together hold few."""
        held_bytes = sum(item.held_bytes for item in self._open.values())
        while held_bytes > _HELD_BYTES_MAX:
            largest = max(self._open.values(), key=lambda open_file: open_file.held_bytes)
            held_bytes -= largest.held_bytes
            with self._store.translate_errors(largest.path):
                largest.write_held()

    def _open_file(self, values: tuple[str | None, ...]) -> "_OpenFile":
        sink, scope = self._sink, self._scope
        suffix = _SUFFIXES.get(sink.format, {}).get(sink.compression or "", sink.format)
        name = commit_log.build_file_name(
            scope.task, scope.identity, scope.attempt, scope.run * _FILES_MAX + self._count, suffix
        )
        self._count += 1
        if self._count >= _FILES_MAX:
            text = f"one task writes {_FILES_MAX} files: partition by columns of fewer values"
            raise DatasetProblem("limit", text)
        folders = dict(zip(sink.partition_by, values, strict=True))
        path = "".join(
            f"{commit_log.escape_value(key)}={commit_log.escape_value(text)}/"
            for key, text in folders.items()
        )
        key = f"{scope.root}/{path}{name}"
        raw = CountedFile(self._store.open_writer(key))
        return _OpenFile(
            path=f"{path}{name}", values=folders, raw=raw, sink=sink, schema=self._schema
        )

    def _finish_file(self, values: tuple[str | None, ...]) -> None:
        file = self._open.pop(values)
        with self._store.translate_errors(file.path):
            file.finish_file()
        self._files.append(
            DataFile(
                path=file.path,
                size_bytes=file.size_bytes,
                row_count=file.row_count,
                values=file.values,
            )
        )


class CountedFile(io.RawIOBase):
    """Counts the bytes that go into a writer of an object."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self.size_bytes = 0

    def writable(self) -> bool:
        """Say that it is written."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes on."""
        self._inner.write(bytes(data))
        self.size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.size_bytes

    def finish_object(self) -> None:
        """Make the object be there."""
        self._inner.close()


class _OpenFile:
    """A file that is being written."""

    def __init__(
        self,
        *,
        path: str,
        values: dict[str, str | None],
        raw: CountedFile,
        sink: DatasetSink,
        schema: pa.Schema,
    ) -> None:
        self.path = path
        self.values = values
        self.row_count = 0
        self._raw = raw
        packs = sink.format in _PACKED_FORMATS and sink.compression not in (None, "none")
        self._target: Any = pa.PythonFile(raw, mode="w")
        if packs:
            self._target = pa.CompressedOutputStream(self._target, str(sink.compression))
        self._writer = _WRITERS[sink.format](self._target, schema, sink)

    @property
    def size_bytes(self) -> int:
        """Return how many bytes have been written."""
        return self._raw.size_bytes

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of rows wait for more of them."""
        writer = self._writer
        return writer.held_bytes if isinstance(writer, _ParquetWriter) else 0

    def write_held(self) -> None:
        """Write the rows that wait."""
        assert isinstance(self._writer, _ParquetWriter), "no other writer holds rows"
        self._writer.write_group()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write some rows."""
        self._writer.write(batch)
        self.row_count += batch.num_rows

    def finish_file(self) -> None:
        """Write what is left, and make the file be there."""
        self._writer.close()
        if not self._target.closed:
            self._target.close()
        self._raw.finish_object()


class _ParquetWriter:
    def __init__(self, target: Any, schema: pa.Schema, sink: DatasetSink) -> None:
        compression = sink.compression or "zstd"
        self._writer = pa.parquet.ParquetWriter(target, schema, compression=compression)
        self._bytes_max = min(_GROUP_BYTES, sink.file_bytes)
        self._held_batches: list[pa.RecordBatch] = []
        self._rows = self.held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write groups of about the same number of rows."""
        self._held_batches.append(batch)
        self._rows += batch.num_rows
        self.held_bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self.held_bytes >= self._bytes_max:
            self.write_group()

    def close(self) -> None:
        self.write_group()
        self._writer.close()

    def write_group(self) -> None:
        """Write what is held as one group."""
        if self._held_batches:
            self._writer.write_table(pa.Table.from_batches(self._held_batches))
            self._held_batches, self._rows, self.held_bytes = [], 0, 0


class _NdjsonWriter:
    def __init__(self, target: Any, schema: pa.Schema, _: DatasetSink) -> None:
        self._target = target
        self._kinds = [""] * len(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a mapping a line; raises `DatasetProblem`."""
        try:
            rows = arrow_values.batch_to_rows(batch, self._kinds)
        except ValueWithoutJson as problem:
            raise DatasetProblem("schema", str(problem)) from problem
        self._target.write(b"".join(codec.encode_json(row) + b"\n" for row in rows))

    def close(self) -> None:
        """Nothing is held."""


def _open_csv(target: Any, schema: pa.Schema, sink: DatasetSink) -> Any:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        text = f"column '{nested[0]}' is nested, which csv cannot hold: write parquet or ndjson"
        raise DatasetProblem("schema", text)
    options = pyarrow.csv.WriteOptions(
        include_header=sink.csv.header, delimiter=sink.csv.delimiter, quoting_style="needed"
    )
    return pyarrow.csv.CSVWriter(target, schema, write_options=options)


def _open_arrow(target: Any, schema: pa.Schema, sink: DatasetSink) -> Any:
    compression = sink.compression if sink.compression in ("zstd", "lz4") else None
    return pa.ipc.new_file(target, schema, options=pa.ipc.IpcWriteOptions(compression=compression))


_ORC_NAMES = {"gzip": "zlib", "none": "uncompressed"}


class _OrcWriter:
    def __init__(self, target: Any, _: pa.Schema, sink: DatasetSink) -> None:
        compression = sink.compression or "zstd"
        self._writer = pa.orc.ORCWriter(
            target,
            compression=_ORC_NAMES.get(compression, compression),
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Write some rows."""
        self._writer.write(pa.Table.from_batches([batch]))

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


_WRITERS: dict[str, Callable[[Any, pa.Schema, DatasetSink], Any]] = {
    "parquet": _ParquetWriter,
    "csv": _open_csv,
    "ndjson": _NdjsonWriter,
    "orc": _OrcWriter,
    "arrow": _open_arrow,
}


def _split_by_values(
    batch: pa.RecordBatch, columns: tuple[str, ...]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Split rows into those of equal values of some columns, which are given as texts."""
    if not columns:
        if batch.num_rows:
            yield (), batch
        return
    texts = [_write_texts(batch, name).dictionary_encode("encode") for name in columns]
    codes = texts[0].indices
    for other in texts[1:]:
        codes = (
            pc.add(
                pc.multiply(codes.cast(pa.int64()), len(other.dictionary)),
                other.indices.cast(pa.int64()),
            )
            .dictionary_encode()
            .indices
        )
    # The sort is stable: rows of equal values stay in their order.
    order = pc.sort_indices(codes)
    runs = pc.run_end_encode(codes.take(order))
    start = 0
    for end in runs.run_ends.to_pylist():
        rows = order.slice(start, end - start)
        first = rows[0].as_py()
        yield tuple(text[first].as_py() for text in texts), batch.take(rows)
        start = end


def _write_texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(batch.schema.get_field_index(name))
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
        text = f"output.partition_by: column '{name}' is {kind}, which names no folder: cast it"
        raise DatasetProblem("schema", text)
    texts = column.cast(pa.string())
    if pc.any(pc.equal(texts, "")).as_py():
        text = (
            f"output.partition_by: column '{name}' holds an empty text, which no folder tells from "
            "null: give it another value, or null"
        )
        raise DatasetProblem("schema", text)
    return texts
