"""Filters on columns that let files and row groups be left out; who asked filters once more."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from noetl_worker.datasets import csv_rows


class ColumnFilter(Struct, frozen=True, kw_only=True):
    """A comparison of a column with a value; `in` has a list of them."""

    column: str
    sign: str
    value: Any


_COMPARE = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def build_expression(filters: Sequence[ColumnFilter], schema: pa.Schema) -> Any:
    """Return the filters as one expression over the columns of a file, None where none fits."""
    found = None
    for one in filters:
        if one.column not in schema.names:
            continue
        kind = schema.field(one.column).type
        field = pc.field(one.column)
        try:
            if one.sign == "in":
                built = field.isin(pa.array(one.value, kind))
            else:
                built = _COMPARE[one.sign](field, pa.scalar(one.value, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Types of Spark that this file writes in another way: nothing is left out.
            continue
        found = built if found is None else found & built
    return found


def may_hold(
    values: Mapping[str, str | None], filters: Sequence[ColumnFilter], schema: pa.Schema
) -> bool:
    """Tell whether a file in folders of these values may hold rows that the filters take."""
    for one in filters:
        if one.column not in values or one.column not in schema.names:
            continue
        text = values[one.column]
        if text is None:
            return False
        kind = schema.field(one.column).type
        found, wrong = csv_rows.cast_texts(pa.array([text], pa.string()), kind)
        if wrong:
            continue
        try:
            is_taken = (
                pc.is_in(found, pa.array(one.value, kind))
                if one.sign == "in"
                else _COMPARE[one.sign](found, pa.scalar(one.value, kind))
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        if is_taken[0].as_py() is False:
            return False
    return True
