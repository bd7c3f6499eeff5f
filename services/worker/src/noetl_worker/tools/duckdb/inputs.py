"""Stored tables as inputs of DuckDB queries, scanned in place: no row becomes a Python value."""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from noetl_contracts import codec, spelling, spread_table
from noetl_contracts.errors import LocatorError, Permanent, Retryable
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_playbook.model import datasets
from noetl_storage.arrow import encoding, row_tables, table_schema
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE, PayloadUnreadable
from noetl_storage.arrow.row_tables import RowTable
from noetl_storage.arrow.table_schema import SchemaMismatch
from noetl_storage.ports.payload_ports import NearPayloads
from noetl_worker.datasets.address import PATTERN_SIGNS
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.calls import references
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.calls.call_datasets import CallDatasets, drop_expected
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.postgres.postgres_tool import PostgresTool
from noetl_worker.tools.postgres.row_windows import read_query_windows
from noetl_worker.tools.tables import file_tables

_TABLE_MEDIA_TYPES = frozenset({ARROW_MEDIA_TYPE, PARQUET_MEDIA_TYPE})
_PARQUET = b"PAR1"
# Loads pandas with it: only workers that come here pay for that.
_PARQUET_SCANNING = "noetl_worker.tools.duckdb.parquet_scan"
_DATASET_SCANNING = "noetl_worker.tools.duckdb.dataset_scan"
_FILE_KEYS = frozenset({"path", "format", "types"})
_TEXT_FORMATS = frozenset({"csv", "json", "ndjson"})
# Each part is a file that stays open while the query runs.
_PARTS_MAX = 256


class StoredTables:
    """Opens Arrow and Parquet payloads as something that DuckDB scans."""

    def __init__(self, near: NearPayloads | None) -> None:
        self._near_payloads = near

    async def open_table(self, ref: PayloadRef) -> Any:
        """Return a payload as a table or data set that shares its bytes, or None.

        None when the payload is no table, when it cannot be read, or when its value is more than
        rows: then the caller decodes the value and reports what is wrong with it.
        """
        if self._near_payloads is None:
            return None
        try:
            if ref.media_type == SPREAD_MEDIA_TYPE:
                return await self._open_parts(ref, self._near_payloads)
            mapped_table = await self._near_payloads.map_table(ref)
            if mapped_table is not None:
                return _find_plain_table(mapped_table)
            # A bare locator has no media type: the first bytes show what it is.
            if ref.media_type not in _TABLE_MEDIA_TYPES and ref.payload_bytes:
                return None
            async with self._near_payloads.lend_file(ref) as file:
                # An open file can still be read after its name is removed.
                return _find_plain_table(await asyncio.to_thread(_open_file, file))
        except (Retryable, Permanent):
            return None

    async def _open_parts(self, ref: PayloadRef, near_payloads: NearPayloads) -> Any:
        """Lay a table's parts below each other; None where there is no table of parts."""
        async with near_payloads.lend_file(ref) as file:
            spread = _find_spread(await asyncio.to_thread(file.read_bytes), ref)
        if spread is None or not 0 < len(spread.parts) <= _PARTS_MAX:
            return None
        part_tables: list[Any] = []
        for part in spread.parts:
            mapped_table = await near_payloads.map_table(part)
            if mapped_table is None:
                async with near_payloads.lend_file(part) as file:
                    mapped_table = await asyncio.to_thread(_open_file, file)
            part_tables.append(mapped_table)
        if all(isinstance(item, pa.Table) for item in part_tables):
            return pa.concat_tables(part_tables).replace_schema_metadata(None)
        if any(isinstance(item, pa.Table) for item in part_tables):
            return None
        return importlib.import_module(_PARQUET_SCANNING).of_parts(part_tables)


