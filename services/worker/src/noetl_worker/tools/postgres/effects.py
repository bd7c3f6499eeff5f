"""The Postgres effects of one frame as one transaction, with a marker that commits with them.

A later run of the frame finds the marker and the outcome beside it, and repeats nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.sql import queries
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.postgres import old_markers
from noetl_worker.tools.postgres.postgres_session import PostgresSession, StaleStatement
from noetl_worker.tools.postgres.postgres_tool import (
    BROKEN,
    PostgresTool,
    classify_postgres_error,
    run_statements,
)
from noetl_worker.tools.postgres.task_fields import parse_statements

_QUERIES = queries.load_queries(__package__, "effects")
_IDLE_S = 30
_KEEP_ALIVE_S = 5.0


class EffectsLost(Exception):  # noqa: N818 - it says what happened to the frame
    """The transaction is gone and with it every effect of the frame: run it again."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


class FrameEffects:
    """One open transaction; statements of concurrent rows take turns in it."""

    def __init__(self, session: PostgresSession, *, auth: Any, site: UnitScope) -> None:
        self._session = session
        self._auth = auth
        self._site = site
        self._keys = (site.execution_id, str(site.frame_id))
        self._turn = asyncio.Lock()

    async def begin_effects(self) -> dict[str, Any] | None:
        """Open the transaction; return the outcome of a frame that took effect before.

        Raises `EffectsLost`, and `ToolFailure` where nobody can tell whether it did.
        """
        try:
            try:
                if self._session.take_pruning_turn():
                    await old_markers.prune_markers(self._session.connection)
                return await self._write_marker()
            except asyncpg.UndefinedTableError:
                await self._create_markers()
                return await self._write_marker()
        except BROKEN as problem:
            raise EffectsLost(classify_postgres_error(problem, None)) from problem

    async def _write_marker(self) -> dict[str, Any] | None:
        connection = self._session.connection
        await connection.execute("begin")
        await connection.fetchval(_QUERIES["end_idle"], f"{_IDLE_S}s")
        if await connection.fetchval(_QUERIES["mark"], *self._keys) is not None:
            await old_markers.check_not_pruned(connection, self._site)
            return None
        outcome_text = await connection.fetchval(_QUERIES["find_outcome"], *self._keys)
        await connection.execute("rollback")
        outcome: dict[str, Any] = codec.decode_json(outcome_text)
        return outcome

    async def _create_markers(self) -> None:
        connection = self._session.connection
        await connection.execute("rollback")
        # Two workers may make it at once; one of them then meets the other's.
        with contextlib.suppress(asyncpg.UniqueViolationError, asyncpg.DuplicateTableError):
            await connection.execute(_QUERIES["make_markers"])

    async def run(self, call: Call) -> Outcome:
        """Run a task's statements, all or nothing; raises `EffectsLost`."""
        if call.auth != self._auth:
            raise ToolFailure(
                build_error(
                    "config",
                    "the postgres tasks of a frame with transaction: true must "
                    "share one credential",
                )
            )
        parsed = parse_statements(call)
        if any(
            statement.is_transaction_control or statement.is_outside_transactions
            for statement in parsed
        ):
            raise ToolFailure(
                build_error(
                    "config",
                    "a frame with transaction: true cannot hold statements that "
                    "end a transaction or refuse to run in one",
                )
            )
        async with self._turn:
            try:
                async with task_timeout(call.timeout.total):
                    outcome = await self._run_in_savepoint(call)
            except TimeoutError as problem:
                text = f"the statements did not end within {call.timeout.total:g} s"
                raise EffectsLost(build_error("timeout", text, source="postgres")) from problem
            except BROKEN as problem:
                raise EffectsLost(classify_postgres_error(problem, None)) from problem
        if outcome.error is not None and outcome.error.kind == "db_connection":
            raise EffectsLost(outcome.error)
        return outcome

    async def _run_in_savepoint(self, call: Call) -> Outcome:
        try:
            return await self._run_statements(call)
        except StaleStatement:
            # With the savepoint all of the task is undone, so it may run again.
            await self._session.connection.execute("rollback to savepoint task")
            self._session.forget_plans()
        try:
            return await self._run_statements(call)
        except StaleStatement as problem:
            await self._session.connection.execute("rollback to savepoint task")
            return Outcome(error=problem.build_failure().error)

    async def _run_statements(self, call: Call) -> Outcome:
        connection = self._session.connection
        await connection.execute("savepoint task")
        outcome = await run_statements(self._session, parse_statements(call), call)
        if outcome.error is None:
            await connection.execute("release savepoint task")
        elif outcome.error.kind != "db_connection":
            await connection.execute("rollback to savepoint task")
        return outcome

    async def commit_effects(self, outcome: dict[str, Any]) -> None:
        """Commit the effects and the outcome together; raises `EffectsLost`."""
        async with self._turn:
            try:
                await self._session.connection.execute(
                    _QUERIES["note_outcome"], *self._keys, codec.encode_text(outcome)
                )
                await self._session.connection.execute("commit")
            except BROKEN as problem:
                raise EffectsLost(classify_postgres_error(problem, None)) from problem

    async def keep_alive(self) -> None:
        """Keep the server from ending the transaction while rows wait for others."""
        while True:
            await asyncio.sleep(_KEEP_ALIVE_S)
            async with self._turn:
                try:
                    await self._session.connection.fetchval(_QUERIES["breathe"])
                except BROKEN as problem:
                    raise EffectsLost(classify_postgres_error(problem, None)) from problem


