"""The named inputs of a Spark task: what is stored stays where it is, and executors read it."""

import asyncio
from typing import Any

from noetl_contracts import spelling
from noetl_contracts.payloads import PayloadRef
from noetl_playbook import coercion
from noetl_playbook.sql_text import sql_ident
from noetl_storage import row_tables
from noetl_storage.row_tables import RowTable
from noetl_storage.table_schema import SchemaMismatch
from noetl_worker.domain import sql_text
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site
from noetl_worker.keys.credential_vault import Vault
from noetl_worker.spark import fitting
from noetl_worker.spark.asking import Input, Query, Rows, Stored, postgres_options
from noetl_worker.spark.executors import Home
from noetl_worker.tools import references, tables, transfer_rows
from noetl_worker.tools.call import Call
from noetl_worker.tools.references import References

INPUTS_MAX = 64
_BYTES_MAX = 256 * 1024 * 1024
_PARTITIONS_MAX = 64
_PART = "_part"
_QUERY_KEYS = ("auth", "query", "table", "params", "partition_column", "partitions")


class SparkInputs:
    """Says of every input where its rows are."""

    def __init__(self, *, references_: References, vault: Vault) -> None:
        self._references = references_
        self._vault = vault

    async def read(self, inputs: Any, call: Call, home: Home) -> dict[str, Input]:
        """Return every input by name; raises `ToolFailure` that names the input."""
        if inputs is None:
            return {}
        if not isinstance(inputs, dict) or len(inputs) > INPUTS_MAX:
            text = f"field 'inputs' must map at most {INPUTS_MAX} names to sources"
            raise _wrong(text)
        found: dict[str, Input] = {}
        used = 0
        for name, source in inputs.items():
            try:
                one = await self._input(str(name), source, call, home)
            except SchemaMismatch as problem:
                text = f"input '{name}': {problem}"
                raise ToolFailure(failure("schema", text, source="spark")) from problem
            used += one.table.nbytes if isinstance(one, Rows) else 0
            if used > _BYTES_MAX:
                text = (
                    f"the inputs up to '{name}' bring {used} bytes along, {_BYTES_MAX} is the "
                    "limit: pass results by reference, as in {{ load }} or {{ load._ref }}"
                )
                raise ToolFailure(failure("payload_too_large", text, source="spark"))
            found[str(name)] = one
        return found

    async def _input(self, name: str, source: Any, call: Call, home: Home) -> Input:
        refs = _refs(source, call.site)
        if refs is not None:
            if home.is_in_process:
                return await self._loaded(name, source, call)
            return Stored(refs=refs, is_union=isinstance(source, list))
        if isinstance(source, dict) and "rows" not in source:
            if "path" in source:
                path = await call.files.path(call.files.parse_name(source["path"]))
                format_ = tables.format_of(path, source.get("format"))
                kinds = tables.kinds_of_file(source.get("types"))
                found = await asyncio.to_thread(tables.read_file, path, format_, kinds=kinds)
                return Rows(table=await asyncio.to_thread(fitting.fitted, found))
            if "query" in source or "table" in source:
                return await self.query(name, source, call.site, home)
        is_parts = _is_parts(source)
        found = await self._values(source, call) if is_parts else row_tables.records(source)
        return Rows(table=await asyncio.to_thread(_table_of, name, found))

    async def query(
        self,
        name: str,
        source: dict[str, Any],
        site: Site,
        home: Home,
        *,
        snapshot: str | None = None,
    ) -> Query:
        """Describe rows of PostgreSQL; raises `ToolFailure`."""
        unknown = source.keys() - {*_QUERY_KEYS, "credential"}
        if unknown:
            hint = spelling.hint(min(unknown), _QUERY_KEYS) or f"use {', '.join(_QUERY_KEYS)}"
            raise _wrong(f"input '{name}' has an unknown key '{min(unknown)}': {hint}")
        auth = source.get("auth") or source.get("credential")
        credential = await self.credential(auth, site, home)
        params = source.get("params")
        statement = _statement(name, source, params)
        partitions = coercion.integer(source.get("partitions", 1))
        if partitions is None or not 1 <= partitions <= _PARTITIONS_MAX:
            text = f"input '{name}': partitions must be a number from 1 to {_PARTITIONS_MAX}"
            raise _wrong(text)
        column = source.get("partition_column")
        if (column is None) != (partitions == 1):
            text = f"input '{name}': partitions and partition_column belong together"
            raise _wrong(text)
        options = postgres_options(
            home,
            credential=credential,
            query=statement.text,
            values=_values(name, statement, params),
            column=None if column is None else str(column),
            partitions=partitions,
            snapshot=snapshot,
        )
        return Query(options=options)

    async def credential(self, auth: Any, site: Site, home: Home) -> str:
        """Return the name under which executors find a credential; raises `ToolFailure`."""
        found = await self._vault.resolve(auth, site)
        stored = None
        if found.version:
            stored = await self._vault.stored(found.name, site)
        if found.kind != "postgres" or stored is None or home.is_in_process:
            text = (
                f"Spark's executors open credentials of type postgres that are stored, and "
                f"'{found.name}' is not: register it with `noetl credential put`"
            )
            raise ToolFailure(failure("config", text, source="spark"))
        return found.name

    async def _loaded(self, name: str, source: Any, call: Call) -> Rows:
        """Read stored rows here: executors have no way into this process's memory."""
        found = await self._values(source, call)
        return Rows(table=await asyncio.to_thread(_table_of, name, found))

    async def _values(self, source: Any, call: Call) -> RowTable | None:
        if not isinstance(source, list):
            return row_tables.records(await self._references.value(source, call.site))
        parts: list[RowTable] = []
        for index, part in enumerate(source):
            found = row_tables.records(await self._references.part(part, call.site))
            if found is None:
                raise _wrong(f"part {index} of an input holds no rows")
            parts.append(found)
        return row_tables.union(parts, part_column=_PART)


