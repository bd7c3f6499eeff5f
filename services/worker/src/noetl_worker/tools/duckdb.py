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
from msgspec import Struct

from noetl_chassis.blocking_work import in_thread, settled
from noetl_contracts.execution_files import INTERNAL_FOLDER
from noetl_worker.domain import sql_text
from noetl_worker.domain.failures import ToolFailure, failure, of_file
from noetl_worker.domain.sql_text import PlaceholderError, Statement
from noetl_worker.keys.credential_vault import Credential, Vault
from noetl_worker.own_time import own_time
from noetl_worker.tools import parts
from noetl_worker.tools.call import Call, Outcome, Sink
from noetl_worker.tools.duckdb_inputs import InputReader
from noetl_worker.tools.duckdb_results import show_query
from noetl_worker.tools.duckdb_rows import Rows
from noetl_worker.tools.duckdb_session import (
    DuckSession,
    Limits,
    Places,
    leave_shared_directory,
    refused,
)
from noetl_worker.tools.file_names import FileName
from noetl_worker.tools.path_locks import PathLocks
from noetl_worker.tools.postgres_statements import parse_statements
from noetl_worker.tools.references import References
from noetl_worker.tools.scripts import Scripts

R = TypeVar("R")

_WINDOW_ROWS = 128
MEMORY = ":memory:"
_FILE_USE = re.compile(
    r"\b(?:copy|export|import|attach)\b"
    r"|\b(?:read_\w+|\w+_scan|glob|sniff_csv|parquet_\w+)\s*\("
    r"|\b(?:from|join)\s*'"
    r"|[./]\w+['\"]",
    re.IGNORECASE,
)


class Lease:
    """A session, and the thread in which its blocking work is done.

    Relative names in statements are read in the thread's own working directory.
    """

    def __init__(self, session: DuckSession) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="duckdb", initializer=leave_shared_directory
        )

    async def run(self, work: Callable[[DuckSession], R]) -> R:
        """Do blocking work; when the caller is cancelled, the work is interrupted first."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, work, self._session)
        # An interrupt between two statements is lost on DuckDB, so it is said again.
        return await settled(running, urge=self._session.interrupt)

    async def close(self) -> None:
        """Close the session: what was not committed is undone."""
        loop = asyncio.get_running_loop()
        try:
            await settled(loop.run_in_executor(self._thread, self._session.close))
        finally:
            self._thread.shutdown(wait=False)


class _Work(Struct, frozen=True, kw_only=True):
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
        vault: Vault,
        inputs: InputReader,
        scripts: Scripts,
        references_: References,
        locks: PathLocks,
        limits: Limits,
    ) -> None:
        self._vault = vault
        self._scripts = scripts
        self._references = references_
        self._inputs = inputs
        self._limits = limits
        self._locks = locks
        self._free = asyncio.Semaphore(limits.databases_max)

    async def run(self, call: Call) -> Outcome:
        """Run every statement of a task."""
        try:
            async with own_time(call.timeout.total):
                return Outcome(data=await self._run(await self._scripts.with_query(call)))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the statements did not end within {call.timeout.total:g} s"
            return Outcome(error=failure("timeout", text, source="duckdb"))
        except PlaceholderError as problem:
            return Outcome(error=failure("validation", str(problem), source="duckdb"))
        except duckdb.Error as problem:
            return Outcome(error=refused(problem, None))

    async def _run(self, call: Call) -> dict[str, Any]:
        params = call.fields.get("params")
        statements = [
            (one, sql_text.arguments(one, params)) for one in parse_statements(call, "duckdb")
        ]
        work = _Work(
            database=database_name(call.fields.get("database"), call),
            uses_files=any(names_files(one.text) for one, _ in statements),
            attached=await self._attached(call),
            statements=statements,
        )
        if call.sink is not None:
            async with self._locked(work, call):
                async with self._leased(work, call) as lease:
                    rows = await lease.run(lambda session: _taken(session, work))
                await call.files.publish(Outcome())
            # Who takes the rows may need the database: it is free while they leave.
            return await _poured(rows, work, call.sink)
        async with self._locked(work, call):
            async with self._leased(work, call) as lease:
                data = await self._result(lease, work, call)
            # The next task to have the lock finds what this one has written.
            await call.files.publish(Outcome(data=data))
        return data

    async def _result(self, lease: Lease, work: _Work, call: Call) -> dict[str, Any]:
        if parts.is_wanted(call) and len(work.statements) == 1:
            found = await self._selected(lease, work, call)
            if found is not None:
                return found
        return await lease.run(lambda session: session.run(work.statements))

    async def _selected(self, lease: Lease, work: _Work, call: Call) -> dict[str, Any] | None:
        """Run a single query; the rows of a large table stay in the store. None for others."""
        ((statement, values),) = work.statements
        scan = await lease.run(
            lambda session: session.scan(statement.text, values, size=parts.BATCH_ROWS)
        )
        if scan is None:
            return None

        async def batches() -> AsyncGenerator[pa.RecordBatch]:
            while (batch := await lease.run(lambda _: next(scan.batches, None))) is not None:
                yield batch

        table = parts.Gathering(
            call,
            payloads=self._references.payloads(call.site),
            mask=self._vault.mask,
            kinds=scan.kinds,
            may_spread=scan.is_plain,
            bytes_max=self._limits.result_bytes_max,
        )
        async with aclosing(batches()) as found:
            rows, count = await table.gather(found)
        return show_query(rows, columns=scan.columns, types=scan.types, count=count)

    @asynccontextmanager
    async def _locked(self, work: _Work, call: Call) -> AsyncIterator[None]:
        """Have the database of a task alone while the block runs."""
        paths = [] if work.database is None else [call.files.lock_path(work.database)]
        async with self._locks.held(paths, call.site):
            yield

    @asynccontextmanager
    async def _leased(self, work: _Work, call: Call) -> AsyncIterator[Lease]:
        """Have a session with the task's database and inputs while the block runs."""
        # Read while the database is locked: it is one version of all files that the task sees.
        views = await self._inputs.read(call.fields.get("inputs"), call)
        database = await find_database(work.database, call)
        folder = await call.files.folder() if work.uses_files else None
        places = Places(database=database, folder=folder)
        async with self.leased(1) as (lease,):
            await lease.run(lambda session: _open(session, work, places, views))
            yield lease

    @asynccontextmanager
    async def leased(self, count: int) -> AsyncIterator[list[Lease]]:
        """Have as many sessions as a call has databases, in one place, while the block runs.

        Whoever comes here has the locks of all their files already (`PathLocks`): a place is
        never held by a call that waits for a lock.
        """
        async with AsyncExitStack() as stack:
            if count:
                await stack.enter_async_context(self._free)
            leases = []
            for _ in range(count):
                lease = Lease(DuckSession(limits=self._limits))
                stack.push_async_callback(lease.close)
                leases.append(lease)
            yield leases

    async def _attached(self, call: Call) -> dict[str, Credential]:
        """Resolve the databases to attach, by alias."""
        auth = call.auth
        if auth is None:
            return {}
        is_many = isinstance(auth, dict) and all(isinstance(one, dict) for one in auth.values())
        named = auth if is_many else {"pg": auth}
        found = {alias: await self._vault.resolve(one, call.site) for alias, one in named.items()}
        for alias, credential in found.items():
            if credential.kind != "postgres":
                text = (
                    f"credential '{credential.name}' of alias '{alias}' is of type "
                    f"'{credential.kind}', which a duckdb task cannot use: read the object with "
                    "kind artifact and give it to inputs"
                )
                raise ToolFailure(failure("config", text))
        return found