async def create_markers(connection: "asyncpg.Connection[Any]") -> None:
    """Make the table of markers where there is none yet, and remove what is old in it."""
    # Two workers may make it at once; one of them then meets the other's.
    with contextlib.suppress(asyncpg.UniqueViolationError, asyncpg.DuplicateTableError):
        await connection.execute(_QUERIES["make_markers"])
    await old_markers.prune_markers(connection)


async def write_marker(connection: "asyncpg.Connection[Any]", execution_id: str, name: str) -> bool:
    """Claim an effect inside a transaction; tell whether nobody had committed it before."""
    return await connection.fetchval(_QUERIES["mark"], execution_id, name) is not None


async def find_outcome(
    connection: "asyncpg.Connection[Any]", execution_id: str, name: str
) -> dict[str, Any] | None:
    """Return the outcome of an effect that was committed before, or None."""
    outcome_text = await connection.fetchval(_QUERIES["find_outcome"], execution_id, name)
    outcome: dict[str, Any] | None = (
        None if outcome_text is None else codec.decode_json(outcome_text)
    )
    return outcome


async def store_outcome(
    connection: "asyncpg.Connection[Any]", execution_id: str, name: str, outcome: str
) -> None:
    """Keep an effect's outcome beside its marker."""
    await connection.execute(_QUERIES["note_outcome"], execution_id, name, outcome)


class TransferEffect:
    """One transfer's place in `noetl_effect`: the same in every attempt of it.

    Its outcome commits with the rows. What depends on both, as the position up to which a source
    was read, belongs into the outcome.
    """

    def __init__(self, connection: Any, call: Call) -> None:
        self._connection = connection
        self._site = call.site
        self._keys = (call.site.execution_id, f"transfer/{call.idempotency_key}")

    async def find_outcome(self) -> dict[str, Any] | None:
        """Return what an earlier attempt has written, None when none has."""
        await create_markers(self._connection)
        return await find_outcome(self._connection, *self._keys)

    async def claim_effect(self) -> dict[str, Any] | None:
        """Claim the effect for this transaction; return the outcome of an earlier attempt.

        Raises `ToolFailure` where nobody can tell whether there was one.
        """
        if await write_marker(self._connection, *self._keys):
            await old_markers.check_not_pruned(self._connection, self._site)
            return None
        earlier_outcome = await find_outcome(self._connection, *self._keys)
        return {} if earlier_outcome is None else earlier_outcome

    async def store_outcome(self, outcome: dict[str, Any]) -> None:
        """Keep the outcome together with the rows."""
        await store_outcome(self._connection, *self._keys, codec.encode_text(outcome))


@asynccontextmanager
async def open_effects(
    tool: PostgresTool, *, auth: Any, site: UnitScope
) -> AsyncIterator[FrameEffects]:
    """Hold one connection for a frame; what was not committed is rolled back.

    Tasks of the frame may need others of the same pool meanwhile. Raises `EffectsLost`, and
    `ToolFailure` where no connection became free.
    """
    pool = await tool.get_pool(auth, site)
    try:
        session = await pool.acquire_session(lasts=True)
    except BROKEN as problem:
        raise EffectsLost(classify_postgres_error(problem, None)) from problem
    try:
        yield FrameEffects(session, auth=auth, site=site)
    finally:
        connection = session.connection
        is_sound = not connection.is_closed() and not connection.is_in_transaction()
        pool.release_session(session, is_sound=is_sound)
