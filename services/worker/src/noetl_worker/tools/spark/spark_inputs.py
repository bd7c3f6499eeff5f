"""Resolves the named inputs of a Spark task; executors read stored inputs themselves."""

import asyncio
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from noetl_chassis import identity as process_identity
from noetl_contracts import spelling
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.transient_objects import build_rejects_name
from noetl_playbook.model import coercion, datasets
from noetl_playbook.model.datasets import DatasetSource
from noetl_playbook.templates.output_forms import sql_ident
from noetl_storage.arrow import row_tables
from noetl_storage.arrow.row_tables import RowTable
from noetl_storage.arrow.table_schema import SchemaMismatch
from noetl_worker.datasets import plan_scan
from noetl_worker.datasets.address import DatasetAddress
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.spark.postgres.read_request import ReadRequest, build_postgres_options
from noetl_worker.spark.tables import arrow_columns
from noetl_worker.spark.tables.dataset_plans import DatasetTarget, FileInput
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.spark.task_request import (
    Input,
    QueryInput,
    RowsInput,
    StoredInput,
)
from noetl_worker.sql import sql_statements
from noetl_worker.tools.calls import dataset_places, references
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.calls.call_datasets import CallDatasets, PlaceCheck, drop_expected
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.tables import dataset_results, file_tables, transfer_rows

INPUTS_MAX = 64
_BYTES_MAX = 256 * 1024 * 1024
_PARTITIONS_MAX = 64
# The column with the number of the part from which a row of a union is.
_PART = "_part"
_QUERY_KEYS = ("auth", "query", "table", "params", "partition_column", "partitions", "partition")
_AUTO = "auto"


