"""Payload bytes and the values that they hold: JSON or a table, perhaps compressed.

Result payloads say by their first bytes what they are, so that whoever knows only a digest can
read them. The digest of a reference is that of the stored bytes.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, JSON_MEDIA_TYPE

Compression = Literal["gzip", "zstd"]
TableFormat = Literal["arrow", "parquet"]

PARQUET_MEDIA_TYPE = "application/vnd.apache.parquet"
DECODED_BYTES_MAX = 1024 * 1024 * 1024

_GZIP, _ZSTD, _PARQUET, _ARROW = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"\xff\xff\xff\xff"
MAGIC_BYTES_MAX = 4
_KEPT, _PATH, _SHAPE, _IS_JSON = b"noetl.kept", b"noetl.path", b"noetl.shape", b"noetl.json"
_PACKINGS: tuple[tuple[bytes, Compression], ...] = ((_GZIP, "gzip"), (_ZSTD, "zstd"))
_TEXT_BYTES = 4 * 1024 * 1024
_INTEGERS = range(-(2**63), 2**63)
# What the readers raise over bytes that are no table; column names may be no text.
_BROKEN = (OSError, pa.ArrowException, UnicodeDecodeError)


class PayloadUnreadable(Permanent):
    """The stored bytes are whole, but they are no result payload."""


def compress(data: bytes, how: Compression) -> bytes:
    """Compress bytes."""
    packed: bytes = pa.compress(data, codec=how, asbytes=True)
    return packed


def expand(data: bytes, how: Compression, *, bytes_max: int = DECODED_BYTES_MAX) -> bytes:
    """Undo `compress`, up to a length; raises `PayloadUnreadable`."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), how) as stream:
            found: bytes = stream.read(bytes_max + 1)
    except _BROKEN as failure:
        raise PayloadUnreadable(f"a payload does not decompress as {how}: {failure}") from failure
    if len(found) > bytes_max:
        raise PayloadUnreadable(f"a payload decompresses to more than {bytes_max} bytes")
    return found


def is_packed(head: bytes) -> bool:
    """Tell from its first bytes whether a payload is compressed or a table."""
    return head.startswith((_GZIP, _ZSTD, _PARQUET, _ARROW))


def texts(data: bytes) -> Iterator[bytes | memoryview]:
    """Yield everything that a packed payload says, unpacked, in pieces; what is damaged as it is.

    Numbers come as they lie in memory; texts are whole.
    """
    # What only looks packed is nobody's result.
    with suppress(OSError, pa.ArrowException, PayloadUnreadable):
        how = next((how for magic, how in _PACKINGS if data.startswith(magic)), None)
        if how is not None:
            with pa.CompressedInputStream(pa.BufferReader(data), how) as stream:
                first = stream.read(_TEXT_BYTES)
                if not first.startswith((_PARQUET, _ARROW)):
                    yield from chain((first,), iter(lambda: stream.read(_TEXT_BYTES), b""))
                    return
                data = first + stream.read(DECODED_BYTES_MAX)
        if data.startswith((_PARQUET, _ARROW)):
            yield from _table_texts(read_table(data))
            return
    yield data


def _table_texts(table: Any) -> Iterator[bytes | memoryview]:
    yield from (table.schema.metadata or {}).values()
    for column in table.columns:
        for chunk in column.chunks:
            plain = chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else chunk
            yield from (memoryview(buffer) for buffer in plain.buffers() if buffer is not None)


def decode(data: bytes, *, bytes_max: int = DECODED_BYTES_MAX) -> Any:
    """Return the value of a result payload, whatever its form; raises `PayloadUnreadable`.

    JSON that is damaged raises `msgspec.DecodeError`, as before it was ever compressed.
    """
    for magic, how in _PACKINGS:
        if data.startswith(magic):
            data = expand(data, how, bytes_max=bytes_max)
            break
    if data.startswith((_PARQUET, _ARROW)):
        return _from_table(data)
    return codec.decode(data)


def media_type(format_: TableFormat | None) -> str:
    """Name the media type of a form; None is JSON."""
    if format_ is None:
        return JSON_MEDIA_TYPE
    return ARROW_MEDIA_TYPE if format_ == "arrow" else PARQUET_MEDIA_TYPE


def tabulate(kept: Any, path: tuple[str, ...], *, format_: TableFormat) -> bytes | None:
    """Write a value whose rows stand at a path as a table; None when its rows are not even.

    Everything besides the rows travels in the table's metadata. Reading gives the same value.
    """
    raw = kept
    for key in path:
        raw = raw[key]
    columns, shape = _columns(raw)
    if columns is None:
        return None
    arrays, fields = [], []
    for name, values in columns.items():
        array, is_json = _array(values)
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata={_IS_JSON: b"1"} if is_json else None))
    about = {
        _KEPT: codec.encode(_with(kept, path, {**raw, "rows": []})),
        _PATH: codec.encode(path),
        _SHAPE: shape.encode(),
    }
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=about))
    return _written(table, format_)


def _columns(raw: Any) -> tuple[dict[str, list[Any]] | None, str]:
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


