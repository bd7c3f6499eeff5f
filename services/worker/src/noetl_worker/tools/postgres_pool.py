"""Connections to target databases, one bounded pool per credential.

The client's own pool is not used: it resets a connection with a round trip at every release, and
it forbids keeping prepared statements, which this tool needs to bind values by type.
"""

import asyncio
from typing import Any

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement
from msgspec import Struct

from noetl_worker import statements
from noetl_worker.credentials import Credential
from noetl_worker.domain import postgres_connecting
from noetl_worker.tools.leftovers import Leftovers
from noetl_worker.tools.postgres_types import Convert, bind, binder, reader

_QUERIES = statements.load(__package__, "postgres_pool")
_PLANS_MAX = 64
_CLOSE_S = 5.0
_STALE = (
    asyncpg.exceptions.InvalidCachedStatementError,
    asyncpg.exceptions.OutdatedSchemaCacheError,
    asyncpg.exceptions.FeatureNotSupportedError,
)


class Plan(Struct, frozen=True, kw_only=True):
    """A prepared statement and how its values are bound and read."""

    prepared: "PreparedStatement[Any]"
    binders: tuple[Convert, ...]
    parameter_types: tuple[str, ...]
    columns: tuple[str, ...]
    readers: tuple[tuple[str, Convert], ...]


class Rows(Struct, frozen=True, kw_only=True):
    """What one statement gave."""

    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    message: str


def rows_of(records: list[Any], plan: Plan) -> list[dict[str, Any]]:
    """Show records as rows of JSON-able values."""
    rows = [dict(record.items()) for record in records]
    for name, read in plan.readers:
        for row in rows:
            if row[name] is not None:
                row[name] = read(row[name])
    return rows


class Session:
    """One connection and the statements prepared on it."""

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        self.connection = connection
        self._plan_by_text: dict[str, Plan] = {}

    async def run(self, text: str, values: list[Any]) -> Rows:
        """Execute one statement: one round trip once it is prepared."""
        plan = self._plan_by_text.get(text)
        if plan is None:
            return await self._run_planned(await self._prepare(text), values)
        try:
            return await self._run_planned(plan, values)
        except _STALE:
            self._plan_by_text.pop(text, None)
            if self.connection.is_in_transaction():
                raise
            return await self._run_planned(await self._prepare(text), values)

    async def _run_planned(self, plan: Plan, values: list[Any]) -> Rows:
        bound = bind(values, plan.binders, plan.parameter_types)
        records = await plan.prepared.fetch(*bound)
        return Rows(
            rows=rows_of(records, plan),
            columns=plan.columns,
            message=plan.prepared.get_statusmsg() or "",
        )

    async def _prepare(self, text: str) -> Plan:
        prepared = await self.connection.prepare(text)
        types = tuple(parameter.name for parameter in prepared.get_parameters())
        attributes = prepared.get_attributes()
        readers = ((column.name, reader(column.type.name)) for column in attributes)
        plan = Plan(
            prepared=prepared,
            binders=tuple(binder(name) for name in types),
            parameter_types=types,
            columns=tuple(column.name for column in attributes),
            readers=tuple((name, read) for name, read in readers if read is not None),
        )
        while len(self._plan_by_text) >= _PLANS_MAX:
            self._plan_by_text.pop(next(iter(self._plan_by_text)))
        self._plan_by_text[text] = plan
        return plan

    async def plan(self, text: str) -> Plan:
        """Return a statement's plan, preparing it when it is new to the connection."""
        return self._plan_by_text.get(text) or await self._prepare(text)

    def forget(self, text: str) -> None:
        """Drop a plan that may be stale."""
        self._plan_by_text.pop(text, None)

    async def reset(self) -> None:
        """Forget what statements may have left on the session."""
        if self.connection.is_in_transaction():
            await self.connection.execute(_QUERIES["roll_back"])
        self._plan_by_text.clear()
        await self.connection.execute(_QUERIES["forget"])

    async def limit_statements(self, seconds: float) -> None:
        """Bound every later statement until the session is reset."""
        await self.connection.fetchval(_QUERIES["limit_statements"], f"{seconds * 1000:.0f}")


class Pool:
    """At most `connections_max` connections of one credential; the latest used goes out first."""

    def __init__(
        self, credential: Credential, *, connections_max: int, leftovers: Leftovers
    ) -> None:
        self.version = credential.version
        self.waiting = 0
        self._credential = credential
        self._leftovers = leftovers
        self._free = asyncio.Semaphore(connections_max)
        self._idle: list[Session] = []
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Tell whether every connection is in use."""
        return self._free.locked()

    async def acquire(self) -> Session:
        """Take an idle connection or open one; raises what the client raises."""
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        while self._idle:
            session = self._idle.pop()
            if not session.connection.is_closed():
                return session
        try:
            return Session(await _connect(self._credential))
        except BaseException:
            self._free.release()
            raise

    def release(self, session: Session, *, is_sound: bool) -> None:
        """Take a connection back; one that was interrupted is closed in the background."""
        self._free.release()
        if session.connection.is_closed():
            return
        if is_sound and not self._is_closed:
            self._idle.append(session)
        else:
            self._leftovers.add(_discard(session))

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for session in idle:
            await _discard(session)


async def _discard(session: Session) -> None:
    """Close a connection; a cancelled statement is cancelled on the server first."""
    try:
        await session.connection.close(timeout=_CLOSE_S)
    except (
        TimeoutError,
        OSError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ):
        session.connection.terminate()


async def _connect(credential: Credential) -> "asyncpg.Connection[Any]":
    known = postgres_connecting.arguments(credential.fields, application="noetl-worker")
    connection: asyncpg.Connection[Any] = await asyncpg.connect(**known)
    return connection
