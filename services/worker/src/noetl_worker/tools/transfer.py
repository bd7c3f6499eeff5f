"""The `transfer` tool: rows from one place to another, by chunks, all or nothing."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, structs

from noetl_chassis.blocking_work import in_thread
from noetl_playbook import tools as kinds
from noetl_storage.table_schema import Kinds, SchemaMismatch
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.result import ABSENT, at_path
from noetl_worker.domain.sql_text import PlaceholderError
from noetl_worker.domain.texts import as_text
from noetl_worker.own_time import own_time
from noetl_worker.tools import references, tables, transfer_files, transfer_rows, transfer_spark
from noetl_worker.tools.call import Call, Outcome
from noetl_worker.tools.duckdb import DuckdbTool, Lease, database_name, find_database
from noetl_worker.tools.duckdb_session import DuckSession, Places
from noetl_worker.tools.file_names import FileName
from noetl_worker.tools.http import HttpTool
from noetl_worker.tools.path_locks import PathLocks
from noetl_worker.tools.postgres import BROKEN, PostgresTool, refused
from noetl_worker.tools.postgres_pool import Pool
from noetl_worker.tools.postgres_reading import read_windows, session_of
from noetl_worker.tools.postgres_session import Session
from noetl_worker.tools.postgres_types import UnfitValue
from noetl_worker.tools.references import References
from noetl_worker.tools.transfer_columns import copied
from noetl_worker.tools.transfer_copy_out import copied_out
from noetl_worker.tools.transfer_duckdb import DuckStatement, DuckTable
from noetl_worker.tools.transfer_duckdb import windows as duck_windows
from noetl_worker.tools.transfer_files import FileTarget
from noetl_worker.tools.transfer_plan import (
    TransferPlan,
    auth_of,
    ends_of,
    list_file_names,
    read_file_name,
    read_plan,
    read_text,
)
from noetl_worker.tools.transfer_postgres import PostgresStatement, PostgresTable
from noetl_worker.tools.transfer_rows import Aim, Target, Window
from noetl_worker.tools.transfer_spark import SparkMover


class _Held(Struct, frozen=True, kw_only=True):
    """What both ends have opened, so that one database is not waited for twice."""

    leases: dict[FileName | None, Lease]
    sessions: dict[Pool, Session]
    file: Path | None


class TransferTool:
    """Moves rows without holding more than a chunk or two of them."""

    def __init__(
        self,
        *,
        http: HttpTool,
        postgres: PostgresTool,
        duckdb: DuckdbTool,
        mover: SparkMover,
        references_: References,
        locks: PathLocks,
    ) -> None:
        self._mover = mover
        self._http = http
        self._postgres = postgres
        self._duckdb = duckdb
        self._references = references_
        self._locks = locks

    async def run(self, call: Call) -> Outcome:
        """Move every row of the source, or none."""
        given = {name: item for name, item in call.input.items() if name in kinds.TRANSFER.fields}
        call = structs.replace(call, fields={**given, **call.fields})
        try:
            plan = read_plan(call)
            async with own_time(call.timeout.total):
                if transfer_spark.is_wanted(call.fields.get("engine"), ends_of(plan, call)):
                    return Outcome(data=await self._mover.move(ends_of(plan, call), call))
                return Outcome(data=await self._move(plan, call))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the rows were not moved within {call.timeout.total:g} s"
            return Outcome(error=failure("timeout", text, source="transfer"))
        except (PlaceholderError, UnfitValue) as problem:
            return Outcome(error=failure("validation", str(problem), source="transfer"))
        except SchemaMismatch as problem:
            return Outcome(error=failure("schema", str(problem), source="transfer"))
        except BROKEN as problem:
            return Outcome(error=refused(problem, None))

    async def _move(self, plan: TransferPlan, call: Call) -> dict[str, Any]:
        """Move rows, and publish the files that they went to while these are still locked."""
        names = list_file_names(plan, call)
        paths = [call.files.lock_path(name) for name in names if name is not None]
        async with self._locks.held(paths, call.site):
            data = await self._moved(plan, call)
            await call.files.publish(Outcome(data=data))
        return data

    async def _moved(self, plan: TransferPlan, call: Call) -> dict[str, Any]:
        fetched = moved = chunks = 0
        async with AsyncExitStack() as stack:
            held = await stack.enter_async_context(self._held(plan, call))
            target = await stack.enter_async_context(self._target(plan, call, held))
            by_columns = await copied(
                plan.source, target, plan.aim, files=call.files, size=plan.size
            )
            if by_columns is None and plan.source["type"] == "postgres":
                session = await self._session(plan.source, call, held)
                sheet = target.sheet if isinstance(target, _Blocking) else None
                by_columns = await copied_out(
                    plan.source, session, plan.aim, size=plan.size, table=target, sheet=sheet
                )
            if by_columns is not None:
                return by_columns
            texts = (
                target.json_sources(plan.aim.mapping) if isinstance(target, PostgresTable) else []
            )
            reading = self._windows(plan, call, held, json_texts=texts)
            windows = await stack.enter_async_context(aclosing(reading))
            async for window in windows:
                if not window.rows:
                    continue
                fetched += len(window.rows)
                given = transfer_rows.mapped(window, plan.aim)
                moved += await target.write(given.rows, given.kinds)
                chunks += 1
        return {"rows_transferred": moved, "chunks": chunks, "records_fetched": fetched}

    @asynccontextmanager
    async def _held(self, plan: TransferPlan, call: Call) -> AsyncIterator[_Held]:
        """Open what both ends need, each once, in an order that all calls share.

        A call here has the locks of every file. Then come a place for databases of DuckDB and
        connections, those of one pool before those of another: what a call waits for is never
        held by one that waits for what this call holds.
        """
        databases: dict[FileName | None, Places] = {}
        pools: set[Pool] = set()
        for end in (plan.source, plan.target):
            if end["type"] == "duckdb":
                name = database_name(end.get("database"), call)
                databases[name] = Places(database=await find_database(name, call))
            elif end["type"] == "postgres":
                pools.add(await self._postgres.pool(auth_of(end, call), call.site))
        file = None
        if plan.target["type"] == "file":
            file = await call.files.path(read_file_name(plan.target, "target", call))
        async with AsyncExitStack() as stack:
            leases = await stack.enter_async_context(self._duckdb.leased(len(databases)))
            for lease, places in zip(leases, databases.values(), strict=True):
                await lease.run(lambda session, places=places: session.open(places, {}))  # type: ignore[misc]  # the default binds the loop's places
            sessions = {
                pool: await stack.enter_async_context(session_of(pool))
                for pool in sorted(pools, key=id)
            }
            found = dict(zip(databases, leases, strict=True))
            yield _Held(leases=found, sessions=sessions, file=file)

    async def _session(self, end: dict[str, Any], call: Call, held: _Held) -> Session:
        pool = await self._postgres.pool(auth_of(end, call), call.site)
        session = held.sessions.get(pool)
        # The credential was replaced between two looks at it.
        if session is None:
            text = "the credential has just changed: try again"
            raise ToolFailure(failure("db_connection", text, source="transfer"))
        return session

    def _lease(self, end: dict[str, Any], call: Call, held: _Held) -> Lease:
        return held.leases[database_name(end.get("database"), call)]

    @asynccontextmanager
    async def _target(self, plan: TransferPlan, call: Call, held: _Held) -> AsyncIterator[Target]:
        target, aim = plan.target, plan.aim
        match target["type"]:
            case "postgres":
                session = await self._session(target, call, held)
                async with session.connection.transaction():
                    end: PostgresTable | PostgresStatement = (
                        PostgresStatement(session, query=target["query"])
                        if target.get("query") is not None
                        else PostgresTable(
                            session, parts=transfer_rows.table_parts(target.get("table")), aim=aim
                        )
                    )
                    await end.open()
                    yield end
            case "duckdb":
                lease = self._lease(target, call, held)
                async with _duck_target(lease, target, aim) as blocking:
                    yield _Blocking(blocking, lease=lease)
            case _:
                assert held.file is not None, "its lock is held"
                format_ = tables.format_of(held.file, target.get("format"))
                file = FileTarget(held.file, format_=format_, mode=aim.mode)
                try:
                    await in_thread(file.open)
                    yield _Blocking(file, lease=None)
                    await in_thread(file.finish)
                    # Where nothing can call the task off: who is told of a timeout has no file.
                    file.publish()
                finally:
                    if file.is_staged:
                        await in_thread(file.discard)

    async def _windows(
        self, plan: TransferPlan, call: Call, held: _Held, *, json_texts: list[str]
    ) -> AsyncGenerator[Window, None]:
        source, size = plan.source, plan.size
        match source["type"]:
            case "postgres":
                session = await self._session(source, call, held)
                found = read_windows(
                    session,
                    source.get("query"),
                    source.get("params"),
                    size=size,
                    is_inside=session.connection.is_in_transaction(),
                    json_texts=json_texts,
                )
                async with aclosing(found):
                    async for columns, rows, kinds in found:
                        yield Window(rows=rows, columns=columns, kinds=kinds)
            case "duckdb":
                lease = self._lease(source, call, held)
                query, params = read_text(source, "query", "source"), source.get("params")
                steps = await lease.run(lambda one: duck_windows(one, query, params, size=size))
                while (window := await lease.run(lambda _: next(steps, None))) is not None:
                    yield window
            case "file":
                path = await call.files.path(read_file_name(source, "source", call))
                format_ = tables.format_of(path, source.get("format"))
                read = transfer_files.windows(path, format_, size=size)
                while (window := await in_thread(next, read, None)) is not None:
                    yield window
            case "http":
                for window in transfer_rows.windows_of(await self._fetched(source, call), size):
                    yield window
            case _:
                for window in transfer_rows.windows_of(
                    await self._given(source.get("data"), call), size
                ):
                    yield window

    async def _fetched(self, source: dict[str, Any], call: Call) -> Any:
        fields = {name: source[name] for name in kinds.HTTP.fields if name in source}
        fields["url"] = source.get("url") or source.get("endpoint")
        outcome = await self._http.run(
            structs.replace(call, kind="http", fields=fields, auth=auth_of(source, call, own=True))
        )
        if outcome.error is not None or outcome.data is UNSET:
            raise ToolFailure(outcome.error or failure("parse", "the answer has no body"))
        return _at(outcome.data.get("body"), source.get("data_path"))

    async def _given(self, data: Any, call: Call) -> Any:
        if references.is_reference(data):
            return await self._references.value(data, call.site)
        if isinstance(data, list):
            return [_named(row) if isinstance(row, dict) else row for row in data]
        return _named(data) if isinstance(data, dict) else data


def _named(row: dict[Any, Any]) -> dict[str, Any]:
    """Return a row whose columns have names, which a template's mapping need not have."""
    if all(type(name) is str for name in row):
        return row
    return {as_text(name): value for name, value in row.items()}