class SparkInputReader:
    """Resolves each input to rows in memory, references to stored rows, or a query."""

    def __init__(
        self,
        *,
        references_: ReferenceReader,
        vault: CredentialVault,
        datasets_: CallDatasets,
        master: str,
    ) -> None:
        self._references = references_
        self._vault = vault
        self._datasets = datasets_
        self._is_near = master.startswith("local")

    @property
    def references(self) -> ReferenceReader:
        """Return what reads stored results."""
        return self._references

    def get_now(self) -> datetime:
        """Return the moment that the freshness of rows is measured from."""
        return self._datasets.get_now()

    async def read_inputs(self, inputs: Any, call: Call, home: StoreAddress) -> dict[str, Input]:
        """Return every input by name; raises `ToolFailure` that names the input."""
        if inputs is None:
            return {}
        if not isinstance(inputs, dict) or len(inputs) > INPUTS_MAX:
            text = f"field 'inputs' must map at most {INPUTS_MAX} names to sources"
            raise _build_invalid_failure(text)
        input_by_name: dict[str, Input] = {}
        used = 0
        for name, source in inputs.items():
            try:
                spark_input = await self._read_input(str(name), source, call, home)
            except SchemaMismatch as problem:
                text = f"input '{name}': {problem}"
                raise ToolFailure(build_error("schema", text, source="spark")) from problem
            used += spark_input.table.nbytes if isinstance(spark_input, RowsInput) else 0
            if used > _BYTES_MAX:
                text = (
                    f"the inputs up to '{name}' bring {used} bytes along, {_BYTES_MAX} is the "
                    "limit: pass results by reference, as in {{ load }} or {{ load._ref }}"
                )
                raise ToolFailure(build_error("payload_too_large", text, source="spark"))
            input_by_name[str(name)] = spark_input
        return input_by_name

    async def _read_input(self, name: str, source: Any, call: Call, home: StoreAddress) -> Input:
        source = drop_expected(source)
        refs = _find_references(source, call.site)
        if refs is not None:
            if home.is_in_process:
                return await self._load_rows(name, source, call)
            return StoredInput(refs=refs, is_union=isinstance(source, list))
        if isinstance(source, dict) and "rows" not in source:
            if not self._is_near and _is_own_file(source):
                return await self._load_file(source, call)
            if datasets.is_web_path(str(source.get("path"))):
                return await self._load_web_file(name, source, call)
            if datasets.describes_dataset(source):
                return await self.describe_files(name, source, call, home)
            if "query" in source or "table" in source:
                return await self.describe_query(name, source, call.site, home)
        is_parts = _is_part_list(source)
        spark_input = (
            await self._load_values(source, call) if is_parts else row_tables.read_row_table(source)
        )
        return RowsInput(table=await asyncio.to_thread(_build_table, name, spark_input))

    async def _load_file(self, source: dict[str, Any], call: Call) -> RowsInput:
        """Read a file of the execution here, for executors on other machines."""
        path = await call.task_files.fetch_path(call.task_files.parse_name(source["path"]))
        format_ = file_tables.choose_format(path, source.get("format"))
        kinds = file_tables.parse_kinds(source.get("types"))
        table = await asyncio.to_thread(file_tables.read_table_file, path, format_, kinds=kinds)
        return RowsInput(table=await asyncio.to_thread(arrow_columns.fit_table, table))

    async def _load_web_file(self, name: str, source: dict[str, Any], call: Call) -> RowsInput:
        """Read a file of a server here, where the rules for requests are; raises `ToolFailure`."""
        field = f"input '{name}'"
        planned = await self._datasets.plan_source(source, call, field=field)
        if planned.plan.source.on_bad_row != "fail":
            text = f"{field}: rows of a server's file that do not fit are counted by kind duckdb"
            raise _build_invalid_failure(f"{text} and transfer: read it there")
        with dataset_results.translate_problems(call, field):
            batches = await asyncio.to_thread(
                lambda: list(plan_scan.iterate_source(planned, Rejects()))
            )
        table = pa.Table.from_batches(batches, schema=planned.schema)
        return RowsInput(table=await asyncio.to_thread(arrow_columns.fit_table, table))

    async def describe_files(
        self, name: str, source: dict[str, Any], call: Call, home: StoreAddress
    ) -> FileInput:
        """Find the files of a dataset and their columns; raises `ToolFailure`."""
        field = f"input '{name}'"
        plan = await self._datasets.plan_source(
            source, call, field=field, check_place=self._build_check(field, call, home)
        )
        token = process_identity.mint_token()
        rejects = build_rejects_name(call.site.execution_id, token=token, dataset=name)
        return FileInput(home=home, plan=plan.plan, rejects=rejects)

    async def describe_arrivals(
        self, name: str, source: dict[str, Any], call: Call, home: StoreAddress
    ) -> tuple[DatasetSource, DatasetAddress]:
        """Find where the files of a stream arrive; raises `ToolFailure`."""
        field = f"input '{name}'"
        return await self._datasets.open_source(
            source, call, field=field, check_place=self._build_check(field, call, home)
        )

    async def describe_target(self, call: Call, home: StoreAddress) -> DatasetTarget | None:
        """Describe the dataset that a call's rows go to, if it names one; raises `ToolFailure`."""
        sink = call.fields.get("sink")
        if sink is None:
            return None
        check = self._build_check("output", call, home)
        plan = await self._datasets.describe_sink(sink, call, check_place=check)
        # Executors open the credential themselves: the account stays here.
        return DatasetTarget(
            home=home,
            address=plan.address,
            sink=plan.sink,
            identity=plan.identity,
            attempt=plan.attempt,
            now=plan.now,
            catalog=plan.catalog,
        )

    def _build_check(self, field: str, call: Call, home: StoreAddress) -> PlaceCheck:
        return partial(
            dataset_places.check_reach, home=home, field=field, call=call, is_near=self._is_near
        )

    async def describe_query(
        self,
        name: str,
        source: dict[str, Any],
        site: UnitScope,
        home: StoreAddress,
        *,
        snapshot: str | None = None,
    ) -> QueryInput:
        """Describe rows of PostgreSQL; raises `ToolFailure`."""
        unknown = source.keys() - {*_QUERY_KEYS, "credential"}
        if unknown:
            hint = (
                spelling.suggest_word(min(unknown), _QUERY_KEYS) or f"use {', '.join(_QUERY_KEYS)}"
            )
            raise _build_invalid_failure(
                f"input '{name}' has an unknown key '{min(unknown)}': {hint}"
            )
        auth = source.get("auth") or source.get("credential")
        credential = await self.get_credential_name(auth, site, home)
        params = source.get("params")
        statement = _parse_statement(name, source, params)
        table = source.get("table")
        request = ReadRequest(
            name=name,
            query=statement.text,
            values=_order_values(name, statement, params),
            table=None if table is None else transfer_rows.parse_table_parts(table),
            column=_parse_column(source),
            partitions=_parse_partitions(name, source),
        )
        options = build_postgres_options(
            home, credential=credential, request=request, snapshot=snapshot
        )
        return QueryInput(options=options)

    async def get_credential_name(self, auth: Any, site: UnitScope, home: StoreAddress) -> str:
        """Return the name under which executors find a credential; raises `ToolFailure`."""
        credential = await self._vault.resolve_auth(auth, site)
        stored_credential = None
        if credential.version:
            stored_credential = await self._vault.get_stored(credential.name, site)
        if credential.kind != "postgres" or stored_credential is None or home.is_in_process:
            text = (
                f"Spark's executors open credentials of type postgres that are stored, and "
                f"'{credential.name}' is not: register it with `noetl credential put`"
            )
            raise ToolFailure(build_error("config", text, source="spark"))
        return credential.name

    async def _load_rows(self, name: str, source: Any, call: Call) -> RowsInput:
        """Read stored rows here: executors have no way into this process's memory."""
        values = await self._load_values(source, call)
        return RowsInput(table=await asyncio.to_thread(_build_table, name, values))

    async def _load_values(self, source: Any, call: Call) -> RowTable | None:
        if not isinstance(source, list):
            return row_tables.read_row_table(await self._references.load_value(source, call.site))
        parts: list[RowTable] = []
        for index, part in enumerate(source):
            row_table = row_tables.read_row_table(await self._references.load_part(part, call.site))
            if row_table is None:
                raise _build_invalid_failure(f"part {index} of an input holds no rows")
            parts.append(row_table)
        return row_tables.unite_tables(parts, part_column=_PART)


