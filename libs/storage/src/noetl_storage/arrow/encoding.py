"""Payload bytes and the values that they hold: JSON or a table, perhaps compressed.

The first bytes of a result payload give its form, so that the digest alone is enough to read it.
The digest of a reference is that of the stored bytes.
"""

from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from noetl_contracts import codec
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, JSON_MEDIA_TYPE, PARQUET_MEDIA_TYPE
from noetl_storage.arrow import arrow_values, json_columns, table_schema
from noetl_storage.arrow.table_schema import Kinds, SchemaMismatch
from noetl_storage.size_limits import bounded_tables, ipc_messages, row_size
from noetl_storage.size_limits.bounded_tables import (
    ARROW,
    PACKINGS,
    PARQUET,
    Compression,
    ParquetTable,
    refuse_broken_bytes,
)
from noetl_storage.size_limits.refusals import (
    DECODED_BYTES_MAX,
    PayloadTooLarge,
    PayloadUnreadable,
    build_too_large_error,
)

__all__ = ["PACKINGS", "PARQUET_MEDIA_TYPE", "Compression", "PayloadTooLarge", "PayloadUnreadable"]

TableFormat = Literal["arrow", "parquet"]

MAGIC_BYTES_MAX = 4
_KEYS_MARK, _PATH_MARK, _SHAPE_MARK, _JSON_MARK = (
    b"noetl.kept",
    b"noetl.path",
    b"noetl.shape",
    b"noetl.json",
)
# Of a column that is stored as another type than its own.
_TYPE = b"noetl.type"
_INTEGERS = range(-(2**63), 2**63)
# Before an Arrow message stand its mark and the length of its description.
_MESSAGE_START_BYTES = 8


def compress_bytes(data: bytes, compression: Compression) -> bytes:
    """Compress bytes."""
    compressed: bytes = pa.compress(data, codec=compression, asbytes=True)
    return compressed


