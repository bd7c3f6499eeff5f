"""The `duckdb` tool: SQL over files, rows and references, in a database of the execution."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
from msgspec import Struct, structs

from noetl_chassis.blocking_work import run_in_thread, wait_until_ended
from noetl_contracts.errors import ErrorObject
from noetl_contracts.execution_files import INTERNAL_FOLDER
from noetl_worker.datasets.batch_sink import SinkPlan
from noetl_worker.domain.failures import ToolFailure, build_error, classify_file_error
from noetl_worker.keychain.credential_vault import Credential, CredentialVault
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.sql import sql_statements
from noetl_worker.sql.sql_statements import PlaceholderError, Statement
from noetl_worker.tools.calls import dataset_places
from noetl_worker.tools.calls.call import Call, FileName, Outcome, RowSink
from noetl_worker.tools.calls.call_datasets import CallDatasets, parse_expected
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.calls.work_folder import PathLocks
from noetl_worker.tools.duckdb.checked_inputs import CheckedInputs, check_inputs
from noetl_worker.tools.duckdb.duckdb_session import (
    DatabasePlaces,
    DuckdbLimits,
    DuckdbSession,
    classify_duckdb_error,
    leave_shared_directory,
)
from noetl_worker.tools.duckdb.inputs import InputReader, find_problem, gather_rejects
from noetl_worker.tools.duckdb.results import SpooledRows, show_query
from noetl_worker.tools.postgres.task_fields import parse_statements
from noetl_worker.tools.scripts.script_loader import ScriptLoader
from noetl_worker.tools.tables import dataset_results, stored_parts

R = TypeVar("R")

_WINDOW_ROWS = 128
_MISSING_TABLE = re.compile(r"Catalog Error: Table with name (.+?) does not exist!")
MEMORY = ":memory:"
_FILE_USE = re.compile(
    r"\b(?:copy|export|import|attach)\b"
    r"|\b(?:read_\w+|\w+_scan|glob|sniff_csv|parquet_\w+)\s*\("
    r"|\b(?:from|join)\s*'"
    r"|[./]\w+['\"]",
    re.IGNORECASE,
)


class SessionThread:
    """A session, and the thread in which its blocking work is done.

    Relative names in statements are read in the thread's own working directory.
    """

    def __init__(self, session: DuckdbSession) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="duckdb", initializer=leave_shared_directory
        )

    async def run_work(self, work: Callable[[DuckdbSession], R]) -> R:
        """Do blocking work; when the caller is cancelled, the work is interrupted first."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, work, self._session)
        # An interrupt between two statements is lost on DuckDB, so it is said again.
        return await wait_until_ended(running, interrupt=self._session.interrupt)

    async def close(self) -> None:
        """Close the session: what was not committed is undone."""
        loop = asyncio.get_running_loop()
        try:
            await wait_until_ended(loop.run_in_executor(self._thread, self._session.close))
        finally:
            self._thread.shutdown(wait=False)


class _DuckdbWork(Struct, frozen=True, kw_only=True):
    """What one attempt does in its thread."""

    database: FileName | None
    uses_files: bool
    attached: dict[str, Credential]
    statements: list[tuple[Statement, list[Any]]]


