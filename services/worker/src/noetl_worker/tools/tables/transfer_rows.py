"""Rows of a transfer: the columns that they fill, and their values as texts."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts import spelling
from noetl_playbook.templates.output_forms import sql_ident
from noetl_storage.arrow import row_tables
from noetl_storage.arrow.row_tables import RowTable
from noetl_storage.arrow.table_schema import Kinds
from noetl_worker.domain import text_values
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result import ABSENT, find_at_path

_MICROSECONDS = ("TIME", "DATE")
_NANOSECONDS = re.compile(r"\.\d{7}")
MODES = ("append", "replace", "upsert", "merge")
KEYED_MODES = frozenset({"upsert", "merge"})


class RowWindow(Struct, frozen=True, kw_only=True):
    """Some rows of a source; `columns` names them all where the source knows.

    `kinds` are the types of the columns that have one.
    """

    rows: list[dict[str, Any]]
    columns: tuple[str, ...] | None = None
    kinds: Kinds = {}


class ChunkTarget(Protocol):
    """Where chunks are written."""

    async def write_chunk(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Write a chunk and return how many rows it wrote."""


class TransferAim(Struct, frozen=True, kw_only=True):
    """How rows are to arrive; `expressions` give columns of a row that is there already."""

    mode: str = "append"
    keys: tuple[str, ...] = ()
    mapping: dict[str, str] | None = None
    expressions: dict[str, str] = {}

    @property
    def is_merge(self) -> bool:
        """Tell whether all rows meet those of the target at once, each key once."""
        return self.mode == "merge" or bool(self.expressions)


def map_window(window: RowWindow, aim: TransferAim) -> RowWindow:
    """Turn source rows into target rows; an absent field is null. Raises `ToolFailure`."""
    if aim.mapping is None:
        return window
    if window.columns is not None:
        for path in aim.mapping.values():
            top = path.split(".")[0].split("[")[0]
            if path not in window.columns and top not in window.columns:
                raise build_unknown_failure("source field", path, window.columns)
    rows = [
        {column: _get_field(row, path) for column, path in aim.mapping.items()}
        for row in window.rows
    ]
    kinds = {
        column: window.kinds[path] for column, path in aim.mapping.items() if path in window.kinds
    }
    return RowWindow(rows=rows, columns=tuple(aim.mapping), kinds=kinds)


def _get_field(row: dict[str, Any], path: str) -> Any:
    # A column may have a dot in its own name.
    value = row[path] if path in row else find_at_path(row, path)
    return None if value is ABSENT else value


def iterate_windows(value: Any, size: int) -> Iterator[RowWindow]:
    """Cut rows that are here already; a mapping without rows is one row. Raises `ToolFailure`."""
    row_table = row_tables.read_row_table(value)
    if row_table is None:
        if not isinstance(value, dict):
            text = "the source holds no rows: it must be a list of mappings, or a mapping"
            raise ToolFailure(build_error("validation", text, source="transfer"))
        row_table = RowTable([value])
    columns = None if row_table.columns is None else tuple(row_table.columns)
    for start in range(0, len(row_table.rows), size):
        rows = row_table.rows[start : start + size]
        yield RowWindow(rows=rows, columns=columns, kinds=row_table.kinds)


def list_columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names that any row has, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def list_keys(aim: TransferAim, columns: list[str]) -> list[str]:
    """Return the columns of the key of an upsert; raises `ToolFailure`."""
    keys = list(aim.keys) or columns[:1]
    for key in keys:
        if key not in columns:
            raise build_unknown_failure("key", key, columns)
    return keys


def keep_latest_by_key(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    """Keep the last row of every key: one statement may not change a row twice."""
    return list(
        {
            tuple(text_values.format_optional_text(row.get(key)) for key in keys): row
            for row in rows
        }.values()
    )


def check_nanoseconds(name: str, values: list[Any], kind: Any, target: str) -> None:
    """Refuse nanoseconds that a target of microseconds would round; raises `ToolFailure`."""
    is_moment = target.upper().startswith(_MICROSECONDS) and not target.upper().endswith("_NS")
    if not is_moment or kind is None or getattr(kind, "unit", None) != "ns":
        return
    for value in values:
        if isinstance(value, str) and _NANOSECONDS.search(value):
            text = (
                f"column '{name}' holds {value!r:.40}, and its target's type {target} ends at "
                "microseconds: cast it in the source, or write it into a column of text"
            )
            raise ToolFailure(build_error("schema", text, source="transfer"))


def parse_table_parts(table_name: Any) -> list[str]:
    """Read `table`, `schema.table` or a list of both; raises `ToolFailure`."""
    parts = table_name.split(".") if isinstance(table_name, str) else table_name
    if not isinstance(parts, list) or not 1 <= len(parts) <= 2 or not all(map(_is_name, parts)):  # noqa: PLR2004 - a schema and a table
        raise ToolFailure(
            build_error(
                "validation",
                f"target table {table_name!r:.120} is no name: write table, schema.table, or "
                "[schema, table]",
                source="transfer",
            )
        )
    return parts


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and bool(part) and "\0" not in part


def check_columns(columns: list[str], known_names: Mapping[str, Any], table: str) -> None:
    """Refuse columns that a table does not have; raises `ToolFailure`."""
    for column in columns:
        if column not in known_names:
            raise build_unknown_failure(f"column of {table}", column, known_names)


def build_unknown_failure(noun: str, name: str, known_names: Iterable[str]) -> ToolFailure:
    """Say that a name is not known, and which one was probably meant."""
    hint = spelling.suggest_or_list(name, known_names, label="known:")
    text = f"there is no {noun} {name!r:.120}: {hint}"
    return ToolFailure(build_error("validation", text, source="transfer"))


def quote_names(names: Iterable[str]) -> str:
    """Write names as quoted identifiers."""
    return ", ".join(sql_ident(name) for name in names)
