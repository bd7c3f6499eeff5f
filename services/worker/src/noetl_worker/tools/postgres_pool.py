"""Connections to target databases, one bounded pool per credential.

The client's own pool is not used: it resets a connection with a round trip at every release, and
it forbids keeping prepared statements, which this tool needs to bind values by type.
"""

import asyncio
from collections import deque
from typing import Any

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement
from msgspec import Struct

from noetl_chassis import identity
from noetl_worker import statements
from noetl_worker.credentials import Credential
from noetl_worker.domain import postgres_connecting
from noetl_worker.tools.leftovers import Leftovers
from noetl_worker.tools.postgres_types import Convert, bind, binder, reader

_QUERIES = statements.load(__package__, "postgres_pool")
_PLANS_MAX = 64
_CLOSE_S = 5.0
# Longer than a short statement takes, with others before it; a moment to whoever runs slow ones.
_PATIENCE_S = 0.25
_STALE = (
    asyncpg.exceptions.InvalidCachedStatementError,
    asyncpg.exceptions.OutdatedSchemaCacheError,
    asyncpg.exceptions.FeatureNotSupportedError,
)
# Another server answers than the one that prepared a statement, as behind a pooler of transactions,
# or somebody's statement has made this one forget it.
_UNKNOWN = (
    asyncpg.exceptions.InvalidSQLStatementNameError,
    asyncpg.exceptions.DuplicatePreparedStatementError,
)
# Parsed and planned at every run, in one go with it.
_NAMELESS = ""


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
    """One connection and the statements prepared on it.

    A statement keeps its name on the server, which parses it once and plans it a few times. In a
    transaction, where it could not be run again, and where names are not known again, it goes
    without one.
    """

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        self.connection = connection
        self._plan_by_key: dict[tuple[str, bool], Plan] = {}
        self._is_naming = True

    async def run(self, text: str, values: list[Any]) -> Rows:
        """Execute one statement: one round trip once it is prepared."""
        known = self._known(text)
        try:
            return await self._run_planned(known or await self._prepare(text), values)
        except (*_STALE, *_UNKNOWN) as problem:
            is_unknown = isinstance(problem, _UNKNOWN)
            self._is_naming = self._is_naming and not is_unknown
            self.forget(text)
            if self.connection.is_in_transaction() or not (known or is_unknown):
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
        key = self._key(text)
        # Names are told apart whoever else uses the server, and asked for: without a cache of its
        # own the client would give none.
        name = identity.token() if key[1] else _NAMELESS
        prepared = await self.connection.prepare(text, name=name)
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
        while len(self._plan_by_key) >= _PLANS_MAX:
            self._plan_by_key.pop(next(iter(self._plan_by_key)))
        self._plan_by_key[key] = plan
        return plan

    async def plan(self, text: str) -> Plan:
        """Return a statement's plan, preparing it when it is new to the connection."""
        return self._known(text) or await self._prepare(text)

    def _key(self, text: str) -> tuple[str, bool]:
        return text, self._is_naming and not self.connection.is_in_transaction()

    def _known(self, text: str) -> Plan | None:
        """Find a plan, and keep it longer than those whose text comes once, as claims' do."""
        key = self._key(text)
        plan = self._plan_by_key.pop(key, None)
        if plan is not None:
            self._plan_by_key[key] = plan
        return plan

    def forget(self, text: str) -> None:
        """Drop plans that may be stale."""
        for is_named in (True, False):
            self._plan_by_key.pop((text, is_named), None)

    async def reset(self) -> None:
        """Forget what statements may have left on the session."""
        if self.connection.is_in_transaction():
            await self.connection.execute(_QUERIES["roll_back"])
        self._plan_by_key.clear()
        await self.connection.execute(_QUERIES["forget"])

    async def limit_statements(self, seconds: float) -> None:
        """Bound every later statement until the session is reset."""
        await self.connection.fetchval(_QUERIES["limit_statements"], f"{seconds * 1000:.0f}")


class Pool:
    """At most `connections_max` connections of one credential; the latest used goes out first.

    The first `connections_soon` are opened as they are wanted. More are opened only for a task
    that has waited for `_PATIENCE_S`, as one does where statements are slow, and are closed again
    once nobody waits: short statements share few connections, and slow ones hold up nobody.
    """

    def __init__(
        self,
        credential: Credential,
        *,
        connections_max: int,
        connections_soon: int,
        leftovers: Leftovers,
    ) -> None:
        self.version = credential.version
        self._credential = credential
        self._leftovers = leftovers
        self._max = connections_max
        self._soon = min(connections_soon, connections_max)
        self._open = 0
        self._idle: list[Session] = []
        # Who waits, the longest first: each gets a connection, or None, the right to open one.
        self._waiters: deque[asyncio.Future[Session | None]] = deque()
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Tell whether every connection is in use."""
        return self._open >= self._max and not self._idle

    @property
    def waiting(self) -> int:
        """Count the tasks that wait for a connection."""
        return len(self._waiters)

    async def acquire(self, *, patience_s: float = _PATIENCE_S) -> Session:
        """Take an idle connection or open one; raises what the client raises."""
        session = self._take_idle()
        if session is None and self._open < self._soon:
            self._open += 1
        elif session is None:
            session = await self._wait(patience_s)
        if session is not None and not session.connection.is_closed():
            return session
        try:
            return Session(await _connect(self._credential))
        except BaseException:
            self._give_up_one()
            raise

    def release(self, session: Session, *, is_sound: bool) -> None:
        """Take a connection back; one that was interrupted is closed in the background."""
        is_closed = session.connection.is_closed()
        if is_closed or not is_sound or self._is_closed:
            if not is_closed:
                self._leftovers.add(_discard(session))
            self._give_up_one()
        elif self._hand(session):
            return
        elif self._open > self._soon:
            self._open -= 1
            self._leftovers.add(_discard(session))
        else:
            self._idle.append(session)

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        self._open -= len(idle)
        for session in idle:
            await _discard(session)

    def _take_idle(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            if not session.connection.is_closed():
                return session
            self._open -= 1
        return None

    async def _wait(self, patience_s: float) -> Session | None:
        """Wait for a connection; None is the right to open one, which the maximum bounds."""
        place: asyncio.Future[Session | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            await asyncio.wait([place], timeout=patience_s)
            if place.done():
                return place.result()
            if self._open < self._max:
                self._waiters.remove(place)
                self._open += 1
                return None
            return await place
        except asyncio.CancelledError:
            self._leave(place)
            raise

    def _leave(self, place: "asyncio.Future[Session | None]") -> None:
        """Pass on what a task was given that waits no more."""
        if place in self._waiters:
            self._waiters.remove(place)
        elif not place.cancelled():
            session = place.result()
            if session is None:
                self._give_up_one()
            else:
                self.release(session, is_sound=True)

    def _give_up_one(self) -> None:
        """Count a connection less; who waits longest may open another in its place."""
        self._open -= 1
        if self._hand(None):
            self._open += 1

    def _hand(self, session: Session | None) -> bool:
        """Give a connection, or the right to open one, to who waits longest; False: to nobody."""
        while self._waiters:
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(session)
                return True
        return False


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
