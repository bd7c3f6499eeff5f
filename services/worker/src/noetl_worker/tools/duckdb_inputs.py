"""The named inputs of a SQL task, each read into a table, or left where it lies."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pyarrow as pa

from noetl_contracts import spelling
from noetl_storage import row_tables, table_schema
from noetl_storage.row_tables import RowTable
from noetl_storage.table_schema import SchemaMismatch
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools import references, tables
from noetl_worker.tools.call import Call
from noetl_worker.tools.in_place import InPlace
from noetl_worker.tools.postgres import PostgresTool
from noetl_worker.tools.postgres_reading import read_query
from noetl_worker.tools.references import References

_PART = "_part"


class _Gathered:
    """Rows of an input that come piece by piece, as long as there is room for them as a table."""

    def __init__(self, name: str, *, room: int) -> None:
        self._name = name
        self._room = room
        self._pieces: list[RowTable] = []
        self._tables: list[pa.Table] = []

    async def add(self, piece: RowTable) -> None:
        """Take some more; raises `ToolFailure` when there is no room."""
        table = await asyncio.to_thread(row_tables.table_of, *piece)
        self._room -= table.nbytes
        if self._room < 0:
            raise _too_large(self._name)
        self._pieces.append(piece)
        self._tables.append(table)

    async def table(self, columns: Sequence[str]) -> pa.Table:
        """Lay everything below each other: what is of one type in all pieces is so in the whole.

        Raises `UnlikeTypes`.
        """
        schemas = {table.schema for table in self._tables}
        if len(schemas) == 1 and self._tables[0].column_names == list(columns):
            joined = pa.concat_tables(self._tables)
            return await asyncio.to_thread(joined.combine_chunks)
        kinds = table_schema.unify_kinds([(one.kinds, one.names()) for one in self._pieces])
        rows = [row for one in self._pieces for row in one.rows]
        return await asyncio.to_thread(row_tables.table_of, rows, list(columns), kinds)


class InputReader:
    """Turns rows, references, files and queries into tables."""

    def __init__(
        self,
        *,
        references_: References,
        postgres: PostgresTool,
        in_place: InPlace,
    ) -> None:
        self._references = references_
        self._postgres = postgres
        self._in_place = in_place

    async def read(self, inputs: Any, call: Call) -> dict[str, Any]:
        """Read every input by name: tables and data sets; raises `ToolFailure` naming the input."""
        if inputs is None:
            return {}
        if not isinstance(inputs, dict):
            raise ToolFailure(failure("validation", "field 'inputs' must map names to sources"))
        found: dict[str, Any] = {}
        used = 0
        for name, source in inputs.items():
            ref = references.find(source, call.site)
            stored = None if ref is None else await self._in_place.open(ref)
            if stored is not None:
                found[str(name)] = stored
                continue
            room = tables.BYTES_MAX - used
            try:
                found[name] = await self._table(str(name), source, call, room=room)
            except SchemaMismatch as problem:
                text = f"input '{name}': {problem}"
                raise ToolFailure(failure("schema", text, source="duckdb")) from problem
            used += found[name].nbytes
            if used > tables.BYTES_MAX:
                raise _too_large(str(name))
        return found

    async def _table(self, name: str, source: Any, call: Call, *, room: int) -> pa.Table:
        if references.is_reference(source):
            value = await self._references.value(source, call.site)
            return await asyncio.to_thread(_table_of, name, value)
        if isinstance(source, dict):
            if "path" in source and "rows" not in source:
                path = await call.files.path(call.files.parse_name(source["path"]))
                format_ = tables.format_of(path, source.get("format"))
                kinds = tables.kinds_of_file(source.get("types"))
                return await asyncio.to_thread(
                    tables.read_file, path, format_, kinds=kinds, bytes_max=room
                )
            if "query" in source and "rows" not in source:
                return await self._queried(name, source, call, room=room)
        if _is_parts(source):
            return await self._union(name, source, call, room=room)
        return await asyncio.to_thread(_table_of, name, source)

    async def _queried(
        self, name: str, source: dict[str, Any], call: Call, *, room: int
    ) -> pa.Table:
        unknown = source.keys() - {"auth", "credential", "query", "params"}
        if unknown:
            hint = spelling.hint(min(unknown), ("auth", "query", "params")) or "use auth and query"
            text = f"input '{name}' has an unknown key '{min(unknown)}': {hint}"
            raise ToolFailure(failure("validation", text, source="duckdb"))
        given = {**source, "auth": source.get("auth") or source.get("credential")}
        gathered = _Gathered(name, room=room)
        names: tuple[str, ...] = ()
        windows = read_query(self._postgres, given, call.site, size=tables.BATCH_ROWS)
        async with aclosing(windows):
            async for columns, window, kinds in windows:
                names = columns
                await gathered.add(RowTable(window, list(columns), kinds))
        return await gathered.table(names)

    async def _union(self, name: str, parts: list[Any], call: Call, *, room: int) -> pa.Table:
        """Lay the rows of several parts below each other; `_part` counts the parts from 0."""
        gathered = _Gathered(name, room=room)
        columns: dict[str, None] = {}
        for index, part in enumerate(parts):
            is_held = isinstance(part, dict) and not references.is_reference(part)
            inner = part.get("ref") if is_held else None
            given = inner if references.is_reference(inner) else part
            value = await self._references.part(given, call.site)
            found = row_tables.records(value)
            if found is None:
                text = f"part {index} of input '{name}' holds no rows"
                raise ToolFailure(failure("validation", text, source="duckdb"))
            names = dict.fromkeys(found.columns or ())
            for row in found.rows:
                names.update(dict.fromkeys(row))
            columns.update(names)
            rows = [{**row, _PART: index} for row in found.rows]
            kinds = {**found.kinds, _PART: pa.int64()}
            await gathered.add(RowTable(rows, [*names, _PART], kinds))
        columns[_PART] = None
        return await gathered.table(list(columns))


def _too_large(name: str) -> ToolFailure:
    text = (
        f"the inputs up to '{name}' exceed {tables.BYTES_MAX} bytes: select fewer columns, or load "
        "them into a table piece by piece"
    )
    return ToolFailure(failure("payload_too_large", text, source="duckdb"))


def _is_parts(source: Any) -> bool:
    """Tell a list of parts from a list of rows."""
    if not isinstance(source, list) or not source:
        return False
    return all(
        references.is_reference(part)
        or references.is_part(part)
        or (isinstance(part, dict) and ("rows" in part and "columns" in part))
        or (isinstance(part, dict) and references.is_reference(part.get("ref")))
        for part in source
    )


def _table_of(name: str, value: Any) -> pa.Table:
    found = row_tables.records(value)
    if found is None:
        raise ToolFailure(
            failure(
                "validation",
                f"input '{name}' holds no rows: give a list of mappings, "
                "{columns, rows}, a reference, {path, format} or {auth, query}",
                source="duckdb",
            )
        )
    if not found.rows and not found.columns:
        raise ToolFailure(
            failure(
                "validation",
                f"input '{name}' has neither rows nor columns, so no query can name them: "
                "give {columns: [...], rows: []}",
                source="duckdb",
            )
        )
    return row_tables.table_of(*found)
