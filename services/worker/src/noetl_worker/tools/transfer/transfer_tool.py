"""The `transfer` tool: rows from one place to another, by chunks, all or nothing."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, structs

from noetl_chassis.blocking_work import run_in_thread
from noetl_playbook.model import tools
from noetl_storage.arrow.table_schema import Kinds, SchemaMismatch
from noetl_worker.domain import cursor_values
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result import ABSENT, find_at_path
from noetl_worker.domain.text_values import format_text
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.sql.sql_statements import PlaceholderError
from noetl_worker.tools.calls import references
from noetl_worker.tools.calls.call import Call, FileName, Outcome
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.calls.work_folder import PathLocks
from noetl_worker.tools.duckdb.duckdb_session import DatabasePlaces, DuckdbSession
from noetl_worker.tools.duckdb.duckdb_tool import (
    DuckdbTool,
    SessionThread,
    parse_database_name,
    prepare_database,
)
from noetl_worker.tools.http.http_tool import HttpTool
from noetl_worker.tools.postgres import effects
from noetl_worker.tools.postgres.effects import TransferEffect
from noetl_worker.tools.postgres.postgres_pool import ConnectionPool
from noetl_worker.tools.postgres.postgres_session import PostgresSession
from noetl_worker.tools.postgres.postgres_tool import BROKEN, PostgresTool, classify_postgres_error
from noetl_worker.tools.postgres.row_windows import hold_session, read_windows
from noetl_worker.tools.postgres.transactions import hold_transaction
from noetl_worker.tools.postgres.value_types import UnfitValue
from noetl_worker.tools.tables import dataset_results, file_tables, transfer_rows
from noetl_worker.tools.tables.transfer_rows import ChunkTarget, RowWindow, TransferAim
from noetl_worker.tools.transfer import file_target, spark_mover
from noetl_worker.tools.transfer.column_copy import copy_parquet_columns, copy_query_columns
from noetl_worker.tools.transfer.dataset_source import SourceDataset
from noetl_worker.tools.transfer.dataset_target import DATASET, DatasetEnds
from noetl_worker.tools.transfer.duckdb_target import DuckdbStatement, DuckdbTable
from noetl_worker.tools.transfer.duckdb_target import iterate_query_windows as duck_windows
from noetl_worker.tools.transfer.file_target import FileTarget
from noetl_worker.tools.transfer.plan import (
    TransferPlan,
    build_ends,
    find_auth,
    get_text,
    list_file_names,
    parse_end_file,
    parse_plan,
)
from noetl_worker.tools.transfer.postgres_target import PostgresStatement, PostgresTable
from noetl_worker.tools.transfer.spark_mover import SparkMover


class _HeldEnds(Struct, frozen=True, kw_only=True):
    """What both ends have opened, so that one database is not waited for twice."""

    leases: dict[FileName | None, SessionThread]
    sessions: dict[ConnectionPool, PostgresSession]
    file: Path | None
    dataset: SourceDataset | None


class TransferTool:
    """Moves rows without holding more than a chunk or two of them."""

    def __init__(
        self,
        *,
        http: HttpTool,
        postgres: PostgresTool,
        duckdb: DuckdbTool,
        mover: SparkMover,
        datasets: DatasetEnds,
        references_: ReferenceReader,
        locks: PathLocks,
    ) -> None:
        self._mover = mover
        self._datasets = datasets
        self._http = http
        self._postgres = postgres
        self._duckdb = duckdb
        self._references = references_
        self._locks = locks

    async def run(self, call: Call) -> Outcome:
        """Move every row of the source, or none."""
        inputs = {name: item for name, item in call.input.items() if name in tools.TRANSFER.fields}
        call = structs.replace(call, fields={**inputs, **call.fields})
        try:
            plan = parse_plan(call)
            async with task_timeout(call.timeout.total):
                if spark_mover.is_spark_wanted(call.fields.get("engine"), build_ends(plan, call)):
                    return Outcome(data=await self._mover.move_rows(build_ends(plan, call), call))
                return Outcome(data=await self._move_locked(plan, call))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the rows were not moved within {call.timeout.total:g} s"
            return Outcome(error=build_error("timeout", text, source="transfer"))
        except (PlaceholderError, UnfitValue) as problem:
            return Outcome(error=build_error("validation", str(problem), source="transfer"))
        except SchemaMismatch as problem:
            return Outcome(error=build_error("schema", str(problem), source="transfer"))
        except BROKEN as problem:
            return Outcome(error=classify_postgres_error(problem, None))

    async def _move_locked(self, plan: TransferPlan, call: Call) -> dict[str, Any]:
        """Move rows, and publish the files that they went to while these are still locked."""
        names = list_file_names(plan, call)
        paths = [call.task_files.lock_path(name) for name in names if name is not None]
        async with self._locks.hold_paths(paths, call.site):
            data = await self._move_rows(plan, call)
            await call.task_files.publish_changes(Outcome(data=data))
        return data

    async def _move_rows(self, plan: TransferPlan, call: Call) -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            if plan.target["type"] == DATASET:
                return await self._fill_dataset(plan, call, stack)
            held_ends = await stack.enter_async_context(self._hold_ends(plan, call))
            target = await stack.enter_async_context(self._open_target(plan, call, held_ends))
            effect = await self._find_effect(plan, call, held_ends)
            if effect is not None and (earlier_outcome := await effect.claim_effect()) is not None:
                return earlier_outcome
            if isinstance(target, PostgresTable):
                # After the claim: mode replace removes the rows of an attempt before.
                await target.open_target()
            outcome = await self._copy_rows(plan, call, held_ends, target)
            if call.increment is not None:
                outcome[cursor_values.RESULT_KEY] = cursor_values.show_reading(
                    call.increment.reading
                )
            if effect is not None:
                await effect.store_outcome(outcome)
        return outcome

    async def _fill_dataset(
        self, plan: TransferPlan, call: Call, stack: AsyncExitStack
    ) -> dict[str, Any]:
        """Write every row into a dataset, unless an attempt before has."""
        source, auth = plan.source, find_auth(plan.target, call)
        target = await self._datasets.open_target(plan.target, auth, call, mapping=plan.aim.mapping)
        earlier_outcome = await target.find_earlier()
        if earlier_outcome is not None:
            return earlier_outcome
        await stack.enter_async_context(target.hold_checks())
        if source["type"] == "postgres":
            credential = await self._postgres.resolve_credential(find_auth(source, call), call.site)
            return await target.fill_from_postgres(source, credential)
        held_ends = await stack.enter_async_context(self._hold_ends(plan, call))
        if held_ends.dataset is not None:
            return await target.fill_from_dataset(held_ends.dataset)
        if source["type"] == "duckdb":
            query, lease = (
                get_text(source, "query", "source"),
                self._get_lease(source, call, held_ends),
            )
            return await target.fill_from_duckdb(source, query, lease)
        windows = self._iterate_windows(plan, call, held_ends, json_texts=[])
        return await target.fill_from_windows(windows, plan.aim)

    async def _copy_rows(
        self, plan: TransferPlan, call: Call, held_ends: _HeldEnds, target: ChunkTarget
    ) -> dict[str, Any]:
        """Write every row, by columns where both ends allow it."""
        scan = call.increment
        if held_ends.dataset is not None:
            return await self._copy_dataset(held_ends.dataset, plan, call, held_ends, target)
        by_columns = await copy_parquet_columns(
            plan.source, target, plan.aim, files=call.task_files, size=plan.size, scan=scan
        )
        if by_columns is None and plan.source["type"] == "postgres":
            session = await self._get_session(plan.source, call, held_ends)
            sheet = target.file_target if isinstance(target, _BlockingTarget) else None
            by_columns = await copy_query_columns(
                plan.source, session, plan.aim, size=plan.size, table=target, sheet=sheet, scan=scan
            )
        if by_columns is not None:
            return by_columns
        return await self._copy_windows(plan, call, held_ends, target)

    async def _copy_dataset(
        self,
        source: SourceDataset,
        plan: TransferPlan,
        call: Call,
        held_ends: _HeldEnds,
        target: ChunkTarget,
    ) -> dict[str, Any]:
        """Write the rows of a dataset, by columns where the target takes them."""
        columns = await source.copy_columns(
            plan.aim,
            table=target if isinstance(target, PostgresTable) else None,
            sheet=target.file_target if isinstance(target, _BlockingTarget) else None,
            scan=call.increment,
        )
        if columns is None:
            columns = await self._copy_windows(plan, call, held_ends, target)
        findings = dataset_results.show_findings({"source": source.findings})
        return {**source.add_reading(columns), **findings}

    async def _copy_windows(
        self, plan: TransferPlan, call: Call, held_ends: _HeldEnds, target: ChunkTarget
    ) -> dict[str, Any]:
        texts = (
            target.list_json_sources(plan.aim.mapping) if isinstance(target, PostgresTable) else []
        )
        fetched_count = row_count = chunks = 0
        reading = (
            self._iterate_windows(plan, call, held_ends, json_texts=texts)
            if held_ends.dataset is None
            else held_ends.dataset.iterate_windows(plan.size)
        )
        async with aclosing(reading) as windows:
            async for window in windows:
                if not window.rows:
                    continue
                if call.increment is not None:
                    call.increment.scan_rows(window.rows)
                fetched_count += len(window.rows)
                row_window = transfer_rows.map_window(window, plan.aim)
                row_count += await target.write_chunk(row_window.rows, row_window.kinds)
                chunks += 1
        if isinstance(target, PostgresTable):
            merged_count = await target.finish_rows()
            row_count = row_count if merged_count is None else merged_count
        return {"rows_transferred": row_count, "chunks": chunks, "records_fetched": fetched_count}

    async def _find_effect(
        self, plan: TransferPlan, call: Call, held_ends: _HeldEnds
    ) -> TransferEffect | None:
        """Return the marker of a transfer that must not take effect twice, None for others."""
        if not _takes_effect_once(plan, call):
            return None
        session = await self._get_session(plan.target, call, held_ends)
        return TransferEffect(session.connection, call)

    @asynccontextmanager
    async def _hold_ends(self, plan: TransferPlan, call: Call) -> AsyncIterator[_HeldEnds]:
        """Open what both ends need, each once, in an order that all calls share.

        A call here has the locks of every file. Then come a place for databases of DuckDB and
        connections, those of one pool before those of another: what a call waits for is never
        held by one that waits for what this call holds.
        """
        databases: dict[FileName | None, DatabasePlaces] = {}
        pools: set[ConnectionPool] = set()
        for end in (plan.source, plan.target):
            if end["type"] == "duckdb":
                name = parse_database_name(end.get("database"), call)
                databases[name] = DatabasePlaces(database=await prepare_database(name, call))
            elif end["type"] == "postgres":
                pools.add(await self._postgres.get_pool(find_auth(end, call), call.site))
        file = dataset = None
        if plan.source["type"] == DATASET:
            auth = find_auth(plan.source, call)
            dataset = await self._datasets.open_source(plan.source, auth, call)
        if plan.target["type"] == "file":
            file = await call.task_files.fetch_path(parse_end_file(plan.target, "target", call))
        async with AsyncExitStack() as stack:
            leases = await stack.enter_async_context(self._duckdb.lease_sessions(len(databases)))
            for lease, places in zip(leases, databases.values(), strict=True):
                await lease.run_work(partial(_open_database, places=places))
            sessions = {
                pool: await stack.enter_async_context(hold_session(pool))
                for pool in sorted(pools, key=id)
            }
            ends = dict(zip(databases, leases, strict=True))
            yield _HeldEnds(leases=ends, sessions=sessions, file=file, dataset=dataset)

    async def _get_session(
        self, end: dict[str, Any], call: Call, held_ends: _HeldEnds
    ) -> PostgresSession:
        pool = await self._postgres.get_pool(find_auth(end, call), call.site)
        session = held_ends.sessions.get(pool)
        # The credential was replaced between two looks at it.
        if session is None:
            text = "the credential has just changed: try again"
            raise ToolFailure(build_error("db_connection", text, source="transfer"))
        return session

    def _get_lease(self, end: dict[str, Any], call: Call, held_ends: _HeldEnds) -> SessionThread:
        return held_ends.leases[parse_database_name(end.get("database"), call)]

    @asynccontextmanager
    async def _open_target(
        self, plan: TransferPlan, call: Call, held_ends: _HeldEnds
    ) -> AsyncIterator[ChunkTarget]:
        target, aim = plan.target, plan.aim
        match target["type"]:
            case "postgres":
                session = await self._get_session(target, call, held_ends)
                if _takes_effect_once(plan, call):
                    await effects.create_markers(session.connection)
                async with hold_transaction(session.connection):
                    yield (
                        PostgresStatement(session, query=target["query"])
                        if target.get("query") is not None
                        else PostgresTable(
                            session,
                            parts=transfer_rows.parse_table_parts(target.get("table")),
                            aim=aim,
                            is_whole=held_ends.dataset is not None,
                        )
                    )
            case "duckdb":
                lease = self._get_lease(target, call, held_ends)
                async with _open_duckdb_target(lease, target, aim) as blocking:
                    yield _BlockingTarget(blocking, lease=lease)
            case _:
                assert held_ends.file is not None, "its lock is held"
                format_ = file_tables.choose_format(held_ends.file, target.get("format"))
                file = FileTarget(held_ends.file, format_=format_, mode=aim.mode)
                try:
                    await run_in_thread(file.open_target)
                    yield _BlockingTarget(file, lease=None)
                    await run_in_thread(file.finish_file)
                    # Where nothing can call the task off: who is told of a timeout has no file.
                    file.publish_file()
                finally:
                    if file.is_staged:
                        await run_in_thread(file.discard_file)

    async def _iterate_windows(
        self, plan: TransferPlan, call: Call, held_ends: _HeldEnds, *, json_texts: list[str]
    ) -> AsyncGenerator[RowWindow, None]:
        source, size = plan.source, plan.size
        match source["type"]:
            case "postgres":
                session = await self._get_session(source, call, held_ends)
                windows = read_windows(
                    session,
                    source.get("query"),
                    source.get("params"),
                    size=size,
                    is_inside=session.connection.is_in_transaction(),
                    json_texts=json_texts,
                )
                async with aclosing(windows):
                    async for columns, rows, kinds in windows:
                        yield RowWindow(rows=rows, columns=columns, kinds=kinds)
            case "duckdb":
                lease = self._get_lease(source, call, held_ends)
                query, params = get_text(source, "query", "source"), source.get("params")
                steps = await lease.run_work(
                    lambda duckdb_session: duck_windows(duckdb_session, query, params, size=size)
                )
                while (window := await lease.run_work(lambda _: next(steps, None))) is not None:
                    yield window
            case "file":
                path = await call.task_files.fetch_path(parse_end_file(source, "source", call))
                format_ = file_tables.choose_format(path, source.get("format"))
                file_windows = file_target.iterate_file_windows(path, format_, size=size)
                while (window := await run_in_thread(next, file_windows, None)) is not None:
                    yield window
            case "http":
                for window in transfer_rows.iterate_windows(
                    await self._fetch_source(source, call), size
                ):
                    yield window
            case _:
                for window in transfer_rows.iterate_windows(
                    await self._load_data(source.get("data"), call), size
                ):
                    yield window

    async def _fetch_source(self, source: dict[str, Any], call: Call) -> Any:
        fields = {name: source[name] for name in tools.HTTP.fields if name in source}
        fields["url"] = source.get("url") or source.get("endpoint")
        outcome = await self._http.run(
            structs.replace(
                call, kind="http", fields=fields, auth=find_auth(source, call, own=True)
            )
        )
        if outcome.error is not None or outcome.data is UNSET:
            raise ToolFailure(outcome.error or build_error("parse", "the answer has no body"))
        return _find_data(outcome.data.get("body"), source.get("data_path"))

    async def _load_data(self, data: Any, call: Call) -> Any:
        if references.is_reference(data):
            return await self._references.load_value(data, call.site)
        if isinstance(data, list):
            return [_name_columns(row) if isinstance(row, dict) else row for row in data]
        return _name_columns(data) if isinstance(data, dict) else data


def _name_columns(row: dict[Any, Any]) -> dict[str, Any]:
    """Return a row whose columns have names, which a template's mapping need not have."""
    if all(type(name) is str for name in row):
        return row
    return {format_text(name): value for name, value in row.items()}


