"""The `duckdb` tool: SQL over files, rows and references, in a database of the execution."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
from msgspec import Struct

from noetl_worker.credentials import Credential, Vault
from noetl_worker.domain import sql_text
from noetl_worker.domain.failures import ToolFailure, failure, of_file
from noetl_worker.domain.sites import Site
from noetl_worker.domain.sql_text import PlaceholderError, Statement
from noetl_worker.in_thread import in_thread, settled
from noetl_worker.own_time import own_time
from noetl_worker.tools import parts
from noetl_worker.tools.call import Call, Outcome, Sink
from noetl_worker.tools.duckdb_inputs import InputReader
from noetl_worker.tools.duckdb_rows import Rows
from noetl_worker.tools.duckdb_session import DuckSession, Limits, raw_of_query, refused
from noetl_worker.tools.path_locks import PathLocks
from noetl_worker.tools.postgres_statements import parse_statements
from noetl_worker.tools.references import References
from noetl_worker.tools.workplace import WorkFolder

R = TypeVar("R")

_WINDOW_ROWS = 128
_MEMORY = ":memory:"


class Lease:
    """A session, and the threads in which its blocking work is done, one call at a time."""

    def __init__(self, session: DuckSession, *, threads: ThreadPoolExecutor) -> None:
        self._session = session
        self._threads = threads

    async def run(self, work: Callable[[DuckSession], R]) -> R:
        """Do blocking work; when the caller is cancelled, the work is interrupted first."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, work, self._session)
        # An interrupt between two statements is lost on DuckDB, so it is said again.
        return await settled(running, urge=self._session.interrupt)

    async def close(self) -> None:
        """Close the session: what was not committed is undone."""
        loop = asyncio.get_running_loop()
        await settled(loop.run_in_executor(self._threads, self._session.close))


class _Work(Struct, frozen=True, kw_only=True):
    """What one attempt does in its thread."""

    database: Path | None
    attached: dict[str, Credential]
    views: dict[str, Any]
    statements: list[tuple[Statement, list[Any]]]


class DuckdbTool:
    """Runs SQL beside the event loop; one attempt at a time has a database file."""

    def __init__(
        self,
        *,
        vault: Vault,
        inputs: InputReader,
        references_: References,
        folder: WorkFolder,
        locks: PathLocks,
        limits: Limits,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._vault = vault
        self._references = references_
        self._inputs = inputs
        self._folder = folder
        self._limits = limits
        self._threads = threads
        self._locks = locks
        self._free = asyncio.Semaphore(limits.databases_max)

    async def run(self, call: Call) -> Outcome:
        """Run every statement of a task."""
        try:
            async with own_time(call.timeout.total):
                return Outcome(data=await self._run(call))
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
        statements = [(one, sql_text.arguments(one, params)) for one in parse_statements(call)]
        database = self.database(call.fields.get("database"), call.site)
        work = _Work(
            database=database,
            attached=await self._attached(call),
            views=await self._inputs.read(call.fields.get("inputs"), call),
            statements=statements,
        )
        if call.sink is not None:
            async with self._leased(work, call.site) as lease:
                rows = await lease.run(lambda session: _taken(session, work))
            # Who takes the rows may need the database: it is free while they leave.
            return await _poured(rows, work, call.sink)
        async with self._leased(work, call.site) as lease:
            await lease.run(lambda session: _open(session, work))
            if parts.is_wanted(call) and len(statements) == 1:
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
        return raw_of_query(rows, columns=scan.columns, types=scan.types, count=count)

    def database(self, named: Any, site: Site) -> Path | None:
        """Return the file of a database, None for one in memory; raises `ToolFailure`."""
        if named is None or named == "":
            return self._folder.execution_database(site)
        if named == _MEMORY:
            return None
        if not isinstance(named, str):
            raise ToolFailure(failure("validation", "field 'database' must be a file name"))
        path = self._folder.resolve(named, site)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ToolFailure(of_file(problem, named, source="duckdb")) from problem
        return path

    @asynccontextmanager
    async def _leased(self, work: "_Work", site: Site) -> AsyncIterator[Lease]:
        """Have the database of a task alone while the block runs."""
        paths = [] if work.database is None else [work.database]
        async with (
            self._locks.held(paths, site),
            self.leased(1) as (lease,),
        ):
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
                lease = Lease(DuckSession(limits=self._limits), threads=self._threads)
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


def _open(session: DuckSession, work: _Work) -> None:
    session.open(work.database, work.attached)
    for name, table in work.views.items():
        session.show(name, table)


def _taken(session: DuckSession, work: _Work) -> Rows:
    """Run all statements but the last, then take the rows of that to disk."""
    *earlier, (last, values) = work.statements
    _open(session, work)
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


@asynccontextmanager
async def open_duckdb(
    *,
    vault: Vault,
    inputs: InputReader,
    references_: References,
    folder: WorkFolder,
    locks: PathLocks,
    limits: Limits,
) -> AsyncIterator[DuckdbTool]:
    """Hold the tool's threads while the block runs."""
    threads = ThreadPoolExecutor(limits.databases_max, thread_name_prefix="duckdb")
    try:
        yield DuckdbTool(
            vault=vault,
            inputs=inputs,
            references_=references_,
            folder=folder,
            locks=locks,
            limits=limits,
            threads=threads,
        )
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