def expand_bytes(
    data: bytes, compression: Compression, *, bytes_max: int = DECODED_BYTES_MAX
) -> bytes:
    """Undo `compress_bytes`, up to a length; raises `PayloadUnreadable`, and `PayloadTooLarge`."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), compression) as stream:
            expanded: bytes = stream.read(bytes_max + 1)
    except bounded_tables.BROKEN as failure:
        raise PayloadUnreadable(
            f"a payload does not decompress as {compression}: {failure}"
        ) from failure
    if len(expanded) > bytes_max:
        raise build_too_large_error(
            f"a payload of {len(data)} bytes, packed as {compression},", len(expanded), bytes_max
        )
    return expanded


def decode_payload(data: bytes, *, bytes_max: int = DECODED_BYTES_MAX) -> Any:
    """Return the value of a result payload of any form; raises `PayloadUnreadable`.

    What takes more than the bound, unpacked, raises `PayloadTooLarge`; JSON that is damaged raises
    `msgspec.DecodeError`, as before it was ever compressed.
    """
    for magic, compression in PACKINGS:
        if data.startswith(magic):
            data = expand_bytes(data, compression, bytes_max=bytes_max)
            break
    if data.startswith((PARQUET, ARROW)):
        return _decode_table(data, bytes_max=bytes_max)
    return codec.decode_json(data)


def get_media_type(format_: TableFormat | None) -> str:
    """Name the media type of a form; None is JSON."""
    if format_ is None:
        return JSON_MEDIA_TYPE
    return ARROW_MEDIA_TYPE if format_ == "arrow" else PARQUET_MEDIA_TYPE


def encode_table(result: Any, path: tuple[str, ...], *, format_: TableFormat) -> bytes | None:
    """Write a value whose rows stand at a path as a table; None when its rows are not even.

    Everything besides the rows travels in the table's metadata. Reading gives the same value.
    """
    raw = result
    for key in path:
        raw = raw[key]
    columns, shape = _build_columns(raw)
    if columns is None:
        return None
    arrays, fields = [], []
    kinds = _read_kinds(raw)
    for name, values in columns.items():
        array, about = _build_array(name, values, kinds.get(name), format_)
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=about))
    about = {
        _KEYS_MARK: codec.encode_json(_replace_at_path(result, path, {**raw, "rows": []})),
        _PATH_MARK: codec.encode_json(path),
        _SHAPE_MARK: shape.encode(),
    }
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=about))
    return _write_table(table, format_)


def _build_columns(raw: Any) -> tuple[dict[str, list[Any]] | None, str]:
    """Turn rows into columns when every row has the same names in the same order."""
    rows, names = raw.get("rows"), raw.get("columns")
    if not isinstance(rows, list) or not rows:
        return None, ""
    if all(type(row) is dict for row in rows):
        order = list(rows[0])
        if not order or any(list(row) != order for row in rows):
            return None, ""
        return {name: [row[name] for row in rows] for name in order}, "mappings"
    if not isinstance(names, list) or not names or len(set(map(str, names))) != len(names):
        return None, ""
    if not all(type(row) is list and len(row) == len(names) for row in rows):
        return None, ""
    return {str(name): [row[i] for row in rows] for i, name in enumerate(names)}, "lists"


def _read_kinds(raw: Any) -> Kinds:
    """Return the types of a table's columns where it has such; a loop's list has none."""
    names, types = raw.get("columns"), raw.get("types")
    if not isinstance(names, list) or not isinstance(types, list):
        return {}
    try:
        return table_schema.parse_column_kinds([str(name) for name in names], types)
    except SchemaMismatch:
        # It is a result that has a field of this name, and says something else with it.
        return {}


def _build_array(
    name: str, values: list[Any], kind: pa.DataType | None, format_: TableFormat
) -> tuple[Any, dict[bytes, bytes] | None]:
    """Build a column, and what is said of it: of its own type if its values read back equal.

    Else it is typed when all values are of one scalar type, and JSON text when they are not.
    """
    if kind is not None and not pa.types.is_string(kind):
        exact = _build_exact_array(name, values, kind, format_)
        if exact is not None:
            return exact, None
    array, is_json = _build_array_by_values(values)
    about = {_JSON_MARK: b"1"} if is_json else {}
    if kind is not None and not pa.types.is_string(kind):
        about[_TYPE] = table_schema.format_arrow_type(kind).encode()
    return array, about or None


def _build_exact_array(
    name: str, values: list[Any], kind: pa.DataType, format_: TableFormat
) -> pa.Array | None:
    try:
        array = json_columns.build_column(name, values, kind)
        table_schema.check_portable(pa.table({name: array}), format_)
        return array if arrow_values.column_to_values(array) == values else None
    except (SchemaMismatch, ValueError, ArithmeticError):
        return None


def _build_array_by_values(values: list[Any]) -> tuple[Any, bool]:
    kinds = {type(value) for value in values} - {type(None)}
    type_by_class = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.large_string()}
    if len(kinds) == 1 and (kind := kinds.pop()) in type_by_class:
        fits = kind is not int or all(value is None or value in _INTEGERS for value in values)
        if fits:
            return pa.array(values, type_by_class[kind]), False
    texts = [None if value is None else codec.encode_json(value).decode() for value in values]
    return pa.array(texts, pa.large_string()), True


def _write_table(table: Any, format_: TableFormat) -> bytes:
    sink = pa.BufferOutputStream()
    if format_ == "parquet":
        pyarrow.parquet.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_table(data: bytes, *, bytes_max: int = DECODED_BYTES_MAX) -> Any:
    """Read a table from Arrow or Parquet bytes; raises `PayloadUnreadable`, `PayloadTooLarge`.

    The bound is that of the table. Its rows, as values, may take more: `weigh_rows` tells.
    """
    return bounded_tables.open_table(data, bytes_max=bytes_max).read_table()


def weigh_rows(table: Any, *, bytes_max: int = DECODED_BYTES_MAX) -> int:
    """Return about what the rows of a table take as values; raises `PayloadTooLarge`."""
    with refuse_broken_bytes():
        return row_size.check_row_size(table, bytes_max=bytes_max)


def digest_schema(schema: Any) -> str:
    """Fingerprint a schema, so that a reader may compare it without reading rows."""
    return codec.digest_hex(schema.serialize().to_pybytes())


def find_schema_digest(data: bytes) -> str | None:
    """Return the digest of the schema of a stored table, or None when the bytes are none."""
    if not data.startswith((PARQUET, ARROW)):
        return None
    return digest_schema(bounded_tables.open_table(data, bytes_max=DECODED_BYTES_MAX).schema)


def find_schema(head: bytes) -> Any | None:
    """Return the schema that an Arrow stream begins with; None while `head` lacks a part of it.

    The stream may be compressed. Raises `PayloadUnreadable` for what is no Arrow stream, and
    `PayloadTooLarge`.
    """
    start = _expand_head(head, _MESSAGE_START_BYTES)
    if start is None:
        return None
    length = int.from_bytes(start[len(ARROW) :], "little", signed=True)
    if not start.startswith(ARROW) or length <= 0:
        raise PayloadUnreadable("a payload does not begin with the schema of an Arrow stream")
    if length > ipc_messages.DESCRIBED_BYTES_MIN:
        bound = ipc_messages.DESCRIBED_BYTES_MIN
        raise build_too_large_error("the schema of a table", length, bound)
    message = _expand_head(head, _MESSAGE_START_BYTES + length)
    if message is None:
        return None
    with refuse_broken_bytes():
        ipc_messages.check_schema_size(message, bytes_max=ipc_messages.DESCRIBED_BYTES_MIN)
        return pa.ipc.read_schema(pa.BufferReader(message))


def find_footer_schema(tail: bytes) -> Any:
    """Return the schema that a Parquet file ends with, from its last bytes.

    Raises `PayloadUnreadable` for what is no such file, or has its footer begin before `tail`, and
    `PayloadTooLarge`.
    """
    bytes_max = ipc_messages.DESCRIBED_BYTES_MIN
    return ParquetTable(pa.BufferReader(tail), bytes_max=bytes_max).schema


def _expand_head(head: bytes, count_bytes: int) -> bytes | None:
    """Return the first bytes of a payload, uncompressed; None where `head` has too few."""
    for magic, compression in PACKINGS:
        if head.startswith(magic):
            try:
                with pa.CompressedInputStream(pa.BufferReader(head), compression) as stream:
                    head = stream.read(count_bytes)
            except OSError:
                # The stream ends within its head.
                return None
            break
    return head[:count_bytes] if len(head) >= count_bytes else None


def describe_columns(schema: Any) -> list[tuple[str, str, bool]]:
    """Return name, type and nullability of the columns of a stored table.

    A column that is stored as another type is described by its own; what has none is `json`.
    """
    return [(field.name, _describe_type(field), field.nullable) for field in schema]


def _describe_type(field: Any) -> str:
    about = field.metadata or {}
    if _TYPE in about:
        return str(about[_TYPE].decode())
    return "json" if _JSON_MARK in about else table_schema.format_arrow_type(field.type)


def has_plain_rows(schema: Any) -> bool:
    """Tell whether the rows of a stored table are all of it, each value of its column's type.

    So it is with tables that are no results, and with results of one task all whose columns are
    of one scalar type.
    """
    about = schema.metadata or {}
    if _KEYS_MARK not in about:
        return True
    if any((field.metadata or {}).keys() & {_JSON_MARK, _TYPE} for field in schema):
        return False
    kept_keys, path = codec.decode_json(about[_KEYS_MARK]), codec.decode_json(about[_PATH_MARK])
    tasks = kept_keys.get("tasks") if isinstance(kept_keys, dict) else None
    if not isinstance(tasks, dict) or len(tasks) != 1 or path != ["tasks", *tasks, "raw"]:
        return False
    # Columns that are named apart from the rows may be others, or in another order.
    column_names = next(iter(tasks.values()))["raw"].get("columns")
    return column_names is None or column_names == schema.names


class RowGroups:
    """A table's row groups, or its record batches, read one range at a time.

    Opening and reading raise `PayloadUnreadable`; a range may take as much as a whole table.
    """

    def __init__(self, data: bytes, *, bytes_max: int = DECODED_BYTES_MAX) -> None:
        table = bounded_tables.open_table(data, bytes_max=bytes_max)
        self._schema = table.schema
        self._parquet = table if isinstance(table, ParquetTable) else None
        # Batches refer to the bytes: nothing is copied until it is used.
        self._batches = [] if isinstance(table, ParquetTable) else table.read_batches()
        self.count = table.groups if isinstance(table, ParquetTable) else len(self._batches)

    def read_groups(self, first: int, end: int) -> Any:
        """Return the table of groups `first` up to `end`; raises `PayloadUnreadable`."""
        if first >= end:
            return self._schema.empty_table()
        if self._parquet is not None:
            return self._parquet.read_table(range(first, end))
        with refuse_broken_bytes():
            table = pa.Table.from_batches(self._batches[first:end], schema=self._schema)
            table.validate(full=True)
        return table


def find_table(data: bytes) -> Any:
    """Return the table that a payload is, or None for what has to be decoded.

    That is JSON, and a table whose columns are not of their own types. Raises `PayloadUnreadable`.
    """
    for magic, compression in PACKINGS:
        if data.startswith(magic):
            data = expand_bytes(data, compression)
            break
    table = read_table(data) if data.startswith((PARQUET, ARROW)) else None
    has_other_types = table is not None and any(
        _TYPE in (field.metadata or {}) for field in table.schema
    )
    return None if has_other_types else table


def _decode_table(data: bytes, *, bytes_max: int) -> Any:
    bounded_table = bounded_tables.open_table(data, bytes_max=bytes_max)
    about = bounded_table.schema.metadata or {}
    if _KEYS_MARK not in about:
        raise PayloadUnreadable("a table in the payload store is not the result of a step")
    table = bounded_table.read_table()
    weigh_rows(table, bytes_max=bytes_max)
    columns = [_decode_column(field, table.column(i)) for i, field in enumerate(table.schema)]
    rows: list[Any]
    if about[_SHAPE_MARK] == b"lists":
        rows = [list(row) for row in zip(*columns, strict=True)]
    else:
        names = table.column_names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    kept_keys, path = (
        codec.decode_json(about[_KEYS_MARK]),
        tuple(codec.decode_json(about[_PATH_MARK])),
    )
    return _change_at_path(kept_keys, path, lambda raw: {**raw, "rows": rows})


def _decode_column(field: Any, column: Any) -> list[Any]:
    if (field.metadata or {}).get(_JSON_MARK) is None:
        return arrow_values.column_to_values(column.combine_chunks())
    values: list[Any] = column.to_pylist()
    return [None if text is None else codec.decode_json(text.encode()) for text in values]


def _replace_at_path(value: Any, path: tuple[str, ...], leaf: Any) -> Any:
    return _change_at_path(value, path, lambda _: leaf)


def _change_at_path(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """Copy the mappings on a path and change what it leads to."""
    if not path:
        return change(value)
    return {**value, path[0]: _change_at_path(value[path[0]], path[1:], change)}
