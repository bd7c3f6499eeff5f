"""Decodes the bytes of artifacts and files to values, and encodes values to bytes."""

import binascii
import io
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, JSON_MEDIA_TYPE
from noetl_storage.arrow import arrow_values, encoding, row_tables, table_schema
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE, PayloadTooLarge, PayloadUnreadable
from noetl_storage.arrow.table_schema import SchemaMismatch
from noetl_storage.size_limits.bounded_tables import ParquetTable
from noetl_worker.domain.failures import ToolFailure, build_error, check_column_names
from noetl_worker.tools.tables import csv_table, file_tables

BYTES_MAX = 256 * 1024 * 1024
FORMATS = ("json", "ndjson", "csv", "parquet", "arrow", "text", "bytes")
COMPRESSIONS = ("gzip", "zstd")

Change = Callable[[bytes], bytes]

_TABLES = frozenset({"parquet", "arrow"})
_MEDIA_TYPE = {
    "json": JSON_MEDIA_TYPE,
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "parquet": PARQUET_MEDIA_TYPE,
    "arrow": ARROW_MEDIA_TYPE,
    "text": "text/plain",
    "bytes": "application/octet-stream",
}
_FORMAT_BY_SUFFIX = {
    **dict.fromkeys(("json", "ndjson", "csv", "parquet", "arrow"), ""),
    "jsonl": "ndjson",
    "txt": "text",
    "md": "text",
    "sql": "text",
    "yaml": "text",
    "yml": "text",
}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class Content(Struct, frozen=True, kw_only=True):
    """Bytes and what they are."""

    data: bytes
    media_type: str


def encode_content(
    value: Any, *, format_: Any, compression: Any, mask: Change | None = None
) -> Content:
    """Write a value; raises `ToolFailure` for one that the format cannot hold.

    `mask` changes what is written, before it is packed: of a table, its rows.
    """
    choice = _check_choice(format_, FORMATS, "format") or (
        "text" if isinstance(value, str) else "json"
    )
    compression_name = _check_choice(
        "gzip" if compression is True else compression, COMPRESSIONS, "compress"
    )
    try:
        if mask is not None and choice in _TABLES:
            value = codec.decode_json(mask(codec.encode_json(value)))
        data = _encode_value(value, choice)
    except SchemaMismatch as problem:
        raise ToolFailure(build_error("schema", str(problem), source="artifact")) from problem
    except (pa.ArrowException, ValueError, binascii.Error) as problem:
        text = f"the data cannot be written as {choice}: {problem}"
        raise ToolFailure(build_error("validation", text)) from problem
    if mask is not None and choice not in _TABLES:
        data = mask(data)
    check_size(len(data))
    media_type = _MEDIA_TYPE[choice]
    if compression_name is None:
        return Content(data=data, media_type=media_type)
    packed_data = encoding.compress_bytes(data, compression_name)  # type: ignore[arg-type]  # it was checked above
    return Content(data=packed_data, media_type=f"{media_type}+{compression_name}")


def _check_choice(value: Any, known_names: tuple[str, ...], field: str) -> str | None:
    if value in (None, "", "auto", "none", False):
        return None
    if value not in known_names:
        text = f"field '{field}' is {value!r:.40}: use one of {', '.join(known_names)}"
        raise ToolFailure(build_error("validation", text))
    return str(value)


def _encode_value(value: Any, format_: str) -> bytes:
    if format_ == "json":
        return codec.encode_json(value)
    if format_ == "text":
        return value.encode() if isinstance(value, str) else codec.encode_json(value)
    if format_ == "bytes":
        return b64decode(value, validate=True)
    row_table = row_tables.read_row_table(value)
    if row_table is None:
        raise ValueError("it is no list of mappings and no {columns, rows}")
    if format_ == "ndjson":
        return b"".join(codec.encode_json(row) + b"\n" for row in row_table.rows)
    table = row_tables.build_table(*row_table)
    if format_ != "csv":
        table_schema.check_portable(table, format_)
    return _encode_artifact_table(table, format_)


def _encode_artifact_table(table: pa.Table, format_: str) -> bytes:
    """Write a table as csv, parquet or arrow; nested columns of csv become JSON text."""
    sink = io.BytesIO()
    match format_:
        case "parquet":
            pyarrow.parquet.write_table(table, sink)
        case "csv":
            pyarrow.csv.write_csv(_flatten_columns(table), sink)
        case _:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    return sink.getvalue()


