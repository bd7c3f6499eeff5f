"""Tables of pyarrow, polars and pandas that code returns, as tabular results with their types.

What makes them is loaded when code has returned one: other code does not pay for it.
"""

import importlib
from typing import Any

from noetl_contracts.json_values import list_repeated_names

_STREAM = "__arrow_c_stream__"


def show_tables(outcome: Any) -> Any:
    """Show a table, or the tables that a mapping holds; leave everything else as it is.

    Raises `ValueError` for a value that has no JSON form.
    """
    if type(outcome) is dict and any(map(_is_table, outcome.values())):
        return {name: show_tables(item) for name, item in outcome.items()}
    return _show_table(outcome) if _is_table(outcome) else outcome


def _is_table(value: Any) -> bool:
    has_columns = hasattr(value, "column_names") or hasattr(value, "columns")
    return has_columns and hasattr(value, _STREAM)


def _show_table(value: Any) -> Any:
    arrow = importlib.import_module("pyarrow")
    arrow_values = importlib.import_module("noetl_storage.arrow.arrow_values")
    table_schema = importlib.import_module("noetl_storage.arrow.table_schema")
    try:
        table = _build_arrow_table(arrow, value)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        # A column of objects may be of anything: their values say what they are.
        return value
    names = table.column_names
    if repeated_names := list_repeated_names(map(str, names)):
        text = f"the table has several columns named '{repeated_names[0]}': rename all but one"
        raise ValueError(text)
    rows: list[Any] = []
    try:
        for batch in table.to_batches():
            rows += arrow_values.batch_to_rows(batch, [""] * batch.num_columns)
    except arrow_values.ValueWithoutJson as problem:
        raise ValueError(str(problem)) from problem
    return {
        "columns": [str(name) for name in names],
        "rows": rows,
        "row_count": table.num_rows,
        "types": table_schema.format_schema(table.schema),
    }


def _build_arrow_table(arrow: Any, value: Any) -> Any:
    if hasattr(value, "column_names"):
        return value if isinstance(value, arrow.Table) else arrow.table(value)
    # In tables of pandas nothing is NaN, and the index is no column.
    is_pandas = hasattr(value, "to_dict") and hasattr(value, "iloc")
    return arrow.Table.from_pandas(value, preserve_index=False) if is_pandas else arrow.table(value)
