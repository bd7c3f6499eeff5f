"""The `postgres` tool: one transaction per attempt, values bound by type."""

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import asyncpg
from msgspec import structs

from noetl_contracts.errors import ErrorObject
from noetl_storage.process.connection_peaks import ConnectionPeaks
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.domain.failures import (
    ToolFailure,
    build_error,
    classify_sqlstate,
    format_problem,
)
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import Credential, CredentialVault
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.sql import sql_statements
from noetl_worker.sql.sql_statements import PlaceholderError, Statement, describe_fault_place
from noetl_worker.tools.calls.background_tasks import BackgroundTasks
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.calls.call_datasets import CallDatasets
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.postgres.group_commit import NO_ROWS, GroupCommit, can_share
from noetl_worker.tools.postgres.postgres_pool import ConnectionPool, PoolLimits, build_busy_error
from noetl_worker.tools.postgres.postgres_session import (
    PostgresSession,
    StaleStatement,
    StatementRows,
)
from noetl_worker.tools.postgres.task_fields import (
    PoolHints,
    is_autocommit,
    name_parameters,
    parse_pool_hints,
    parse_statement_timeout_s,
    parse_statements,
)
from noetl_worker.tools.postgres.value_types import UnfitValue
from noetl_worker.tools.scripts.script_loader import ScriptLoader

if TYPE_CHECKING:
    from noetl_worker.tools.postgres import query_output
else:
    query_output = LazyModule("noetl_worker.tools.postgres.query_output")

_POOLS_MAX = 64

PoolKey = tuple[str, str, str, str, int]

