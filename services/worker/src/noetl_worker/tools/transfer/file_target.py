"""Rows out of files and into them, a window at a time; every function here blocks."""

import csv
import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet

from noetl_contracts import codec
from noetl_storage.arrow import row_tables, table_schema
from noetl_storage.arrow.table_schema import Kinds
from noetl_worker.datasets import csv_rows
from noetl_worker.domain import text_values
from noetl_worker.domain.failures import (
    ToolFailure,
    build_error,
    check_column_names,
    classify_file_error,
)
from noetl_worker.tools.tables import chunk_types, file_tables, transfer_rows
from noetl_worker.tools.tables.transfer_rows import RowWindow

FORMATS = ("csv", "json", "ndjson", "parquet")
_APPENDABLE = frozenset({"csv", "ndjson"})
_REASON_CHARACTERS = 500
# PostgreSQL has names of 63 bytes, other databases of 128.
_NAME_CHARACTERS_MAX = 10_000


def check_format(format_: str) -> str:
    """Refuse a format that rows cannot be moved in; raises `ToolFailure`."""
    if format_ not in FORMATS:
        text = f"format {format_!r:.40} is not known: use {', '.join(FORMATS)}"
        raise ToolFailure(build_error("config", text, source="transfer"))
    return format_


def iterate_file_windows(path: Path, format_: str, *, size: int) -> Iterator[RowWindow]:
    """Read a file some rows at a time; raises `ToolFailure`."""
    try:
        yield from _iterate_windows(path, check_format(format_), size)
    except (pa.ArrowException, csv.Error, ValueError) as problem:
        raise build_unread_failure(path, format_, problem) from problem
    except OSError as problem:
        # Arrow says so of bytes as well, without a number.
        if problem.errno is None:
            raise build_unread_failure(path, format_, problem) from problem
        raise ToolFailure(classify_file_error(problem, path.name, source="transfer")) from problem


def build_unread_failure(path: Path, format_: str, problem: Exception) -> ToolFailure:
    """Say that a file's bytes are not of its format."""
    text = f"the file {path.name!r} does not read as {format_}: {str(problem)[:_REASON_CHARACTERS]}"
    return ToolFailure(build_error("parse", text, source="transfer"))


@contextmanager
def _translate_file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise ToolFailure(classify_file_error(problem, path.name, source="transfer")) from problem


def _iterate_windows(path: Path, format_: str, size: int) -> Iterator[RowWindow]:
    if format_ == "parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            kinds = {field.name: field.type for field in file.schema_arrow}
            _check_header(file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=size):
                rows = file_tables.build_rows(batch, [""] * batch.num_columns)
                yield RowWindow(rows=rows, columns=tuple(batch.schema.names), kinds=kinds)
        return
    if format_ == "csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            csv_rows.allow_long_values()
            reader = csv.DictReader(file, strict=True)
            _check_header(reader.fieldnames or ())
            while rows := [_parse_csv_row(row) for row in islice(reader, size)]:
                yield RowWindow(rows=rows, columns=tuple(reader.fieldnames or ()))
        return
    if format_ == "ndjson":
        with path.open("rb") as lines:
            values = (_check_mapping(codec.decode_exactly(line)) for line in lines if line.strip())
            while rows := list(islice(values, size)):
                yield RowWindow(rows=rows)
        return
    row_table = row_tables.read_row_table(codec.decode_exactly(path.read_bytes()))
    if row_table is None:
        raise ValueError("it holds no list of mappings")
    columns = None if row_table.columns is None else tuple(row_table.columns)
    for start in range(0, len(row_table.rows), size):
        rows = row_table.rows[start : start + size]
        yield RowWindow(rows=rows, columns=columns, kinds=row_table.kinds)


def _check_header(names: Sequence[str]) -> None:
    """Refuse a header that is none: an endless line without a delimiter names one column.

    Columns of one name are refused, too: a row would hold the values of the last of them alone.
    """
    longest = max(map(len, names), default=0)
    if longest > _NAME_CHARACTERS_MAX:
        raise ValueError(f"the header names a column of {longest} characters")
    check_column_names(names, source="transfer", subject="the file")


def _check_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a line is no mapping")  # noqa: TRY004 - it is what the file says
    return value


def _parse_csv_row(row: dict[Any, Any]) -> dict[str, Any]:
    """Read an empty field as null; more fields than names are a fault."""
    if None in row:
        raise ValueError("a line has more fields than the first one names")
    return {name: value or None for name, value in row.items()}