def _is_own_file(source: dict[str, Any]) -> bool:
    """Tell whether a source is one file of the execution, about which no more is said."""
    path = source.get("path")
    is_plain = not source.keys() - {"path", "format", "types"}
    is_address = isinstance(path, str) and (
        datasets.is_bucket_path(path) or datasets.is_web_path(path)
    )
    return isinstance(path, str) and not is_address and is_plain


def _find_references(source: Any, site: UnitScope) -> list[PayloadRef] | None:
    """Return the references that a source is, or None when its rows are elsewhere."""
    parts = source if isinstance(source, list) else [source]
    if not parts:
        return None
    payload_refs: list[PayloadRef] = []
    for part in parts:
        ref = references.find_reference(references.get_part_reference(part), site)
        if ref is None:
            return None
        payload_refs.append(ref)
    return payload_refs


def _is_part_list(source: Any) -> bool:
    """Tell a list of parts from a list of rows."""
    return isinstance(source, list) and bool(source) and all(map(references.is_part, source))


def _parse_statement(name: str, source: dict[str, Any], params: Any) -> sql_statements.Statement:
    query = source.get("query")
    if (query is None) == (source.get("table") is None):
        raise _build_invalid_failure(f"input '{name}' needs 'query' or 'table', and not both")
    if query is None:
        parts = transfer_rows.parse_table_parts(source["table"])
        query = f"table {sql_ident(parts)}"
    statements = (
        sql_statements.cut_statements(query, sql_statements.get_placeholder_style(params))
        if isinstance(query, str)
        else ()
    )
    if len(statements) != 1:
        raise _build_invalid_failure(f"input '{name}': the query must be one statement")
    return statements[0]


def _parse_column(source: dict[str, Any]) -> str | None:
    column = source.get("partition_column")
    return None if column is None else str(column)


def _parse_partitions(name: str, source: dict[str, Any]) -> int | None:
    """Return how many tasks share an input, None where that is left to its size."""
    partition_field, automatic_mode = source.get("partitions"), source.get("partition")
    if automatic_mode is not None and (automatic_mode != _AUTO or partition_field is not None):
        text = f"input '{name}': partition takes '{_AUTO}', and stands without partitions"
        raise _build_invalid_failure(text)
    if automatic_mode is not None or (
        partition_field is None and source.get("partition_column") is not None
    ):
        return None
    partitions = coercion.coerce_integer(1 if partition_field is None else partition_field)
    if partitions is None or not 1 <= partitions <= _PARTITIONS_MAX:
        text = f"input '{name}': partitions must be a number from 1 to {_PARTITIONS_MAX}"
        raise _build_invalid_failure(text)
    return partitions


def _order_values(name: str, statement: sql_statements.Statement, params: Any) -> list[Any]:
    try:
        return sql_statements.order_arguments(statement, params)
    except sql_statements.PlaceholderError as problem:
        raise _build_invalid_failure(f"input '{name}': {problem}") from problem


def _build_table(name: str, row_table: RowTable | None) -> Any:
    if row_table is None or not (row_table.rows or row_table.columns):
        text = (
            f"input '{name}' holds no rows: give a list of mappings, {{columns, rows}}, a "
            "reference, {path, format}, or {auth, query}"
        )
        raise _build_invalid_failure(text)
    return arrow_columns.fit_table(row_tables.build_table(*row_table))


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="spark"))