def _flatten_columns(table: pa.Table) -> pa.Table:
    """Turn columns that csv cannot hold into text, what is nested into JSON."""
    columns = {
        name: pa.array(
            [
                None
                if value is None
                else value
                if isinstance(value, str)
                else codec.encode_text(value)
                for value in arrow_values.column_to_values(column.combine_chunks())
            ],
            pa.string(),
        )
        if _is_foreign(column.type)
        else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(columns)


def _is_foreign(kind: pa.DataType) -> bool:
    """Tell whether CSV has no form for a type."""
    types = pa.types
    binaries = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    other_kinds = (types.is_nested, types.is_interval, types.is_duration, types.is_float16)
    return isinstance(kind, pa.BaseExtensionType) or any(
        is_kind(kind) for is_kind in (*binaries, *other_kinds)
    )


def decode_content(content: Content, *, format_: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """Read a value, and `{encoding: base64}` where it is bytes; raises `ToolFailure`."""
    choice = _check_choice(format_, FORMATS, "format")
    data = content.data
    if choice != "bytes":
        data = expand_content(data)
    known_names = choice or _find_format(content.media_type, name)
    try:
        return _decode_as(data, known_names)
    except PayloadTooLarge as problem:
        raise _build_too_large_failure(problem) from problem
    except (msgspec.DecodeError, UnicodeDecodeError, PayloadUnreadable, pa.ArrowException) as bad:
        if choice is None and known_names != "parquet":
            return _guess_content(data)
        text = f"{name} does not read as {known_names}: {bad}"
        raise ToolFailure(build_error("parse", text)) from bad


def expand_content(data: bytes) -> bytes:
    """Undo a compression that the first bytes tell of; raises `ToolFailure`."""
    compression = next(
        (compression for magic, compression in _MAGIC.items() if data.startswith(magic)), None
    )
    if compression is None:
        return data
    try:
        return encoding.expand_bytes(data, compression, bytes_max=BYTES_MAX)  # type: ignore[arg-type]  # both are
    except PayloadTooLarge as problem:
        raise _build_too_large_failure(problem) from problem
    except PayloadUnreadable as problem:
        raise ToolFailure(build_error("parse", str(problem))) from problem


def _build_too_large_failure(problem: PayloadTooLarge) -> ToolFailure:
    return ToolFailure(build_error("payload_too_large", str(problem), source="artifact"))


def _find_format(media_type: str, name: str) -> str | None:
    plain_type = media_type.partition("+")[0].partition(";")[0].strip().lower()
    if plain_type != _MEDIA_TYPE["bytes"]:
        for format_, media_types in _MEDIA_TYPE.items():
            if media_types == plain_type:
                return format_
        if plain_type.startswith("text/"):
            return "text"
    stem = name.partition("?")[0].removesuffix(".gz").removesuffix(".zst")
    suffix = stem.rpartition(".")[2].lower()
    file_format = _FORMAT_BY_SUFFIX.get(suffix)
    return None if file_format is None else file_format or suffix


def _decode_as(data: bytes, format_: str | None) -> tuple[Any, dict[str, Any]]:
    match format_:
        case "json":
            return codec.decode_exactly(data), {}
        case "ndjson":
            return [codec.decode_exactly(line) for line in data.splitlines() if line.strip()], {}
        case "text":
            return data.decode(), {}
        case "csv":
            table = csv_table.read_csv(lambda: io.BytesIO(data), len(data), bytes_max=BYTES_MAX)
            return _build_tabular(table), {}
        case "parquet":
            table = ParquetTable(pa.BufferReader(data), bytes_max=BYTES_MAX).read_table()
            return _build_tabular(table), {}
        case "arrow":
            return _build_tabular(encoding.read_table(data, bytes_max=BYTES_MAX)), {}
        case "bytes":
            return b64encode(data).decode(), {"encoding": "base64"}
    return _guess_content(data)


def _guess_content(data: bytes) -> tuple[Any, dict[str, Any]]:
    try:
        return codec.decode_exactly(data), {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        if b"\0" in data:
            return b64encode(data).decode(), {"encoding": "base64"}
    try:
        return data.decode(), {}
    except UnicodeDecodeError:
        return b64encode(data).decode(), {"encoding": "base64"}


def _build_tabular(table: pa.Table) -> dict[str, Any]:
    check_column_names(table.column_names, source="artifact", subject="the content")
    encoding.weigh_rows(table, bytes_max=BYTES_MAX)
    rows: list[dict[str, Any]] = []
    for batch in file_tables.iterate_batches(table):
        rows.extend(file_tables.build_rows(batch, [""] * batch.num_columns))
    return {
        "columns": table.column_names,
        "rows": rows,
        "row_count": len(rows),
        "types": table_schema.format_schema(table.schema),
    }


def check_size(size: int) -> None:
    """Refuse content that a worker cannot hold; raises `ToolFailure`."""
    if size > BYTES_MAX:
        raise ToolFailure(
            build_error(
                "payload_too_large",
                f"the content has {size} bytes, the limit is {BYTES_MAX}: split it, or move it "
                "with kind transfer or duckdb, which read files by pieces",
                source="artifact",
            )
        )