class _Blocking:
    """A target whose methods block, used from the event loop."""

    def __init__(self, end: DuckTable | DuckStatement | FileTarget, *, lease: Lease | None) -> None:
        self._end = end
        self._lease = lease

    @property
    def sheet(self) -> FileTarget | None:
        """Return the file that it is, if it is one."""
        return self._end if isinstance(self._end, FileTarget) else None

    async def write(self, rows: list[dict[str, Any]], kinds: Kinds) -> int:
        """Write a chunk in a thread."""
        if self._lease is None:
            return await in_thread(self._end.write, rows, kinds)
        return await self._lease.run(lambda _: self._end.write(rows, kinds))


@asynccontextmanager
async def _duck_target(
    lease: Lease, target: dict[str, Any], aim: Aim
) -> AsyncIterator[DuckTable | DuckStatement]:
    """Open a target of DuckDB in a transaction that ends with the block."""

    def begin(session: DuckSession) -> DuckTable | DuckStatement:
        session.begin()
        end: DuckTable | DuckStatement
        if target.get("query") is not None:
            end = DuckStatement(session, query=target["query"])
        else:
            parts = transfer_rows.table_parts(target.get("table"))
            end = DuckTable(session, parts=parts, aim=aim)
        end.open()
        return end

    yield await lease.run(begin)
    await lease.run(lambda session: session.commit())


def _at(body: Any, path: Any) -> Any:
    if not path:
        return body
    found = at_path(body, str(path).removeprefix("$").removeprefix("."))
    if found is ABSENT:
        known = body.keys() if isinstance(body, dict) else ()
        raise transfer_rows.unknown("data_path in the answer", str(path), known)
    return found