class DuckdbTool:
    """Runs SQL beside the event loop; one attempt at a time has a database file."""

    def __init__(
        self,
        *,
        vault: CredentialVault,
        inputs: InputReader,
        scripts: ScriptLoader,
        references_: ReferenceReader,
        locks: PathLocks,
        limits: DuckdbLimits,
        datasets: CallDatasets,
    ) -> None:
        self._vault = vault
        self._datasets = datasets
        self._scripts = scripts
        self._references = references_
        self._inputs = inputs
        self._limits = limits
        self._locks = locks
        self._free = asyncio.Semaphore(limits.databases_max)

    async def run(self, call: Call) -> Outcome:
        """Run every statement of a task."""
        try:
            async with task_timeout(call.timeout.total):
                return Outcome(data=await self._run_call(await self._scripts.attach_query(call)))
        except ToolFailure as problem:
            return Outcome(error=_explain_missing_table(problem.error, call))
        except TimeoutError:
            text = f"the statements did not end within {call.timeout.total:g} s"
            return Outcome(error=build_error("timeout", text, source="duckdb"))
        except PlaceholderError as problem:
            return Outcome(error=build_error("validation", str(problem), source="duckdb"))
        except duckdb.Error as problem:
            return Outcome(error=classify_duckdb_error(problem, None))

    async def _run_call(self, call: Call) -> dict[str, Any]:
        params = call.fields.get("params")
        statements = [
            (statement, sql_statements.order_arguments(statement, params))
            for statement in parse_statements(call, "duckdb")
        ]
        work = _DuckdbWork(
            database=parse_database_name(call.fields.get("database"), call),
            uses_files=any(may_use_files(item.text) for item, _ in statements),
            attached=await self._resolve_attached(call),
            statements=statements,
        )
        if call.sink is not None:
            async with self._lock_database(work, call):
                async with self._lease_session(work, call) as (lease, inputs):
                    rows = await lease.run_work(lambda session: _take_rows(session, work))
                await call.task_files.publish_changes(Outcome())
            # Who takes the rows may need the database: it is free while they leave.
            data = await _stream_rows(rows, work, call.sink)
            return {**data, **dataset_results.show_findings(inputs.findings)}
        async with self._lock_database(work, call):
            async with self._lease_session(work, call) as (lease, inputs):
                data = await self._fetch_result(lease, work, call, inputs)
                if rejects := gather_rejects(inputs.views):
                    data["rejected"] = dataset_results.show_rejects(rejects)
            # The next task to have the lock finds what this one has written.
            await call.task_files.publish_changes(Outcome(data=data))
        return data

    async def _fetch_result(
        self, lease: SessionThread, work: _DuckdbWork, call: Call, inputs: CheckedInputs
    ) -> dict[str, Any]:
        sink = call.fields.get("sink")
        if sink is not None:
            plan = await self._datasets.describe_sink(sink, call)
            with dataset_results.translate_problems(call, "output"):
                return await lease.run_work(
                    lambda session: _write_rows(session, work, plan, inputs)
                )
        data = await self._fetch_rows(lease, work, call)
        return {**data, **dataset_results.show_findings(inputs.findings)}

    async def _fetch_rows(
        self, lease: SessionThread, work: _DuckdbWork, call: Call
    ) -> dict[str, Any]:
        if stored_parts.is_spread_wanted(call) and len(work.statements) == 1:
            rows = await self._select_rows(lease, work, call)
            if rows is not None:
                return rows
        return await lease.run_work(lambda session: session.run_statements(work.statements))

    async def _select_rows(
        self, lease: SessionThread, work: _DuckdbWork, call: Call
    ) -> dict[str, Any] | None:
        """Run a single query; the rows of a large table stay in the store. None for others."""
        ((statement, values),) = work.statements
        scan = await lease.run_work(
            lambda session: session.scan_query(statement.text, values, size=stored_parts.BATCH_ROWS)
        )
        if scan is None:
            return None

        async def iterate_batches() -> AsyncGenerator[pa.RecordBatch]:
            while (batch := await lease.run_work(lambda _: next(scan.batches, None))) is not None:
                yield batch

        table = stored_parts.TableGatherer(
            call,
            payloads=self._references.get_payloads(call.site),
            mask=self._vault.secret_mask,
            kinds=scan.kinds,
            may_spread=scan.is_plain,
            bytes_max=self._limits.result_bytes_max,
        )
        async with aclosing(iterate_batches()) as batches:
            rows, count = await table.gather_batches(batches)
        return show_query(rows, columns=scan.columns, types=scan.types, count=count)

    @asynccontextmanager
    async def _lock_database(self, work: _DuckdbWork, call: Call) -> AsyncIterator[None]:
        """Have the database of a task alone while the block runs."""
        paths = [] if work.database is None else [call.task_files.lock_path(work.database)]
        async with self._locks.hold_paths(paths, call.site):
            yield

    @asynccontextmanager
    async def _lease_session(
        self, work: _DuckdbWork, call: Call
    ) -> AsyncIterator[tuple[SessionThread, CheckedInputs]]:
        """Have a session with the task's database, and its inputs, while the block runs."""
        expected = parse_expected(call.fields.get("inputs"), call)
        # Read while the database is locked: it is one version of all files that the task sees.
        views = await self._inputs.read_inputs(call.fields.get("inputs"), call)
        database = await prepare_database(work.database, call)
        folder = await call.task_files.fetch_folder() if work.uses_files else None
        places = DatabasePlaces(database=database, folder=folder)
        async with self.lease_sessions(1) as (lease,):
            await lease.run_work(lambda session: _open_session(session, work, places, views))
            try:
                now = self._datasets.get_now()
                checked = await lease.run_work(
                    lambda session: check_inputs(session, views, expected, call=call, now=now)
                )
                yield lease, checked
            except ToolFailure as failure:
                # DuckDB tells the text of what has ended a scan, and not its kind.
                if (problem := find_problem(views)) is None:
                    raise
                error = dataset_places.build_dataset_error(problem[1], call, problem[0])
                raise ToolFailure(error) from failure

    @asynccontextmanager
    async def lease_sessions(self, count: int) -> AsyncIterator[list[SessionThread]]:
        """Have as many sessions as a call has databases, in one place, while the block runs.

        A call that comes here has the locks of all its files already (`PathLocks`): a place is
        never held by a call that waits for a lock.
        """
        async with AsyncExitStack() as stack:
            if count:
                await stack.enter_async_context(self._free)
            leases = []
            for _ in range(count):
                lease = SessionThread(DuckdbSession(limits=self._limits))
                stack.push_async_callback(lease.close)
                leases.append(lease)
            yield leases

    async def _resolve_attached(self, call: Call) -> dict[str, Credential]:
        """Resolve the databases to attach, by alias."""
        auth = call.auth
        if auth is None:
            return {}
        is_many = isinstance(auth, dict) and all(isinstance(item, dict) for item in auth.values())
        auth_by_alias = auth if is_many else {"pg": auth}
        credential_by_alias = {
            alias: await self._vault.resolve_auth(item, call.site)
            for alias, item in auth_by_alias.items()
        }
        for alias, credential in credential_by_alias.items():
            if credential.kind != "postgres":
                text = (
                    f"credential '{credential.name}' of alias '{alias}' is of type "
                    f"'{credential.kind}', which a duckdb task cannot use: read the object with "
                    "kind artifact and give it to inputs"
                )
                raise ToolFailure(build_error("config", text))
        return credential_by_alias


