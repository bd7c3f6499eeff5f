"""The leaves of a Parquet file's columns: each has pages of its own, and is read by itself."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_storage.unpacking.refusals import Malformed

# Where a text begins takes so many bits in a table.
_PLACE_BITS, _LARGE_BITS, _VIEW_BITS = 32, 64, 128
# While it is read, a value and what says that it is there or begins a list take at least so much.
_READING_BITS = 32


class Leaf(Struct, frozen=True, kw_only=True):
    """A leaf: how wide a value of it is as it becomes a table, and in how many lists it lies.

    The width of a text is that of its place; what the text takes is not in it.
    """

    index: int
    bits: int
    lists: int
    is_text: bool
    is_dictionary: bool
    is_absent: bool


def leaves_of(file: Any) -> list[Leaf]:
    """Return the leaves of an opened file; raises `Malformed`."""
    kinds = [kind for field in file.schema_arrow for kind in _leaf_kinds(field.type)]
    if len(kinds) != len(file.schema.names):
        raise Malformed("a Parquet file names other columns than it has")
    return [_leaf(index, kind, file.schema.column(index)) for index, kind in enumerate(kinds)]


def _leaf(index: int, kind: Any, about: Any) -> Leaf:
    lists = about.max_repetition_level
    return Leaf(
        index=index,
        bits=max(_bits(kind), _READING_BITS * max(1, lists)),
        lists=lists,
        is_text=about.physical_type == "BYTE_ARRAY",
        is_dictionary=pa.types.is_dictionary(kind),
        is_absent=about.max_definition_level > 0,
    )


def _leaf_kinds(kind: Any) -> Iterator[Any]:
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaf_kinds(kind.storage_type)
    elif pa.types.is_map(kind):
        yield from _leaf_kinds(kind.key_type)
        yield from _leaf_kinds(kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaf_kinds(field.type)
    elif hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        yield from _leaf_kinds(kind.value_type)
    else:
        yield kind


def _bits(kind: Any) -> int:
    try:
        found: int = kind.bit_width
    except ValueError:
        if pa.types.is_null(kind):
            return 0
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            return _LARGE_BITS
        is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
        return _VIEW_BITS if is_view else _PLACE_BITS
    return found