def _refs(source: Any, site: Site) -> list[PayloadRef] | None:
    """Return the references that a source is, or None when its rows are elsewhere."""
    parts = source if isinstance(source, list) else [source]
    if not parts:
        return None
    found: list[PayloadRef] = []
    for part in parts:
        ref = references.find(references.ref_of_part(part), site)
        if ref is None:
            return None
        found.append(ref)
    return found


def _is_parts(source: Any) -> bool:
    """Tell a list of parts from a list of rows."""
    return isinstance(source, list) and bool(source) and all(map(references.is_part, source))


def _statement(name: str, source: dict[str, Any], params: Any) -> sql_text.Statement:
    query = source.get("query")
    if (query is None) == (source.get("table") is None):
        raise _wrong(f"input '{name}' needs 'query' or 'table', and not both")
    if query is None:
        parts = transfer_rows.table_parts(source["table"])
        query = f"table {sql_ident(parts)}"
    found = sql_text.statements(query, sql_text.style_of(params)) if isinstance(query, str) else ()
    if len(found) != 1:
        raise _wrong(f"input '{name}': the query must be one statement")
    return found[0]


def _values(name: str, statement: sql_text.Statement, params: Any) -> list[Any]:
    try:
        return sql_text.arguments(statement, params)
    except sql_text.PlaceholderError as problem:
        raise _wrong(f"input '{name}': {problem}") from problem


def _table_of(name: str, found: RowTable | None) -> Any:
    if found is None or not (found.rows or found.columns):
        text = (
            f"input '{name}' holds no rows: give a list of mappings, {{columns, rows}}, a "
            "reference, {path, format}, or {auth, query}"
        )
        raise _wrong(text)
    return fitting.fitted(row_tables.table_of(*found))


def _wrong(text: str) -> ToolFailure:
    return ToolFailure(failure("validation", text, source="spark"))