# What the client raises when a statement or the connection under it fails.
BROKEN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class PostgresTool:
    """Runs SQL with the pool of the task's credential."""

    def __init__(
        self,
        *,
        vault: CredentialVault,
        scripts: ScriptLoader,
        references_: ReferenceReader,
        room: PoolLimits,
        datasets: CallDatasets,
    ) -> None:
        self._vault = vault
        self._datasets = datasets
        self._references = references_
        self._scripts = scripts
        self._room = room
        self._leftovers = BackgroundTasks()
        # Of all pools together: their servers may be one.
        self.peaks = ConnectionPeaks()
        self._pool_by_key: dict[PoolKey, ConnectionPool] = {}
        self._sharing_by_pool: WeakKeyDictionary[ConnectionPool, GroupCommit] = WeakKeyDictionary()

    async def run(self, call: Call) -> Outcome:
        """Run every statement of a task."""
        try:
            call = await self._scripts.attach_query(call)
            if call.fields.get("sink") is not None:
                return Outcome(data=await self._export_query(call))
            if call.transaction is not None:
                return await call.transaction.run(call)
            statements = parse_statements(call)
            if call.may_share and can_share(statements, call):
                return await self._run_shared(statements[0], call)
            async with task_timeout(call.timeout.total):
                return await self._run_in_session(statements, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the statements did not end within {call.timeout.total:g} s"
            return Outcome(error=build_error("timeout", text, source="postgres"))
        except (PlaceholderError, UnfitValue) as problem:
            return Outcome(error=build_error("validation", str(problem), source="postgres"))
        except StaleStatement as problem:
            return Outcome(error=problem.build_failure().error)
        except BROKEN as problem:
            return Outcome(error=classify_postgres_error(problem, None))

    async def _export_query(self, call: Call) -> dict[str, Any]:
        """Write a query's rows into a dataset."""
        # It reads rows as the source of a transfer does, which needs this module.
        exporting = importlib.import_module("noetl_worker.tools.postgres.query_batches")
        plan = await self._datasets.describe_sink(call.fields["sink"], call)
        data: dict[str, Any] = await exporting.export_query(
            parse_statements(call),
            call,
            credential=await self.resolve_credential(call.auth, call.site),
            plan=plan,
        )
        return data

    async def _run_in_session(self, statements: tuple[Statement, ...], call: Call) -> Outcome:
        hints = parse_pool_hints(call.fields)
        pool = await self.get_pool(call.auth, call.site, hints)
        session = await _acquire_session(pool, hints, lasts=call.sink is not None)
        is_sound = False
        try:
            outcome = await self._run_as_wanted(session, statements, call)
            if call.fields.get("statement_timeout") is not None or any(
                statement.leaves_session_state for statement in statements
            ):
                await session.reset_session()
            # A server that is going away answers once more before its end reaches the client.
            is_sound = outcome.error is None or outcome.error.kind != "db_connection"
        finally:
            pool.release_session(session, is_sound=is_sound)
        return outcome

    async def _run_as_wanted(
        self, session: PostgresSession, statements: tuple[Statement, ...], call: Call
    ) -> Outcome:
        """Run the statements as the task wants their rows: streamed, as a table, or as values."""
        if call.sink is not None:
            return await _run_streamed(session, statements, call)
        if not query_output.is_table_wanted(statements, call):
            return await _run_attempt(session, statements, call)
        timeout_s = parse_statement_timeout_s(call.fields)
        if timeout_s is not None:
            await session.limit_statements(timeout_s)
        payloads = self._references.get_payloads(call.site)
        try:
            table = await query_output.read_table(
                session, statements[0], call, payloads=payloads, mask=self._vault.secret_mask
            )
        except asyncpg.PostgresError as problem:
            return Outcome(error=_classify_statement_error(problem, 0, statements[0]))
        if table is None:
            return await run_statements(session, statements, call)
        return Outcome(data=table)

    async def _run_shared(self, statement: Statement, call: Call) -> Outcome:
        """Run a statement together with others of its text."""
        pool = await self.get_pool(call.auth, call.site)
        sharing = self._sharing_by_pool.get(pool)
        if sharing is None:
            sharing = GroupCommit(pool, leftovers=self._leftovers, is_sound_after=_is_sound_after)
            self._sharing_by_pool[pool] = sharing
        values = sql_statements.order_arguments(statement, call.fields.get("params"))
        try:
            rows = await sharing.run_shared(statement.text, values, patience_s=call.timeout.total)
        except asyncpg.PostgresError as problem:
            return Outcome(error=_classify_statement_error(problem, 0, statement))
        except UnfitValue as problem:
            return Outcome(error=_build_unfit_error(problem, statement))
        return Outcome(data=_NOTHING.copy() if rows is NO_ROWS else _build_result([rows]))

    async def resolve_credential(self, auth: Any, site: UnitScope) -> Credential:
        """Return the credential of a database; raises `ToolFailure`."""
        credential = await self._vault.resolve_auth(auth, site)
        _check_kind(credential)
        return credential

    async def get_pool(
        self, auth: Any, site: UnitScope, hints: PoolHints | None = None
    ) -> ConnectionPool:
        """Return the pool of a credential; a newer version of it gets a new pool."""
        credential = self._vault.find_fresh(auth, site) or await self._vault.resolve_auth(
            auth, site
        )
        _check_kind(credential)
        name = credential.name if credential.version else repr(sorted(credential.fields.items()))
        pool_hints = hints or PoolHints()
        size = min(pool_hints.size_max or self._room.most, self._room.most)
        key = (site.tenant_id, site.organization_id, name, pool_hints.name, size)
        pool = self._pool_by_key.get(key)
        if pool is not None and pool.version == credential.version:
            return pool
        if pool is not None:
            self._leftovers.start_task(pool.close())
        while len(self._pool_by_key) >= _POOLS_MAX:
            oldest = next(iter(self._pool_by_key))
            self._leftovers.start_task(self._pool_by_key.pop(oldest).close())
        fresh = ConnectionPool(
            credential,
            room=structs.replace(self._room, most=size),
            leftovers=self._leftovers,
            name=pool_hints.name,
            peaks=self.peaks,
        )
        self._pool_by_key[key] = fresh
        return fresh

    async def close(self) -> None:
        """Close every idle connection."""
        for pool in self._pool_by_key.values():
            await pool.close()
        await self._leftovers.wait_for_all()


def _is_sound_after(problem: Exception) -> bool:
    return classify_postgres_error(problem, None).kind != "db_connection"


async def _run_attempt(
    session: PostgresSession, statements: tuple[Statement, ...], call: Call
) -> Outcome:
    """Run the statements in one transaction, or one by one where there can be none."""
    timeout_s = parse_statement_timeout_s(call.fields)
    if timeout_s is not None:
        await session.limit_statements(timeout_s)
    alone = (
        is_autocommit(call.fields)
        or len(statements) == 1
        or any(
            statement.is_transaction_control or statement.is_outside_transactions
            for statement in statements
        )
    )
    if alone:
        return await run_statements(session, statements, call)
    return await _run_in_transaction(session, statements, call)


async def _run_in_transaction(
    session: PostgresSession, statements: tuple[Statement, ...], call: Call
) -> Outcome:
    """Run statements together; once more if types have changed since they were prepared."""
    try:
        return await _run_together(session, statements, call)
    except StaleStatement:
        session.forget_plans()
    return await _run_together(session, statements, call)


async def _run_together(
    session: PostgresSession, statements: tuple[Statement, ...], call: Call
) -> Outcome:
    transaction = session.connection.transaction()
    await transaction.start()
    try:
        outcome = await run_statements(session, statements, call)
    except StaleStatement:
        await transaction.rollback()
        raise
    if outcome.error is not None:
        await transaction.rollback()
    else:
        await transaction.commit()
    return outcome


async def _run_streamed(
    session: PostgresSession, statements: tuple[Statement, ...], call: Call
) -> Outcome:
    """Run the statements, and pour the rows of the last one; all in one transaction."""
    *earlier, last = statements
    if any(
        statement.is_transaction_control or statement.is_outside_transactions
        for statement in statements
    ):
        text = "field 'stream' needs a transaction: leave out what begins, ends or refuses one"
        raise ToolFailure(build_error("validation", text, source="postgres"))
    timeout_s = parse_statement_timeout_s(call.fields)
    if timeout_s is not None:
        await session.limit_statements(timeout_s)
    transaction = session.connection.transaction()
    if earlier and is_autocommit(call.fields):
        outcome = await run_statements(session, tuple(earlier), call)
        await transaction.start()
    else:
        await transaction.start()
        outcome = await run_statements(session, tuple(earlier), call) if earlier else Outcome()
    if outcome.error is None:
        outcome = await _stream_last(session, last, call, index=len(earlier))
    if outcome.error is not None:
        await transaction.rollback()
    else:
        await transaction.commit()
    return outcome


async def _stream_last(
    session: PostgresSession, last: Statement, call: Call, *, index: int
) -> Outcome:
    try:
        message = await query_output.stream_rows(session, last, call)
    except asyncpg.PostgresError as problem:
        return Outcome(error=_classify_statement_error(problem, index, last))
    except UnfitValue as problem:
        return Outcome(error=_build_unfit_error(problem, last))
    except ToolFailure as problem:
        return Outcome(error=problem.error)
    return Outcome(data={"statement_count": index + 1, "status": "ok", "message": message})


async def run_statements(
    session: PostgresSession, statements: tuple[Statement, ...], call: Call
) -> Outcome:
    """Run statements one after another on a session; the first that fails ends it."""
    params = call.fields.get("params")
    results: list[StatementRows] = []
    for index, statement in enumerate(statements):
        try:
            values = sql_statements.order_arguments(statement, params)
            results.append(await session.run_statement(statement.text, values))
        except asyncpg.PostgresError as problem:
            return Outcome(error=_classify_statement_error(problem, index, statement))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except (PlaceholderError, UnfitValue) as problem:
            return Outcome(error=_build_unfit_error(problem, statement))
    return Outcome(data=_build_result(results))


async def _acquire_session(
    pool: ConnectionPool, hints: PoolHints, *, lasts: bool
) -> PostgresSession:
    """Take a connection, waiting no longer and with no more others than the task wants."""
    if hints.waiting_max is not None and pool.is_busy and pool.waiting_count >= hints.waiting_max:
        raise ToolFailure(
            build_busy_error(f"{pool.waiting_count} tasks wait for a connection of {pool} already")
        )
    if hints.wait_s is None:
        return await pool.acquire_session(lasts=lasts)
    return await pool.acquire_session(patience_s=0, wait_s=hints.wait_s, lasts=lasts)


def _check_kind(credential: Credential) -> None:
    if credential.kind != "postgres":
        raise ToolFailure(
            build_error(
                "config",
                f"credential '{credential.name}' is of type '{credential.kind}', "
                "which a postgres task cannot use: use type postgres",
            )
        )


def _build_result(results: list[StatementRows]) -> dict[str, Any]:
    commands = [_build_command(result) for result in results]
    shown_command = next((command for command in reversed(commands) if command["columns"]), None)
    last_command = commands[-1]
    raw: dict[str, Any] = {
        "rows": [] if shown_command is None else shown_command["rows"],
        "row_count": last_command["row_count"]
        if shown_command is None
        else shown_command["row_count"],
        "columns": [] if shown_command is None else shown_command["columns"],
        **({} if shown_command is None else {"types": shown_command["types"]}),
        "statement_count": len(commands),
        "status": last_command["status"],
        "message": last_command["message"],
    }
    if len(commands) > 1:
        raw["commands"] = commands
    return raw


def _build_command(result: StatementRows) -> dict[str, Any]:
    count = result.message.rpartition(" ")[2]
    affected = int(count) if count.isdigit() else 0
    return {
        "rows": result.rows,
        "row_count": len(result.rows) if result.columns else affected,
        "columns": list(result.columns),
        **({"types": list(result.types)} if result.columns else {}),
        "status": "ok",
        "message": result.message,
    }


# Of a statement that went together with others, and of whose rows there were none.
_NOTHING = _build_result([NO_ROWS])


def classify_postgres_error(
    problem: Exception, statement: int | None, text: str = ""
) -> ErrorObject:
    """Classify what the database or the connection to it refused, and say where in the `text`."""
    sqlstate = getattr(problem, "sqlstate", None)
    # The client says so itself of a value that it cannot write.
    is_clients = isinstance(problem, asyncpg.DataError) and problem.severity is None
    if sqlstate is None or is_clients:
        return _classify_client_error(problem)
    details = {
        "statement": statement,
        "constraint": getattr(problem, "constraint_name", None),
        "table": getattr(problem, "table_name", None),
        **describe_fault_place(text, _find_position(problem)),
    }
    known_names = {name: item for name, item in details.items() if item is not None}
    return classify_sqlstate(sqlstate, format_problem(problem), details=known_names)


def _classify_statement_error(problem: Exception, index: int, statement: Statement) -> ErrorObject:
    """Classify what was refused of a statement, in the task's own words for its parameters."""
    error = classify_postgres_error(problem, index, statement.text)
    return structs.replace(error, message=name_parameters(error.message, statement))


def _build_unfit_error(problem: Exception, statement: Statement) -> ErrorObject:
    text = name_parameters(str(problem), statement)
    return build_error("validation", text, source="postgres")


def _find_position(problem: Exception) -> int | None:
    """Return the character of the statement that the server names, from 1, if it names one."""
    position = getattr(problem, "position", None)
    return int(position) if position is not None and str(position).isdigit() else None


def _classify_client_error(problem: Exception) -> ErrorObject:
    if isinstance(problem, asyncpg.DataError):
        return build_error("validation", str(problem), source="postgres")
    text = f"the connection to the database failed: {format_problem(problem)}"
    return build_error("db_connection", text, code="PG_08006", source="postgres")


@asynccontextmanager
async def open_postgres(
    *,
    vault: CredentialVault,
    scripts: ScriptLoader,
    references_: ReferenceReader,
    room: PoolLimits,
    datasets: CallDatasets,
) -> AsyncIterator[PostgresTool]:
    """Hold the pools while the block runs."""
    tool = PostgresTool(
        vault=vault, scripts=scripts, references_=references_, room=room, datasets=datasets
    )
    try:
        yield tool
    finally:
        await tool.close()