def database_name(given: Any, call: Call) -> FileName | None:
    """Read the name of a database, None for one in memory; raises `ToolFailure`.

    Tasks that name none share one of the execution.
    """
    if given is None or given == "":
        return FileName(path=f"{INTERNAL_FOLDER}/execution.duckdb")
    return None if given == MEMORY else call.files.parse_name(given)


async def find_database(name: FileName | None, call: Call) -> Path | None:
    """Return where a database lies, its folder made when it is new; raises `ToolFailure`."""
    if name is None:
        return None
    path = await call.files.path(name)
    try:
        await in_thread(path.parent.mkdir, parents=True, exist_ok=True)
    except OSError as problem:
        raise ToolFailure(of_file(problem, name.path, source="duckdb")) from problem
    return path


def names_files(statement: str) -> bool:
    """Tell whether a statement may read or write files; it is better told too often."""
    return _FILE_USE.search(statement) is not None


def _open(session: DuckSession, work: _Work, places: Places, views: dict[str, Any]) -> None:
    session.open(places, work.attached)
    for name, table in views.items():
        session.show(name, table)


def _taken(session: DuckSession, work: _Work) -> Rows:
    """Run all statements but the last, then take the rows of that to disk."""
    *earlier, (last, values) = work.statements
    if earlier:
        session.run(earlier)
    return session.taken(last.text, values)


async def _poured(rows: Rows, work: _Work, sink: Sink) -> dict[str, Any]:
    """Hand rows over, one window after another."""
    with closing(rows):
        windows = rows.windows(_WINDOW_ROWS)
        await sink.take([], rows.columns)
        while (window := await in_thread(next, windows, None)) is not None:
            await sink.take(window, rows.columns)
    return {"statement_count": len(work.statements), "status": "ok"}