def _find_spread(data: bytes, ref: PayloadRef) -> SpreadTable | None:
    """Return the parts of a result that is one task's table and nothing else."""
    try:
        spread_form = codec.decode_json(data)
        spread = spread_table.find_spread_table(spread_form, owner=ref)
    except (LocatorError, msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise PayloadUnreadable(f"a payload names no parts: {problem}") from problem
    return spread if spread is not None and len(spread_form["tasks"]) == 1 else None


def _open_file(file: Path) -> Any:
    """Open a file; raises `PayloadUnreadable` when it is neither Arrow nor Parquet."""
    try:
        # Mapped pages of Parquet would count as memory of a process that unpacks them anyway.
        plain = pa.OSFile(str(file))
        if plain.read(len(_PARQUET)) == _PARQUET:
            return importlib.import_module(_PARQUET_SCANNING).of_file(plain)
        plain.close()
        table = pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
        # The digest of a lent file was checked; its structure is checked as that of any payload.
        table.validate(full=True)
    except (OSError, pa.ArrowException) as failure:
        raise PayloadUnreadable(f"a payload is no table: {failure}") from failure
    return table


def _find_plain_table(relation: Any) -> Any:
    """Return a relation whose rows are all that it means, as they would be decoded, else None."""
    if not encoding.has_plain_rows(relation.schema):
        return None
    if isinstance(relation, pa.Table):
        return relation.replace_schema_metadata(None)
    return relation


_PART = "_part"


class _GatheredRows:
    """Rows of an input that come piece by piece, as long as there is room for them as a table."""

    def __init__(self, name: str, *, room: int) -> None:
        self._name = name
        self._room = room
        self._pieces: list[RowTable] = []
        self._tables: list[pa.Table] = []

    async def add_piece(self, piece: RowTable) -> None:
        """Take some more; raises `ToolFailure` when there is no room."""
        table = await asyncio.to_thread(row_tables.build_table, *piece)
        self._room -= table.nbytes
        if self._room < 0:
            raise _build_too_large_failure(self._name)
        self._pieces.append(piece)
        self._tables.append(table)

    async def build_table(self, columns: Sequence[str]) -> pa.Table:
        """Lay everything below each other: what is of one type in all pieces is so in the whole.

        Raises `UnlikeTypes`.
        """
        schemas = {table.schema for table in self._tables}
        if len(schemas) == 1 and self._tables[0].column_names == list(columns):
            joined_table = pa.concat_tables(self._tables)
            return await asyncio.to_thread(joined_table.combine_chunks)
        kinds = table_schema.unify_kinds(
            [(piece.kinds, piece.column_names()) for piece in self._pieces]
        )
        rows = [row for item in self._pieces for row in item.rows]
        return await asyncio.to_thread(row_tables.build_table, rows, list(columns), kinds)


class InputReader:
    """Turns rows, references, files and queries into tables."""

    def __init__(
        self,
        *,
        references_: ReferenceReader,
        postgres: PostgresTool,
        in_place: StoredTables,
        datasets_: CallDatasets,
    ) -> None:
        self._references = references_
        self._postgres = postgres
        self._in_place = in_place
        self._datasets = datasets_

    async def read_inputs(self, inputs: Any, call: Call) -> dict[str, Any]:
        """Read every input by name: tables and data sets; raises `ToolFailure` naming the input."""
        if inputs is None:
            return {}
        if not isinstance(inputs, dict):
            raise ToolFailure(build_error("validation", "field 'inputs' must map names to sources"))
        input_by_name: dict[str, Any] = {}
        used_bytes = 0
        for name, described in inputs.items():
            source = drop_expected(described)
            ref = references.find_reference(source, call.site)
            stored_table = None if ref is None else await self._in_place.open_table(ref)
            if stored_table is not None:
                input_by_name[str(name)] = stored_table
                continue
            if await _is_dataset(source, call):
                input_by_name[str(name)] = await self._open_dataset(str(name), source, call)
                continue
            room = file_tables.BYTES_MAX - used_bytes
            try:
                input_by_name[name] = await self._read_table(str(name), source, call, room=room)
            except SchemaMismatch as problem:
                text = f"input '{name}': {problem}"
                raise ToolFailure(build_error("schema", text, source="duckdb")) from problem
            used_bytes += input_by_name[name].nbytes
            if used_bytes > file_tables.BYTES_MAX:
                raise _build_too_large_failure(str(name))
        return input_by_name

    async def _open_dataset(self, name: str, source: dict[str, Any], call: Call) -> Any:
        planned_source = await self._datasets.plan_source(source, call, field=f"input '{name}'")
        dataset_scanning = await asyncio.to_thread(importlib.import_module, _DATASET_SCANNING)
        return dataset_scanning.open_dataset(planned_source)

    async def _read_table(self, name: str, source: Any, call: Call, *, room: int) -> pa.Table:
        if references.is_reference(source):
            value = await self._references.load_value(source, call.site)
            return await asyncio.to_thread(_build_table, name, value)
        if isinstance(source, dict):
            if "path" in source and "rows" not in source:
                path = await call.task_files.fetch_path(call.task_files.parse_name(source["path"]))
                format_ = file_tables.choose_format(path, source.get("format"))
                kinds = file_tables.parse_kinds(source.get("types"))
                return await asyncio.to_thread(
                    file_tables.read_table_file, path, format_, kinds=kinds, bytes_max=room
                )
            if "query" in source and "rows" not in source:
                return await self._read_queried(name, source, call, room=room)
        if _is_part_list(source):
            return await self._read_union(name, source, call, room=room)
        return await asyncio.to_thread(_build_table, name, source)

    async def _read_queried(
        self, name: str, source: dict[str, Any], call: Call, *, room: int
    ) -> pa.Table:
        unknown_keys = source.keys() - {"auth", "credential", "query", "params"}
        if unknown_keys:
            hint = (
                spelling.suggest_word(min(unknown_keys), ("auth", "query", "params"))
                or "use auth and query"
            )
            text = f"input '{name}' has an unknown key '{min(unknown_keys)}': {hint}"
            raise ToolFailure(build_error("validation", text, source="duckdb"))
        query = {**source, "auth": source.get("auth") or source.get("credential")}
        gathered_rows = _GatheredRows(name, room=room)
        names: tuple[str, ...] = ()
        windows = read_query_windows(self._postgres, query, call.site, size=file_tables.BATCH_ROWS)
        async with aclosing(windows):
            async for columns, window, kinds in windows:
                names = columns
                await gathered_rows.add_piece(RowTable(window, list(columns), kinds))
        return await gathered_rows.build_table(names)

    async def _read_union(self, name: str, parts: list[Any], call: Call, *, room: int) -> pa.Table:
        """Lay the rows of several parts below each other; `_part` counts the parts from 0."""
        gathered_rows = _GatheredRows(name, room=room)
        columns: dict[str, None] = {}
        for index, part in enumerate(parts):
            is_held = isinstance(part, dict) and not references.is_reference(part)
            inner = part.get("ref") if is_held else None
            part_source = inner if references.is_reference(inner) else part
            value = await self._references.load_part(part_source, call.site)
            row_table = row_tables.read_row_table(value)
            if row_table is None:
                text = f"part {index} of input '{name}' holds no rows"
                raise ToolFailure(build_error("validation", text, source="duckdb"))
            names = dict.fromkeys(row_table.columns or ())
            for row in row_table.rows:
                names.update(dict.fromkeys(row))
            columns.update(names)
            rows = [{**row, _PART: index} for row in row_table.rows]
            kinds = {**row_table.kinds, _PART: pa.int64()}
            await gathered_rows.add_piece(RowTable(rows, [*names, _PART], kinds))
        columns[_PART] = None
        return await gathered_rows.build_table(list(columns))


def _build_too_large_failure(name: str) -> ToolFailure:
    text = (
        f"the inputs up to '{name}' exceed {file_tables.BYTES_MAX} bytes: "
        "select fewer columns, or load "
        "them into a table piece by piece"
    )
    return ToolFailure(build_error("payload_too_large", text, source="duckdb"))


async def _is_dataset(source: Any, call: Call) -> bool:
    """Tell a dataset from rows, and from one file of texts about which no more is said.

    Such a file has the types that this tool finds in it.
    """
    if not datasets.describes_dataset(source) or "rows" in source:
        return False
    path = source.get("path")
    if source.keys() - _FILE_KEYS or not isinstance(path, str):
        return True
    if datasets.is_bucket_path(path) or datasets.is_web_path(path):
        return True
    if PATTERN_SIGNS.search(path) or path.endswith("/"):
        return True
    local = await call.task_files.fetch_path(call.task_files.parse_name(path))
    if await asyncio.to_thread(local.is_dir):
        return True
    format_ = file_tables.choose_format(Path(path), source.get("format"))
    return format_ in datasets.FORMATS and format_ not in _TEXT_FORMATS


def find_problem(views: Mapping[str, Any]) -> tuple[str, DatasetProblem] | None:
    """Return what has ended the scan of an input, and which."""
    for name, view in views.items():
        problem = getattr(view, "problem", None)
        if problem is not None:
            return f"input '{name}'", problem
    return None


def gather_rejects(views: Mapping[str, Any]) -> dict[str, Rejects]:
    """Return the rows that did not fit, by input, of inputs that may have such."""
    rejects_by_name: dict[str, Rejects] = {}
    for name, view in views.items():
        rejects: Rejects | None = getattr(view, "rejects", None)
        if rejects is not None and view.leaves_rows_out:
            rejects_by_name[name] = rejects
    return rejects_by_name


def _is_part_list(source: Any) -> bool:
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


def _build_table(name: str, value: Any) -> pa.Table:
    row_table = row_tables.read_row_table(value)
    if row_table is None:
        raise ToolFailure(
            build_error(
                "validation",
                f"input '{name}' holds no rows: give a list of mappings, "
                "{columns, rows}, a reference, {path, format} or {auth, query}",
                source="duckdb",
            )
        )
    if not row_table.rows and not row_table.columns:
        raise ToolFailure(
            build_error(
                "validation",
                f"input '{name}' has neither rows nor columns, so no query can name them: "
                "give {columns: [...], rows: []}",
                source="duckdb",
            )
        )
    return row_tables.build_table(*row_table)
