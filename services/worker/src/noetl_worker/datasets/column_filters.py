"""Filters on columns, by which files and row groups are left out; Spark filters the rows again."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from noetl_worker.datasets import text_casts


class ColumnFilter(Struct, frozen=True, kw_only=True):
    """A comparison of a column with a value; `in` has a list of them."""

    column: str
    sign: str
    value: Any


# Types whose values Spark and Arrow compare alike. Numbers with a point are not among them: NaN is
# greater than all others in Spark, and than none in Arrow.
_ALIKE = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_date32,
)
_COMPARE = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def build_expression(
    filters: Sequence[ColumnFilter], schema: pa.Schema, read_schema: pa.Schema
) -> Any:
    """Return the filters as one expression over the columns of a file, None where none fits.

    `read_schema` has the columns as they are read: a file of another type leaves nothing out.
    """
    expression = None
    for item in filters:
        if item.column not in schema.names or item.column not in read_schema.names:
            continue
        kind = schema.field(item.column).type
        if kind != read_schema.field(item.column).type:
            continue
        built = _compare(pc.field(item.column), item, kind)
        if built is not None:
            expression = built if expression is None else expression & built
    return expression


def may_hold(
    values: Mapping[str, str | None], filters: Sequence[ColumnFilter], schema: pa.Schema
) -> bool:
    """Tell whether a file in folders of these values may hold rows that the filters take."""
    for item in filters:
        if item.column not in values or item.column not in schema.names:
            continue
        text = values[item.column]
        if text is None:
            return False
        kind = schema.field(item.column).type
        cast, wrong = text_casts.cast_texts(pa.array([text], pa.string()), kind)
        is_taken = None if wrong else _compare(cast, item, kind)
        if is_taken is not None and is_taken[0].as_py() is False:
            return False
    return True


def _compare(operand: Any, column_filter: ColumnFilter, kind: pa.DataType) -> Any:
    """Compare a field or values with a filter's value; None where that is not known to be alike."""
    if not any(is_alike(kind) for is_alike in _ALIKE):
        return None
    try:
        if column_filter.sign == "in":
            return pc.is_in(operand, pa.array(column_filter.value, kind))
        return _COMPARE[column_filter.sign](operand, pa.scalar(column_filter.value, kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # Spark has the value in another type.
        return None