def parse_database_name(name_field: Any, call: Call) -> FileName | None:
    """Read the name of a database, None for one in memory; raises `ToolFailure`.

    Tasks that name none share one of the execution.
    """
    if name_field is None or name_field == "":
        return FileName(path=f"{INTERNAL_FOLDER}/execution.duckdb")
    return None if name_field == MEMORY else call.task_files.parse_name(name_field)


async def prepare_database(name: FileName | None, call: Call) -> Path | None:
    """Return where a database lies, its folder made when it is new; raises `ToolFailure`."""
    if name is None:
        return None
    path = await call.task_files.fetch_path(name)
    try:
        await run_in_thread(path.parent.mkdir, parents=True, exist_ok=True)
    except OSError as problem:
        raise ToolFailure(classify_file_error(problem, name.path, source="duckdb")) from problem
    return path


def may_use_files(statement: str) -> bool:
    """Return whether a statement may read or write files; True when in doubt."""
    return _FILE_USE.search(statement) is not None


def _open_session(
    session: DuckdbSession, work: _DuckdbWork, places: DatabasePlaces, views: dict[str, Any]
) -> None:
    session.open_database(places, work.attached)
    for name, table in views.items():
        session.register_table(name, table)


def _take_rows(session: DuckdbSession, work: _DuckdbWork) -> SpooledRows:
    """Run all statements but the last, then take the rows of that to disk."""
    *earlier, (last, values) = work.statements
    if earlier:
        session.run_statements(earlier)
    return session.spool_query(last.text, values)


def _write_rows(
    session: DuckdbSession, work: _DuckdbWork, plan: SinkPlan, inputs: CheckedInputs
) -> dict[str, Any]:
    """Run all statements, and write the rows of the last one into a dataset."""
    *earlier, (last, values) = work.statements
    # Also when the rows were written by an attempt before: the database was not.
    if earlier:
        session.run_statements(earlier)
    scan = session.scan_query(last.text, values, size=stored_parts.BATCH_ROWS)
    if scan is None:
        text = "output takes the rows of the last statement, which is no query: end with a SELECT"
        raise ToolFailure(build_error("validation", text, source="duckdb"))
    written = dataset_results.write_batches(
        plan,
        scan.schema,
        scan.batches,
        hold_stop=session.hold_stop,
        read_keys=inputs.build_key_reader(session),
    )
    findings = {**inputs.findings, "output": written.findings}
    data = dataset_results.show_written(written, statement_count=len(work.statements))
    return {**data, **dataset_results.show_findings(findings)}


async def _stream_rows(rows: SpooledRows, work: _DuckdbWork, sink: RowSink) -> dict[str, Any]:
    """Hand rows over, one window after another."""
    with closing(rows):
        windows = rows.iterate_windows(_WINDOW_ROWS)
        await sink.write_rows([], rows.columns)
        while (window := await run_in_thread(next, windows, None)) is not None:
            await sink.write_rows(window, rows.columns)
    return {"statement_count": len(work.statements), "status": "ok"}


def _explain_missing_table(error: ErrorObject, call: Call) -> ErrorObject:
    """Tell which tables a task has, where its statement names another one.

    What DuckDB finds near may be a table of its own, of which the user knows nothing.
    """
    missing = _MISSING_TABLE.match(error.message)
    if missing is None:
        return error
    if missing[1] in call.input:
        way_out = f"`input` gives values; rows to query go under `inputs: {{{missing[1]}: …}}`"
    else:
        tables = call.fields.get("inputs")
        names = ", ".join(map(str, tables)) if isinstance(tables, dict) else ""
        way_out = f"the task's inputs are {names or 'none'}"
    return structs.replace(error, message=f"{missing[0]}; {way_out}")
