"""Tables that take far more memory than bytes, written as no honest writer would."""

import io
import struct
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

INT32, INT64, BYTE_ARRAY, FIXED = 1, 2, 6, 7
PLAIN, RLE, BY_DICTIONARY = 0, 3, 8
UNCOMPRESSED, ZSTD = 0, 6
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


# Whatever lives on, in a traceback or a thread, gives its memory back to the pool that it is of.
_POOLS: list[Any] = []


class Peak:
    """How much Arrow has held at a time."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def bytes(self) -> int:
        """Return the most since the beginning."""
        return int(self._pool.max_memory() or 0)


@contextmanager
def watched() -> Iterator[Peak]:
    """Watch Arrow's memory, from nothing."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield Peak(pool)
    finally:
        pa.set_memory_pool(before)


def varint(number: int) -> bytes:
    """Write a number as Thrift and Parquet do."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def thrift(fields: dict[int, tuple[int, Any]]) -> bytes:
    """Write a structure in the compact form: its fields by number, each with its type."""
    found = bytearray()
    for number, (kind, value) in fields.items():
        found += bytes([kind]) + varint(number << 1) + _written(kind, value)
    return bytes(found) + b"\0"


def _written(kind: int, value: Any) -> bytes:
    match kind:
        case 5 | 6:
            return varint(value << 1 if value >= 0 else (-value << 1) - 1)
        case 8:
            return varint(len(value)) + bytes(value)
        case 9:
            inner, values = value
            return (
                bytes([0xF0 | inner])
                + varint(len(values))
                + b"".join(_written(inner, item) for item in values)
            )
        case 12:
            return bytes(value)
    return b""


class Page(Struct, frozen=True, kw_only=True):
    """A page; its header may say another length and number of values than it has."""

    body: bytes
    values: int
    encoding: int = PLAIN
    is_dictionary: bool = False
    unpacked_bytes: int | None = None

    def written(self, codec: int) -> bytes:
        """Write the header and the body, packed."""
        packed = self.body
        if codec == ZSTD:
            packed = pa.compress(self.body, codec="zstd", asbytes=True)
        unpacked = len(self.body) if self.unpacked_bytes is None else self.unpacked_bytes
        about = {1: (_I32, self.values), 2: (_I32, self.encoding)}
        if not self.is_dictionary:
            about |= {3: (_I32, RLE), 4: (_I32, RLE)}
        return (
            thrift(
                {
                    1: (_I32, 2 if self.is_dictionary else 0),
                    2: (_I32, unpacked),
                    3: (_I32, len(packed)),
                    (7 if self.is_dictionary else 5): (_STRUCT, thrift(about)),
                }
            )
            + packed
        )


def repeated(value: int, count: int, *, bytes_each: int = 1) -> bytes:
    """Write the same number so many times as a run: a few bytes for any count."""
    return varint(count << 1) + value.to_bytes(bytes_each, "little")


def levels(value: int, count: int) -> bytes:
    """Write a run of levels as a page of the older form has them."""
    run = repeated(value, count)
    return struct.pack("<I", len(run)) + run


class Column(Struct, frozen=True, kw_only=True):
    """What a file says of its column, and of others that lie at the same place."""

    kind: int = INT64
    width: int = 0
    is_list: bool = False
    copies: int = 1


def a_parquet_file(
    column: Column,
    pages: Sequence[Page],
    *,
    rows: int,
    codec: int = UNCOMPRESSED,
    key_values: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Write a file of one column, whose dictionary comes first if there is one."""
    written = [page.written(codec) for page in pages]
    body = b"PAR1" + b"".join(written)
    has_dictionary = pages[0].is_dictionary
    path = [b"a", b"list", b"element"] if column.is_list else [b"a"]
    about = {
        1: (_I32, column.kind),
        2: (_LIST, (_I32, [PLAIN, RLE, BY_DICTIONARY])),
        3: (_LIST, (_BINARY, path)),
        4: (_I32, codec),
        5: (_I64, sum(page.values for page in pages if not page.is_dictionary)),
        6: (_I64, 100),
        7: (_I64, len(body) - 4),
        9: (_I64, 4 + len(written[0]) * has_dictionary),
    }
    if has_dictionary:
        about[11] = (_I64, 4)
    chunk = thrift({2: (_I64, 4), 3: (_STRUCT, thrift(about))})
    group = {1: (_LIST, (_STRUCT, [chunk] * column.copies)), 2: (_I64, 100), 3: (_I64, rows)}
    footer = thrift(
        {
            1: (_I32, 1),
            2: (_LIST, (_STRUCT, _schema(column))),
            3: (_I64, rows),
            4: (_LIST, (_STRUCT, [thrift(group)])),
            5: (_LIST, (_STRUCT, [thrift({1: (8, k), 2: (8, v)}) for k, v in key_values])),
        }
    )
    return body + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _schema(column: Column) -> list[bytes]:
    root = thrift({4: (_BINARY, b"schema"), 5: (_I32, column.copies)})
    leaf = {1: (_I32, column.kind), 2: (_I32, column.width), 3: (_I32, 0)}
    if not column.is_list:
        return [root, *(thrift({**leaf, 4: (_BINARY, b"a%d" % n)}) for n in range(column.copies))]
    return [
        root,
        thrift({3: (_I32, 0), 4: (_BINARY, b"a"), 5: (_I32, 1), 6: (_I32, 3)}),
        thrift({3: (_I32, 2), 4: (_BINARY, b"list"), 5: (_I32, 1)}),
        thrift({**leaf, 4: (_BINARY, b"element")}),
    ]


