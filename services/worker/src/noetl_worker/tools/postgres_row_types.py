"""The types of the columns of a PostgreSQL statement's rows, as a tabular result has them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from noetl_storage.table_schema import format_arrow_type
from noetl_worker.tools.postgres_arrow_types import (
    arrow_type_of,
    decimal_type_of,
    has_open_digits,
)

# Stand for numerics whose digits only the rows tell.
OPEN_NUMBER, OPEN_NUMBERS = "numeric", "numeric[]"


def types_of_columns(attributes: Iterable[Any]) -> tuple[str, ...]:
    """Return what the statement tells of its columns' types."""
    return tuple(_type_of(str(column.type.name)) for column in attributes)


@lru_cache(maxsize=1024)
def _type_of(name: str) -> str:
    return name if has_open_digits(name) else format_arrow_type(arrow_type_of(name))


def types_of_rows(types: tuple[str, ...], records: Sequence[Any]) -> tuple[str, ...]:
    """Return the types of all columns, with what only the rows tell; records are the client's."""
    if OPEN_NUMBER not in types and OPEN_NUMBERS not in types:
        return types
    return tuple(
        _open_type(text, [record[place] for record in records])
        if text in (OPEN_NUMBER, OPEN_NUMBERS)
        else text
        for place, text in enumerate(types)
    )


def _open_type(text: str, values: list[Any]) -> str:
    if text == OPEN_NUMBER:
        return format_arrow_type(decimal_type_of(values))
    return format_arrow_type(pa.list_(decimal_type_of(_flat(values))))


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value
