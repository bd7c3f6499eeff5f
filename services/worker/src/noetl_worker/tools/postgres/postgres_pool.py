"""Connections to PostgreSQL: opened with codecs, pooled by credential, and reset between calls.

The client's own forms of dates, times, timestamps and intervals are Python's, which have no
infinity, no year 10000 and no months. The codecs take PostgreSQL's numbers instead, so the same
value has the same JSON form everywhere: in a column, an array, a range or a composite.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import structlog
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_storage.process.connection_peaks import ConnectionPeaks
from noetl_worker.domain import postgres_connection
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.sql import server_names
from noetl_worker.tools.calls.background_tasks import BackgroundTasks
from noetl_worker.tools.postgres.intervals import read_interval, write_interval
from noetl_worker.tools.postgres.moments import (
    read_date,
    read_time,
    read_timestamp,
    read_timestamptz,
    read_timetz,
    write_date,
    write_time,
    write_timestamp,
    write_timetz,
)
from noetl_worker.tools.postgres.postgres_session import PostgresSession

_CODECS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "date": (write_date, read_date),
    "timestamp": (write_timestamp, read_timestamp),
    "timestamptz": (write_timestamp, read_timestamptz),
    "time": (write_time, read_time),
    "timetz": (write_timetz, read_timetz),
    "interval": (write_interval, read_interval),
}
_CLOSE_S = 5.0
# Another connection, and the end of the process.
_END_S = 30.0
_CLOSING_FAULTS = (
    TimeoutError,
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
# Longer than a few short statements take, and short beside a slow one.
_PATIENCE_S = 0.25
_SETTING = "NOETL_WORKER_POSTGRES_CONNECTIONS_MAX"

log = structlog.get_logger(__name__)


async def set_codecs(connection: "asyncpg.Connection[Any]") -> None:
    """Let a connection pass these types as their exact values; no statement is sent."""
    for name, (encoder, decoder) in _CODECS.items():
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="tuple"
        )


class PoolLimits(Struct, frozen=True, kw_only=True):
    """How many connections a pool has, how many of them at once, and how long tasks wait for one.

    `soon` are opened as they are wanted; the more, up to `most`, for those who have to wait.
    """

    most: int
    soon: int
    wait_s: float


class ConnectionPool:
    """At most `room.most` connections of one credential; the latest used goes out first.

    The first `room.soon` are opened as they are wanted. More are opened only for a task
    that has waited for `_PATIENCE_S`, as one does where statements are slow, and are closed again
    once nobody waits: short statements share few connections, and slow ones hold up nobody.

    Nobody waits for ever. Some keep a connection while others need one, perhaps from here: the
    transaction of a frame, whose tasks read and move rows over connections of their own, and a
    stream, which waits for those who take its chunks. They say that it `lasts`, hold no other
    meanwhile that does, and have all connections but one between them (a pool of one has a second
    for the others). So one at least is free, or with somebody who asks this pool for no more. Who
    needs connections of several pools takes them in one order, and who has come furthest in it
    waits for none. What remains are tasks that take long: who has waited for `room.wait_s` is told.
    """

    def __init__(
        self,
        credential: Credential,
        *,
        room: PoolLimits,
        leftovers: BackgroundTasks,
        name: str = "",
        peaks: ConnectionPeaks | None = None,
    ) -> None:
        self._peaks = peaks or ConnectionPeaks()
        self.version = credential.version
        self._credential = credential
        self._name = name
        self._leftovers = leftovers
        self._room = room
        self._soon = min(room.soon, room.most)
        self._may_last = asyncio.Semaphore(max(1, room.most - 1))
        self._lasting: set[PostgresSession] = set()
        self._requests_open = 0
        self._open = 0
        self._idle: list[PostgresSession] = []
        # Who waits, the longest first: each gets a connection, or None, the right to open one.
        self._waiters: deque[asyncio.Future[PostgresSession | None]] = deque()
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Tell whether every connection is in use."""
        return self._open >= self._connections_max and not self._idle

    @property
    def waiting_count(self) -> int:
        """Count the tasks that wait for a connection."""
        return len(self._waiters) + self._requests_open

    @property
    def _connections_max(self) -> int:
        """Return the bound; a pool of one has a second connection while the first lasts."""
        return self._room.most if self._room.most > 1 else 1 + len(self._lasting)

    async def acquire_session(
        self,
        *,
        patience_s: float = _PATIENCE_S,
        wait_s: float | None = None,
        lasts: bool = False,
    ) -> PostgresSession:
        """Take an idle connection or open one, waiting for `wait_s` or as long as the pool says.

        Raises what the client raises, and `ToolFailure` when none became free.
        """
        wait_s = self._room.wait_s if wait_s is None else wait_s
        if not lasts:
            session = await self._acquire_connection(patience_s, wait_s)
            self._peaks.in_use.change_level(1)
            return session
        await self._wait_for_permission(wait_s)
        try:
            session = await self._acquire_connection(patience_s, wait_s)
        except BaseException:
            self._may_last.release()
            raise
        self._lasting.add(session)
        self._peaks.in_use.change_level(1)
        self._open_more()
        return session

    async def _wait_for_permission(self, wait_s: float) -> None:
        """Become one of those whose connection lasts."""
        self._requests_open += 1
        try:
            async with self._bound_wait(wait_s):
                await self._may_last.acquire()
        finally:
            self._requests_open -= 1

    async def _acquire_connection(self, patience_s: float, wait_s: float) -> PostgresSession:
        session = self._take_idle()
        if session is None and self._open < self._soon:
            self._open += 1
        elif session is None:
            async with self._bound_wait(wait_s):
                session = await self._wait_for_session(patience_s)
        if session is not None and not session.connection.is_closed():
            return session
        try:
            return PostgresSession(await open_postgres_connection(self._credential))
        except BaseException:
            self._give_up_one()
            raise

    def release_session(self, session: PostgresSession, *, is_sound: bool) -> None:
        """Take a connection back; one that was interrupted is closed in the background."""
        self._peaks.in_use.change_level(-1)
        self._settle_session(session, is_sound=is_sound)

    def _settle_session(self, session: PostgresSession, *, is_sound: bool) -> None:
        if session in self._lasting:
            self._lasting.remove(session)
            self._may_last.release()
        is_closed = session.connection.is_closed()
        if is_closed or not is_sound or self._is_closed or self._open > self._connections_max:
            if not is_closed:
                self._leftovers.start_task(self._discard_session(session))
            self._give_up_one()
        elif self._hand_to_waiter(session):
            return
        elif self._open > self._soon:
            self._open -= 1
            self._leftovers.start_task(self._discard_session(session))
        else:
            self._idle.append(session)

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        self._open -= len(idle)
        for session in idle:
            await self._discard_session(session)

    async def _discard_session(self, session: PostgresSession) -> None:
        """Close a connection; a statement is cancelled on the server before, or ended with it."""
        if session.connection.is_closed():
            return
        process = session.connection.get_server_pid()
        try:
            # The client itself waits without an end for a statement that it has cancelled.
            async with asyncio.timeout(_CLOSE_S):
                await session.connection.close(timeout=_CLOSE_S)
        except _CLOSING_FAULTS:
            session.connection.terminate()
            await self._end_backend(process)

    async def _end_backend(self, process: int) -> None:
        """End the server's process of a connection, whose statement went on after its cancel."""
        try:
            async with asyncio.timeout(_END_S):
                other = PostgresSession(await open_postgres_connection(self._credential))
                has_ended = await other.end_backend(process)
                await other.connection.close(timeout=_CLOSE_S)
        except (*_CLOSING_FAULTS, ToolFailure) as problem:
            log.warning(
                "a statement may go on after its task",
                credential=self._credential.name,
                server_process=process,
                error=str(problem),
            )
            return
        if has_ended:
            log.info("server process of a statement terminated", server_process=process)

    def _take_idle(self) -> PostgresSession | None:
        while self._idle:
            session = self._idle.pop()
            if not session.connection.is_closed():
                return session
            self._open -= 1
        return None

    async def _wait_for_session(self, patience_s: float) -> PostgresSession | None:
        """Wait for a connection; None is the right to open one, which the maximum bounds."""
        place: asyncio.Future[PostgresSession | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            await asyncio.wait([place], timeout=patience_s)
            if place.done():
                return place.result()
            if self._open < self._connections_max:
                self._waiters.remove(place)
                self._open += 1
                return None
            return await place
        except asyncio.CancelledError:
            self._pass_on(place)
            raise

    def _pass_on(self, place: "asyncio.Future[PostgresSession | None]") -> None:
        """Pass on what a task was given that waits no more."""
        if place in self._waiters:
            self._waiters.remove(place)
        elif not place.cancelled():
            session = place.result()
            if session is None:
                self._give_up_one()
            else:
                self._settle_session(session, is_sound=True)

    def _give_up_one(self) -> None:
        """Count a connection less; who waits longest may open another in its place."""
        self._open -= 1
        self._open_more()

    def _open_more(self) -> None:
        if self._open < self._connections_max and self._hand_to_waiter(None):
            self._open += 1

    @asynccontextmanager
    async def _bound_wait(self, wait_s: float) -> AsyncIterator[None]:
        """Wait so long and no longer; raises `ToolFailure`."""
        self._peaks.waiting.change_level(1)
        try:
            async with asyncio.timeout(wait_s):
                yield
        except TimeoutError as problem:
            raise ToolFailure(
                build_busy_error(f"{self} had no connection free within {wait_s:g} s")
            ) from problem
        finally:
            self._peaks.waiting.change_level(-1)

    def __str__(self) -> str:
        name_text = f" named '{self._name}'" if self._name else ""
        return f"the pool{name_text} of credential '{self._credential.name}'"

    def _hand_to_waiter(self, session: PostgresSession | None) -> bool:
        """Give a connection, or the right to open one, to who waits longest; False: to nobody."""
        while self._waiters:
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(session)
                return True
        return False


def build_busy_error(text: str) -> ErrorObject:
    """Say that a pool has no connection to give."""
    advice = (
        "let fewer tasks use it at once, give those that take long a 'pool' of their own, or "
        f"raise {_SETTING}"
    )
    return build_error("db_connection", f"{text}: {advice}", code="PG_53300", source="postgres")


async def _connect(arguments: dict[str, Any]) -> "asyncpg.Connection[Any]":
    try:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(**arguments)
    except TimeoutError as problem:
        text = f"no answer within {postgres_connection.CONNECT_S:g} s"
        raise ConnectionError(text) from problem
    return connection


async def open_postgres_connection(credential: Credential) -> "asyncpg.Connection[Any]":
    """Open a connection; raises `ToolFailure` for a credential that cannot be used.

    What the client raises has a note that names the server. A server that does not answer is a
    `ConnectionError`, so that nobody takes it for the end of a task's own time.
    """
    fields = credential.fields
    try:
        connect_arguments = postgres_connection.build_connect_arguments(
            fields, application="noetl-worker"
        )
        with postgres_connection.translate_credential_errors(fields):
            connection = await _connect(connect_arguments)
    except postgres_connection.UnusableCredential as problem:
        raise credential.build_unusable_failure(f"cannot be used: {problem}") from problem
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as problem:
        credential.note_server(problem, server_names.describe_server(fields))
        raise
    await set_codecs(connection)
    return connection