class _BlockingTarget:
    """A target whose methods block, used from the event loop."""

    def __init__(
        self, end: DuckdbTable | DuckdbStatement | FileTarget, *, lease: SessionThread | None
    ) -> None:
        self._end = end
        self._lease = lease

    @property
    def file_target(self) -> FileTarget | None:
        """Return the file that it is, if it is one."""
        return self._end if isinstance(self._end, FileTarget) else None

    async def write_chunk(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Write a chunk in a thread."""
        if self._lease is None:
            return await run_in_thread(self._end.write_chunk, rows, kinds)
        return await self._lease.run_work(lambda _: self._end.write_chunk(rows, kinds))


def _takes_effect_once(plan: TransferPlan, call: Call) -> bool:
    """Tell whether a marker beside the rows must say that they were written."""
    to_postgres = plan.target["type"] == "postgres"
    # Rows of a dataset that are appended twice would be there twice.
    is_whole = plan.source["type"] == DATASET and plan.target.get("table") is not None
    return to_postgres and (plan.aim.is_merge or call.increment is not None or is_whole)


def _open_database(session: DuckdbSession, *, places: DatabasePlaces) -> None:
    session.open_database(places, {})


@asynccontextmanager
async def _open_duckdb_target(
    lease: SessionThread, target: dict[str, Any], aim: TransferAim
) -> AsyncIterator[DuckdbTable | DuckdbStatement]:
    """Open a target of DuckDB in a transaction that ends with the block."""

    def begin_target(session: DuckdbSession) -> DuckdbTable | DuckdbStatement:
        session.begin_transaction()
        end: DuckdbTable | DuckdbStatement
        if target.get("query") is not None:
            end = DuckdbStatement(session, query=target["query"])
        else:
            parts = transfer_rows.parse_table_parts(target.get("table"))
            end = DuckdbTable(session, parts=parts, aim=aim)
        end.open_target()
        return end

    yield await lease.run_work(begin_target)
    await lease.run_work(lambda session: session.commit_transaction())


def _find_data(body: Any, path: Any) -> Any:
    if not path:
        return body
    data = find_at_path(body, str(path).removeprefix("$").removeprefix("."))
    if data is ABSENT:
        body_keys = body.keys() if isinstance(body, dict) else ()
        raise transfer_rows.build_unknown_failure("data_path in the answer", str(path), body_keys)
    return data
