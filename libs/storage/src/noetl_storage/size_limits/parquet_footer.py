"""The footer of a Parquet file: checks of its size and schema, and the leaves of its columns."""

import binascii
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_storage.size_limits import ipc_messages
from noetl_storage.size_limits.parquet_pages import (
    BINARY,
    LIST,
    STRUCT,
    CompactReader,
    TooManyElements,
)
from noetl_storage.size_limits.refusals import MalformedBytes, PayloadTooLarge

# Where a text begins takes so many bits in a table.
_PLACE_BITS, _LARGE_BITS, _VIEW_BITS = 32, 64, 128
# While it is read, a value and what says that it is there or begins a list take at least so much.
_READING_BITS = 32
_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_KEY_VALUES = 5
_ARROW_SCHEMA = b"ARROW:schema"
# What Parquet's reader builds of a description takes about so much, one with another.
_THING_BYTES = 128
_THINGS_MIN = 200_000


class ColumnLeaf(Struct, frozen=True, kw_only=True):
    """A leaf: how wide a value of it is as it becomes a table, and in how many lists it lies.

    The width of a text is that of its place; what the text takes is not in it.
    """

    index: int
    bits: int
    lists: int
    is_text: bool
    is_dictionary: bool
    is_absent: bool


def list_leaves(file: Any) -> list[ColumnLeaf]:
    """Return the leaves of an opened file; raises `MalformedBytes`."""
    kinds = [kind for field in file.schema_arrow for kind in _iterate_leaf_kinds(field.type)]
    if len(kinds) != len(file.schema.names):
        raise MalformedBytes("a Parquet file names other columns than it has")
    return [_build_leaf(index, kind, file.schema.column(index)) for index, kind in enumerate(kinds)]


def _build_leaf(index: int, kind: Any, about: Any) -> ColumnLeaf:
    lists = about.max_repetition_level
    return ColumnLeaf(
        index=index,
        bits=max(_count_bits(kind), _READING_BITS * max(1, lists)),
        lists=lists,
        is_text=about.physical_type == "BYTE_ARRAY",
        is_dictionary=pa.types.is_dictionary(kind),
        is_absent=about.max_definition_level > 0,
    )


def _iterate_leaf_kinds(kind: Any) -> Iterator[Any]:
    if isinstance(kind, pa.BaseExtensionType):
        yield from _iterate_leaf_kinds(kind.storage_type)
    elif pa.types.is_map(kind):
        yield from _iterate_leaf_kinds(kind.key_type)
        yield from _iterate_leaf_kinds(kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _iterate_leaf_kinds(field.type)
    elif hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        yield from _iterate_leaf_kinds(kind.value_type)
    else:
        yield kind


def _count_bits(kind: Any) -> int:
    try:
        bit_width: int = kind.bit_width
    except ValueError:
        if pa.types.is_null(kind):
            return 0
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            return _LARGE_BITS
        is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
        return _VIEW_BITS if is_view else _PLACE_BITS
    return bit_width


def read_footer(source: Any) -> bytes:
    """Return the summary as it lies in the file; raises `MalformedBytes`."""
    size = source.size()
    tail = source.read_at(_TAIL_BYTES, max(0, size - _TAIL_BYTES))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length + _TAIL_BYTES > size:
        raise MalformedBytes("the bytes do not end as Parquet does")
    footer: bytes = source.read_at(length, size - _TAIL_BYTES - length)
    return footer


def check_footer_size(source: Any, *, bytes_max: int) -> None:
    """Refuse a summary that becomes too much; raises `PayloadTooLarge`, `MalformedBytes`."""
    things_max = max(_THINGS_MIN, bytes_max // _THING_BYTES)
    reader = CompactReader(read_footer(source), things_max=things_max)
    try:
        for number, kind in reader.iterate_fields():
            if number == _KEY_VALUES and kind == LIST:
                _check_key_values(
                    reader, bytes_max=max(bytes_max, ipc_messages.DESCRIBED_BYTES_MIN)
                )
            else:
                reader.skip_value(kind)
    except IndexError as failure:
        raise MalformedBytes("the summary of a Parquet file is cut off") from failure
    except TooManyElements as failure:
        raise PayloadTooLarge(
            f"the summary of a Parquet file describes more than {things_max} columns of row "
            "groups and the like: write it in fewer row groups"
        ) from failure


def _check_key_values(reader: CompactReader, *, bytes_max: int) -> None:
    count, kind = reader.read_list_head()
    if kind != STRUCT:
        raise MalformedBytes("the summary of a Parquet file has keys and values that are none")
    for _ in range(count):
        texts: dict[int, bytes] = {}
        for number, inner in reader.iterate_fields():
            if inner == BINARY:
                texts[number] = reader.read_binary()
            else:
                reader.skip_value(inner)
        if texts.get(1) == _ARROW_SCHEMA:
            _check_schema(texts.get(2, b""), bytes_max=bytes_max)


def _check_schema(text: bytes, *, bytes_max: int) -> None:
    """Count the fields of the table; raises `PayloadTooLarge`, `MalformedBytes`."""
    try:
        data = binascii.a2b_base64(text)
    except binascii.Error as failure:
        raise MalformedBytes("the schema in a Parquet file is no base64") from failure
    ipc_messages.check_schema_size(data, bytes_max=bytes_max)
