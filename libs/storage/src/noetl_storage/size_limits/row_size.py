"""Computes the memory that rows of a table take as Python values, before they are converted.

Each row and each value counts at least eight bytes, as a place in a list or mapping takes. What a
table holds once and refers to often, such as a dictionary's texts, is as often a value.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noetl_storage.size_limits.refusals import build_too_large_error

_VALUE_BYTES = 8
_REFUSED_SUBJECT = "a table, as rows,"

# The weight of each element as an array, or a number where all weigh the same.
Weights = Any


def check_row_size(table: Any, *, bytes_max: int) -> int:
    """Return what all rows take; raises `PayloadTooLarge`."""
    _check_bound(table.num_rows * _VALUE_BYTES * (1 + table.num_columns), bytes_max)
    size: int = table.num_rows * _VALUE_BYTES
    for column in table.columns:
        for chunk in column.chunks:
            weights = _weigh_elements(chunk, bytes_max)
            size += (
                len(chunk) * weights
                if isinstance(weights, int)
                else _sum_weights(weights, bytes_max)
            )
            _check_bound(size, bytes_max)
    return size


def _check_bound(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise build_too_large_error(_REFUSED_SUBJECT, size, bytes_max)


def _weigh_elements(array: Any, bytes_max: int) -> Weights:
    """Weigh the elements of an array: at least, and where it is of a rare kind, at most."""
    _check_bound(len(array) * _VALUE_BYTES, bytes_max)
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _weigh_elements(array.storage, bytes_max)
    if isinstance(array, pa.DictionaryArray):
        words = _weigh_elements(array.dictionary, bytes_max)
        return words if isinstance(words, int) else _fill_nulls(words.take(array.indices))
    if isinstance(array, pa.StructArray):
        return _add_weights([_weigh_elements(field, bytes_max) for field in array.flatten()])
    if isinstance(array, pa.RunEndEncodedArray):
        return _find_heaviest(_weigh_elements(array.values, bytes_max))
    if isinstance(array, pa.UnionArray):
        fields = [array.field(index) for index in range(kind.num_fields)]
        return _VALUE_BYTES + max(
            (_find_heaviest(_weigh_elements(f, bytes_max)) for f in fields), default=0
        )
    if hasattr(kind, "value_type") or pa.types.is_map(kind):
        return _weigh_lists(array, bytes_max)
    lengths = _find_text_lengths(array)
    if lengths is not None:
        return _fill_nulls(pc.add(lengths.cast(pa.int64()), _VALUE_BYTES))
    return _VALUE_BYTES if pa.types.is_null(kind) else max(_VALUE_BYTES, kind.bit_width // 8)


def _find_text_lengths(array: Any) -> Any:
    """Return the lengths of texts, or None where there are none."""
    kind = array.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # The length of a text is the first of the four numbers of its view.
        _, views, *_ = array.buffers()
        numbers = pa.Array.from_buffers(pa.int32(), 4 * (array.offset + len(array)), [None, views])
        firsts = pc.list_element(pa.FixedSizeListArray.from_arrays(numbers, 4), 0)
        return pc.if_else(array.is_valid(), firsts.slice(array.offset), 0)
    if pa.types.is_fixed_size_binary(kind):
        return None
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return pc.binary_length(array) if is_text or is_binary else None


def _weigh_lists(array: Any, bytes_max: int) -> Weights:
    kind = array.type
    if isinstance(array, pa.ListViewArray | pa.LargeListViewArray):
        lengths = _fill_nulls(pc.list_value_length(array).cast(pa.int64()), 0)
        heaviest = _find_heaviest(_weigh_elements(array.values, bytes_max))
        return pc.add_checked(pc.multiply_checked(lengths, heaviest), _VALUE_BYTES)
    if isinstance(array, pa.FixedSizeListArray):
        array = array.cast(pa.large_list(kind.value_type))
    places = array.offsets.cast(pa.int64())
    first, last = places[0].as_py(), places[-1].as_py()
    weights = _weigh_elements(array.values.slice(first, last - first), bytes_max)
    weight_before = pc.subtract(places, first)
    if isinstance(weights, int):
        weight_before = pc.multiply_checked(weight_before, weights)
    else:
        sums = pc.cumulative_sum_checked(weights)
        weight_before = pa.concat_arrays([pa.array([0], pa.int64()), sums]).take(weight_before)
    return pc.add(
        pc.subtract(weight_before.slice(1), weight_before.slice(0, len(array))), _VALUE_BYTES
    )


def _add_weights(weights: list[Weights]) -> Weights:
    size: Weights = _VALUE_BYTES
    for weight in weights:
        both_same = isinstance(size, int) and isinstance(weight, int)
        size = size + weight if both_same else pc.add_checked(size, weight)
    return size


def _find_heaviest(weights: Weights) -> int:
    return weights if isinstance(weights, int) else int(pc.max(weights).as_py() or 0)


def _fill_nulls(weights: Any, with_: int = _VALUE_BYTES) -> Any:
    return pc.fill_null(weights, with_)


def _sum_weights(weights: Any, bytes_max: int) -> int:
    """Add up, one time too large where even the sum is."""
    if len(weights) and _find_heaviest(weights) > bytes_max:
        return _find_heaviest(weights)
    return int(pc.sum(weights).as_py() or 0)
