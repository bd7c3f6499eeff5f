"""Conditions that share the rows of a source among tasks: each row in one, and shares alike."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from noetl_contracts import spelling
from noetl_playbook.templates.output_forms import sql_ident, sql_literal
from noetl_worker.spark.postgres.read_columns import ReadColumn
from noetl_worker.spark.postgres.server_connection import ArrowSession
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.sql import queries

WHOLE = "true"
PARTITIONS_MAX = 64
_QUERIES = queries.load_queries(__package__, "partition_ranges")
_PARTITION_BYTES = 32 * 1024 * 1024
# Where nothing tells how large a source is.
_PARTITIONS_OF_COLUMN = 8
# Of a larger table the bounds are those of a sample.
_SAMPLE_PAGES = 4_000
_ORDERED = frozenset(
    {"int2", "int4", "int8", "numeric", "date", "timestamp", "timestamptz", "uuid"}
    | {"text", "varchar", "bpchar"}
)


class TableShape(Struct, frozen=True, kw_only=True):
    """What a table is like; `page_count` is that of its largest part, each of `page_bytes`.

    `kind` is the catalog's letter. `has_pages` tells that each row has a place in pages.
    """

    quoted_name: str
    kind: str
    page_count: int
    page_bytes: int
    has_pages: bool
    has_policies: bool


def cut_rows(
    session: ArrowSession,
    count: int | None,
    source: str,
    columns: Sequence[ReadColumn],
    shape: TableShape | None,
    *,
    column: str | None,
    about: str,
) -> list[str]:
    """Return a condition for each task; `count` is None for `auto`. Raises `SparkRefusal`."""
    if column is not None:
        kind = _get_ordered_type(columns, column, about)
        bounds = _find_bounds(session, count or _PARTITIONS_OF_COLUMN, source, shape, column)
        return list(cut_by_bounds(column, kind, bounds))
    if shape is not None and shape.has_pages:
        size = shape.page_count * shape.page_bytes
        partition_count = (
            min(PARTITIONS_MAX, -(-size // _PARTITION_BYTES)) if count is None else count
        )
        return list(cut_pages(shape.page_count, max(1, partition_count)))
    if count is None:
        return [WHOLE]
    relation_noun = "a query" if shape is None else "a view or foreign table"
    text = (
        f"{about}: {relation_noun} is shared by a column: name it in 'partition_column', or leave "
        "'partitions' out"
    )
    raise SparkRefusal("validation", text)


def cut_pages(page_count: int, count: int) -> Iterator[str]:
    """Cut a table by the places of its rows; the last share has no end."""
    width = max(1, -(-page_count // count))
    starts = list(range(0, max(1, page_count), width))
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        parts = [] if start == 0 else [f"source.ctid >= '({start},0)'::tid"]
        if end is not None:
            parts.append(f"source.ctid < '({end},0)'::tid")
        yield " and ".join(parts) or WHOLE


def cut_by_bounds(column: str, kind: str, bounds: Sequence[str]) -> Iterator[str]:
    """Cut a column at its bounds, in their order; rows without a value are in the first share."""
    name = f"source.{sql_ident(column)}"
    marks = [f"{sql_literal(text)}::pg_catalog.{kind}" for text in bounds]
    if not marks:
        yield WHOLE
        return
    yield f"({name} < {marks[0]} or {name} is null)"
    for start, end in zip(marks, [*marks[1:], None], strict=True):
        yield f"{name} >= {start}" + ("" if end is None else f" and {name} < {end}")


def _get_ordered_type(columns: Sequence[ReadColumn], column: str, about: str) -> str:
    kinds = {column_type.name: column_type.type for column_type in columns}
    if column not in kinds:
        hint = spelling.suggest_or_list(column, kinds, label="known:")
        text = f"{about}: partition_column '{column}' is no column of it: {hint}"
        raise SparkRefusal("validation", text)
    if kinds[column] not in _ORDERED:
        text = (
            f"{about}: partition_column '{column}' is {kinds[column]}: name a column of numbers, "
            "dates, timestamps, uuids or text"
        )
        raise SparkRefusal("validation", text)
    return kinds[column]


def _find_bounds(
    session: ArrowSession, count: int, source: str, shape: TableShape | None, column: str
) -> list[str]:
    fractions = ", ".join(f"{index / count}" for index in range(1, count))
    samples = [""]
    if shape is not None and shape.has_pages and shape.page_count > _SAMPLE_PAGES:
        share = 100 * _SAMPLE_PAGES / shape.page_count
        samples.insert(0, f"tablesample system ({share:.6f})")
    for sample in samples:
        text = _QUERIES["bounds"].format(
            fractions=fractions, column=sql_ident(column), source=source, sample=sample
        )
        (row,) = session.fetch_rows(text)
        # A sample of a table with few full pages may be empty.
        if row["bounds"]:
            return list(dict.fromkeys(row["bounds"]))
    return []