def repeating_text(length: int, rows: int, *, groups: int = 1, **options: Any) -> bytes:
    """Write one long text over and over, as a table that refers to it."""
    table = pa.table({"a": pa.repeat(pa.scalar("x" * length), rows)})
    return parquet(table, groups=groups, **options)


def parquet(table: pa.Table, *, groups: int = 1, **options: Any) -> bytes:
    """Write a table, once or more."""
    sink = io.BytesIO()
    if groups == 1:
        pq.write_table(table, sink, **options)
        return sink.getvalue()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return sink.getvalue()


def stream(table: pa.Table, *, compression: str | None = None) -> bytes:
    """Write a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def schema_of_shared_fields(depth: int, *, padding: int) -> bytes:
    """Write an Arrow stream of one column: each part of it twice the same part of its own."""
    writer = _Flat()
    message = writer.table({0: "<h", 1: "<B", 2: "ref", 3: "<q"}, {0: 4, 1: 1})
    schema = writer.refer(message[2], writer.table({0: "<h", 1: "ref"}, {}))
    places = writer.vector(schema[1], 1)
    for level in range(depth + 1):
        is_last = level == depth
        field = writer.table(
            {0: "ref", 1: "<B", 2: "<B", 3: "ref", 5: "ref"}, {1: 1, 2: 1 if is_last else 13}
        )
        for place in places:
            writer.refer(place, field)
        writer.text(field[0], b"a")
        writer.refer(field[3], writer.table({}, {}))
        places = writer.vector(field[5], 0 if is_last else 2)
    writer.data += bytes(padding)
    writer.align(8)
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(writer.data)) + bytes(writer.data)


def as_parquet_schema(message: bytes) -> tuple[bytes, bytes]:
    """Return what a Parquet file keeps of the table that it was written of."""
    return b"ARROW:schema", b64encode(message)


class _Flat:
    """A flatbuffer that is written front to back, so that a table may be referred to twice."""

    def __init__(self) -> None:
        self.data = bytearray(4)
        self._is_first = True

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def table(self, forms: dict[int, str], values: dict[int, int]) -> dict[int, int]:
        """Write a table and return where it and its fields stand; -1 is its own place."""
        sizes = {
            slot: 4 if form == "ref" else struct.calcsize(form) for slot, form in forms.items()
        }
        order = sorted(forms, key=lambda slot: -sizes[slot])
        offsets, size = {}, 8
        for slot in order:
            offsets[slot] = size
            size += sizes[slot]
        self.align(8)
        fields = len(self.data)
        count = max(forms, default=-1) + 1
        self.data += struct.pack("<HH", 4 + 2 * count, size)
        for slot in range(count):
            self.data += struct.pack("<H", offsets.get(slot, 0))
        self.align(8)
        at = len(self.data)
        self.data += struct.pack("<ii", at - fields, 0) + bytes(size - 8)
        for slot, value in values.items():
            struct.pack_into(forms[slot], self.data, at + offsets[slot], value)
        if self._is_first:
            struct.pack_into("<I", self.data, 0, at)
            self._is_first = False
        return {-1: at, **{slot: at + offset for slot, offset in offsets.items()}}

    def refer(self, place: int, table: dict[int, int]) -> dict[int, int]:
        """Let a field refer to a table that stands behind it."""
        struct.pack_into("<I", self.data, place, table[-1] - place)
        return table

    def vector(self, place: int, count: int) -> list[int]:
        """Write a list of references, and return where each stands."""
        self.align(4)
        struct.pack_into("<I", self.data, place, len(self.data) - place)
        start = len(self.data) + 4
        self.data += struct.pack("<I", count) + bytes(4 * count)
        return [start + 4 * index for index in range(count)]

    def text(self, place: int, text: bytes) -> None:
        """Write a text that a field refers to."""
        self.align(4)
        struct.pack_into("<I", self.data, place, len(self.data) - place)
        self.data += struct.pack("<I", len(text)) + text + b"\0"