def _array(values: list[Any]) -> tuple[Any, bool]:
    """Build a column: typed when all values are of one scalar type, else JSON text."""
    kinds = {type(value) for value in values} - {type(None)}
    typed = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.large_string()}
    if len(kinds) == 1 and (kind := kinds.pop()) in typed:
        fits = kind is not int or all(value is None or value in _INTEGERS for value in values)
        if fits:
            return pa.array(values, typed[kind]), False
    texts = [None if value is None else codec.encode(value).decode() for value in values]
    return pa.array(texts, pa.large_string()), True


def _written(table: Any, format_: TableFormat) -> bytes:
    sink = pa.BufferOutputStream()
    if format_ == "parquet":
        pyarrow.parquet.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_table(data: bytes) -> Any:
    """Read a table from Arrow or Parquet bytes; raises `PayloadUnreadable`."""
    try:
        if data.startswith(_PARQUET):
            return pyarrow.parquet.read_table(pa.BufferReader(data))
        table = pa.ipc.open_stream(pa.BufferReader(data)).read_all()
        table.validate(full=True)
    except _BROKEN as failure:
        raise PayloadUnreadable(f"a payload is no table: {failure}") from failure
    return table


def schema_digest(schema: Any) -> str:
    """Fingerprint a schema, so that a reader may compare it without reading rows."""
    return codec.digest(schema.serialize().to_pybytes())


def find_schema_digest(data: bytes) -> str | None:
    """Return the digest of the schema of a stored table, or None when the bytes are none."""
    if data.startswith(_ARROW):
        return schema_digest(pa.ipc.open_stream(pa.BufferReader(data)).schema)
    if data.startswith(_PARQUET):
        return schema_digest(pyarrow.parquet.read_schema(pa.BufferReader(data)))
    return None


def has_plain_rows(schema: Any) -> bool:
    """Tell whether the rows of a stored table are all of it, each value of its column's type.

    So it is with tables that are no results, and with results of one task all whose columns are
    of one scalar type.
    """
    about = schema.metadata or {}
    if _KEPT not in about:
        return True
    if any((field.metadata or {}).get(_IS_JSON) is not None for field in schema):
        return False
    kept, path = codec.decode(about[_KEPT]), codec.decode(about[_PATH])
    tasks = kept.get("tasks") if isinstance(kept, dict) else None
    if not isinstance(tasks, dict) or len(tasks) != 1 or path != ["tasks", *tasks, "raw"]:
        return False
    # Columns that are named apart from the rows may be others, or in another order.
    named = next(iter(tasks.values()))["raw"].get("columns")
    return named is None or named == schema.names


class Groups:
    """A table's row groups, or its record batches, read one range at a time.

    Opening and reading raise `PayloadUnreadable`.
    """

    def __init__(self, data: bytes) -> None:
        self._parquet: Any = None
        self._batches: list[Any] = []
        try:
            if data.startswith(_PARQUET):
                self._parquet = pyarrow.parquet.ParquetFile(pa.BufferReader(data))
                self.count = int(self._parquet.num_row_groups)
                self._schema = self._parquet.schema_arrow
                return
            reader = pa.ipc.open_stream(pa.BufferReader(data))
            # Batches refer to the bytes: nothing is copied until it is used.
            self._schema, self._batches = reader.schema, list(reader)
        except _BROKEN as failure:
            raise PayloadUnreadable(f"a payload is no table: {failure}") from failure
        self.count = len(self._batches)

    def read(self, first: int, end: int) -> Any:
        """Return the table of groups `first` up to `end`; raises `PayloadUnreadable`."""
        if first >= end:
            return self._schema.empty_table()
        try:
            if self._parquet is not None:
                return self._parquet.read_row_groups(list(range(first, end)))
            table = pa.Table.from_batches(self._batches[first:end], schema=self._schema)
            table.validate(full=True)
        except _BROKEN as failure:
            raise PayloadUnreadable(f"a payload is no table: {failure}") from failure
        return table


def find_table(data: bytes) -> Any:
    """Return the table that a payload is, or None for JSON; raises `PayloadUnreadable`."""
    for magic, how in ((_GZIP, "gzip"), (_ZSTD, "zstd")):
        if data.startswith(magic):
            data = expand(data, how)  # type: ignore[arg-type]  # both names are compressions
            break
    return read_table(data) if data.startswith((_PARQUET, _ARROW)) else None


def _from_table(data: bytes) -> Any:
    table = read_table(data)
    about = table.schema.metadata or {}
    if _KEPT not in about:
        raise PayloadUnreadable("a table in the payload store is not the result of a step")
    columns = [_values(field, table.column(i)) for i, field in enumerate(table.schema)]
    rows: list[Any]
    if about[_SHAPE] == b"lists":
        rows = [list(row) for row in zip(*columns, strict=True)]
    else:
        names = table.column_names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    kept, path = codec.decode(about[_KEPT]), tuple(codec.decode(about[_PATH]))
    return _changed(kept, path, lambda raw: {**raw, "rows": rows})


def _values(field: Any, column: Any) -> list[Any]:
    found: list[Any] = column.to_pylist()
    if (field.metadata or {}).get(_IS_JSON) is None:
        return found
    return [None if text is None else codec.decode(text.encode()) for text in found]


def _with(value: Any, path: tuple[str, ...], leaf: Any) -> Any:
    return _changed(value, path, lambda _: leaf)


def _changed(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """Copy the mappings on a path and change what it leads to."""
    if not path:
        return change(value)
    return {**value, path[0]: _changed(value[path[0]], path[1:], change)}