def _read_header(path: Path) -> list[str] | None:
    """Read the names of a file's columns, None of an empty one; raises `ToolFailure`."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            csv_rows.allow_long_values()
            names = next(csv.reader(file), None)
            _check_header(names or ())
        except (ValueError, csv.Error) as problem:
            raise build_unread_failure(path, "csv", problem) from problem
    return names


class FileTarget:
    """A file that gets its name when every row is in it."""

    def __init__(self, path: Path, *, format_: str, mode: str) -> None:
        self._path = path
        self._format = check_format(format_)
        self._mode = mode
        self._staging_path: Path | None = None
        self._file: IO[bytes] | None = None
        self._parquet: pyarrow.parquet.ParquetWriter | None = None
        self._names: list[str] | None = None
        self._count = 0

    def open_target(self) -> None:
        """Begin a file beside the place of the target; raises `ToolFailure`."""
        with _translate_file_errors(self._path):
            exists = self._mode == "append" and self._path.exists()
            if self._mode == "upsert" or (exists and self._format not in _APPENDABLE):
                text = f"mode {self._mode} cannot change a {self._format} file: use mode: replace"
                raise ToolFailure(build_error("config", text, source="transfer"))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._begin_file(is_continued=exists)

    def _begin_file(self, *, is_continued: bool) -> None:
        with tempfile.NamedTemporaryFile(
            dir=self._path.parent, prefix=".writing-", delete=False
        ) as staging_file:
            self._staging_path = Path(staging_file.name)
        if is_continued:
            shutil.copyfile(self._path, self._staging_path)
            if self._format == "csv":
                self._names = _read_header(self._path)
        self._file = self._staging_path.open("ab")

    def write_chunk(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Add a chunk; raises `ToolFailure` when its rows do not fit those before."""
        assert self._file is not None, "open comes first"
        with _translate_file_errors(self._path):
            match self._format:
                case "parquet":
                    self._write_parquet(rows, kinds)
                case "csv":
                    self._file.write(self._encode_csv(rows))
                case "ndjson":
                    self._file.write(b"".join(codec.encode_json(row) + b"\n" for row in rows))
                case _:
                    texts = b",\n".join(codec.encode_json(row) for row in rows)
                    self._file.write((b",\n" if self._count else b"[") + texts)
        self._count += len(rows)
        return len(rows)

    @property
    def takes_columns(self) -> bool:
        """Tell whether its format is one of columns."""
        return self._format == "parquet"

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch of columns, all with the schema of the first; raises `ToolFailure`."""
        assert self._file is not None, "open comes first"
        with _translate_file_errors(self._path):
            if self._parquet is None:
                self._parquet = pyarrow.parquet.ParquetWriter(self._file, batch.schema)
            if batch.num_rows:
                self._parquet.write_batch(batch)
        self._count += batch.num_rows

    def _encode_csv(self, rows: list[dict[str, Any]]) -> bytes:
        columns = transfer_rows.list_columns(rows)
        sink = io.StringIO(newline="")
        if self._names is None:
            self._names = columns
            csv.writer(sink).writerow(columns)
        for name in columns:
            if name not in self._names:
                raise transfer_rows.build_unknown_failure("column of the file", name, self._names)
        writer = csv.writer(sink)
        writer.writerows(
            [text_values.format_optional_text(row.get(name)) for name in self._names]
            for row in rows
        )
        return sink.getvalue().encode()

    def _write_parquet(self, rows: list[dict[str, Any]], kinds: Kinds) -> None:
        table = (
            row_tables.build_table(rows, None, kinds)
            if self._parquet is None
            else chunk_types.build_later_chunk(
                rows,
                kinds,
                self._parquet.schema,
                advice="use a larger chunk_size, or format ndjson",
            )
        )
        table_schema.check_portable(table, "parquet")
        if self._parquet is None:
            self._parquet = pyarrow.parquet.ParquetWriter(self._file, table.schema)
        self._parquet.write_table(table)

    def finish_file(self) -> None:
        """Write the end of the file; raises `ToolFailure`."""
        assert self._file is not None, "open comes first"
        with _translate_file_errors(self._path):
            if self._format == "json":
                self._file.write(b"]\n" if self._count else b"[]\n")
            if self._format == "parquet" and self._parquet is None:
                self._parquet = pyarrow.parquet.ParquetWriter(self._file, pa.schema([]))
            if self._parquet is not None:
                self._parquet.close()
            self._file.close()

    def publish_file(self) -> None:
        """Give the finished file its name; it hardly blocks. Raises `ToolFailure`."""
        assert self._staging_path is not None, "finish comes first"
        with _translate_file_errors(self._path):
            self._staging_path.replace(self._path)
        self._staging_path = None

    @property
    def is_staged(self) -> bool:
        """Tell whether there is a file that has no name yet."""
        return self._staging_path is not None

    def discard_file(self) -> None:
        """Remove what was begun and not finished."""
        # Closing Parquet writes the end of the file, so it closes before the file, which may have
        # bytes left to write as well. A full disk here is not reported: the caller has given up.
        with suppress(OSError, pa.ArrowException):
            if self._parquet is not None:
                self._parquet.close()
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        if self._staging_path is not None:
            self._staging_path.unlink(missing_ok=True)
