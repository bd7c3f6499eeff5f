"""The connection pool: open with patience, check what the promise rests on, translate failures."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from noetl_contracts import codec
from noetl_storage.ports.errors import StorageMisconfigured, StorageUnavailable
from noetl_storage.postgres import error_translation, queries
from noetl_storage.process.connection_peaks import ConnectionPeaks

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_QUERIES = queries.load_queries("database")
_CONNECT_TIMEOUT_S = 10.0
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0
# Of more idle connections than these the pool closes those that nobody uses.
_SPARE_MAX = 4
# The pool ends a connection that has served long, which it sees when it gets it back.
_LOOKS_EVERY = 1_000

_JSON_TYPES = ("json", "jsonb")


class _Connection(asyncpg.Connection):
    """A connection whose session needs no clearing: our statements leave nothing behind.

    The pool would otherwise ask the server to forget everything after each use, which costs as
    much as a small query. Open transactions are rolled back all the same.
    """

    def get_reset_query(self) -> str:
        """Return what to send at release: nothing."""
        return ""


class Transaction:
    """Statements that take effect together."""

    def __init__(self, connection: "PoolConnectionProxy[asyncpg.Record]") -> None:
        self._connection = connection

    async def fetch_rows(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Run a query and return its rows."""
        return await self._connection.fetch(query, *args)

    async def execute_statement(self, query: str, *args: Any) -> None:
        """Run a statement."""
        await self._connection.execute(query, *args)


class _ConnectionLease:
    """One connection for one use, the spare one first, which costs no turn of the pool's."""

    __slots__ = ("_connection", "_database", "_is_shared")

    def __init__(self, database: "Database") -> None:
        self._database = database

    async def __aenter__(self) -> "PoolConnectionProxy[asyncpg.Record]":
        shared = self._database.get_shared_connection()
        self._is_shared = shared is not None
        self._connection = shared or await self._database.take_connection()
        return self._connection

    async def __aexit__(self, kind: object, _failure: object, _trace: object) -> None:
        if not self._is_shared:
            await self._database.return_connection(self._connection, is_sound=kind is None)


class Database:
    """A pool that raises storage's errors instead of the driver's.

    Taking a connection from the pool and giving it back takes tasks, timers and locks, as much as
    a small query: a few that were used last are kept at hand, for as long as nobody waits.
    """

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", *, acquire_timeout_s: float) -> None:
        self._pool = pool
        self._acquire_timeout_s = acquire_timeout_s
        self._spare: list[PoolConnectionProxy[asyncpg.Record]] = []
        self._waiter_count = 0
        self.peaks = ConnectionPeaks()
        self._is_leaving = False
        self._uses = 0
        self._shared: ContextVar[PoolConnectionProxy[asyncpg.Record] | None] = ContextVar(
            "shared connection", default=None
        )

    def get_shared_connection(self) -> "PoolConnectionProxy[asyncpg.Record] | None":
        """Return the connection whose transaction this task shares, None outside of one."""
        return self._shared.get()

    async def take_connection(self) -> "PoolConnectionProxy[asyncpg.Record]":
        """Take a connection; the caller must give it back."""
        connection = await self._take_spare() or await self._acquire_connection()
        self.peaks.in_use.change_level(1)
        return connection

    async def _take_spare(self) -> "PoolConnectionProxy[asyncpg.Record] | None":
        while self._spare:
            connection = self._spare.pop()
            if not connection.is_closed():
                return connection
            await self._pool.release(connection)
        return None

    async def _acquire_connection(self) -> "PoolConnectionProxy[asyncpg.Record]":
        self._waiter_count += 1
        # A pool that has one free, or may open one, has nobody wait.
        wanted = self.peaks.in_use.level + self._waiter_count
        is_full = wanted > self._pool.get_max_size()
        self.peaks.waiting.change_level(is_full)
        try:
            return await self._pool.acquire(timeout=self._acquire_timeout_s)
        finally:
            self._waiter_count -= 1
            self.peaks.waiting.change_level(-is_full)

    async def return_connection(
        self, connection: "PoolConnectionProxy[asyncpg.Record]", *, is_sound: bool
    ) -> None:
        """Keep a connection at hand; after a failure, or when others wait, the pool looks at it."""
        self.peaks.in_use.change_level(-1)
        self._uses += 1
        is_wanted = self._waiter_count or self._is_leaving or self._uses % _LOOKS_EVERY == 0
        is_kept = is_sound and not (is_wanted or connection.is_closed())
        if is_kept and len(self._spare) < _SPARE_MAX and not connection.is_in_transaction():
            self._spare.append(connection)
            return
        await self._pool.release(connection)

    async def release_spares(self) -> None:
        """Give every connection back to the pool, which closes only then."""
        self._is_leaving = True
        while self._spare:
            await self._pool.release(self._spare.pop())

    @asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[Transaction]:
        """Run statements in one transaction; leaving by an exception undoes them."""
        with error_translation.translate_errors():
            async with _ConnectionLease(self) as connection, connection.transaction():
                yield Transaction(connection)

    @asynccontextmanager
    async def share_transaction(self) -> AsyncIterator[None]:
        """Run all that this task asks of the database within as one transaction.

        Its statements run one after another: no tasks may be started within. Leaving by an
        exception undoes all of them.
        """
        with error_translation.translate_errors():
            async with _ConnectionLease(self) as connection, connection.transaction():
                token = self._shared.set(connection)
                try:
                    yield
                finally:
                    self._shared.reset(token)

    async def fetch_rows(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Run a query and return its rows."""
        with error_translation.translate_errors():
            async with _ConnectionLease(self) as connection:
                return await connection.fetch(query, *args)

    async def find_row(self, query: str, *args: Any) -> asyncpg.Record | None:
        """Run a query and return its first row, if there is one."""
        with error_translation.translate_errors():
            async with _ConnectionLease(self) as connection:
                return await connection.fetchrow(query, *args)

    async def get_row(self, query: str, *args: Any) -> asyncpg.Record:
        """Run a query that has a row in any case, and return it."""
        record = await self.find_row(query, *args)
        if record is None:
            raise AssertionError("the query returned no row")
        return record

    async def get_value(self, query: str, *args: Any) -> Any:
        """Run a query and return the first column of its first row."""
        with error_translation.translate_errors():
            async with _ConnectionLease(self) as connection:
                return await connection.fetchval(query, *args)

    async def execute_statement(self, query: str, *args: Any) -> None:
        """Run a statement."""
        with error_translation.translate_errors():
            async with _ConnectionLease(self) as connection:
                await connection.execute(query, *args)

    @asynccontextmanager
    async def hold_lock(self, name: str) -> AsyncIterator[bool]:
        """Hold the lock of a name while the block runs; False where another session has it.

        It takes a connection of the pool. With the connection, or this process, the lock ends too.
        """
        with error_translation.translate_errors():
            async with _ConnectionLease(self) as connection:
                is_held = bool(await connection.fetchval(_QUERIES["try_lock"], name))
                try:
                    yield is_held
                finally:
                    if is_held:
                        await _release_lock(connection, name)

    async def ping_server(self) -> None:
        """Ask the server for a sign of life; raises `StorageUnavailable`."""
        await self.get_value(_QUERIES["ping"])


@asynccontextmanager
async def open_database(
    dsn: str,
    *,
    application_name: str = "noetl",
    connections_max: int = 10,
    connect_deadline_s: float = 60.0,
    acquire_timeout_s: float = 30.0,
    statement_timeout_s: float = 60.0,
    must_be_durable: bool = True,
) -> AsyncIterator[Database]:
    """Open a pool, trying until the deadline; `must_be_durable` is for roles of the ledger.

    Raises `StorageUnavailable` when the deadline passes and `StorageMisconfigured` when the server
    refuses the role or could lose what it acknowledged.
    """
    pool = await _open_pool(
        dsn,
        deadline_s=connect_deadline_s,
        application_name=application_name,
        connections_max=connections_max,
        statement_timeout_s=statement_timeout_s,
    )
    database = Database(pool, acquire_timeout_s=acquire_timeout_s)
    try:
        if must_be_durable:
            await check_durability(database)
        yield database
    finally:
        await _close_pool(pool, database)


async def check_durability(database: Database) -> None:
    """Refuse a server that may lose acknowledged transactions; raises `StorageMisconfigured`."""
    row = await database.find_row(_QUERIES["durability"])
    off = [name for name, value in (row or {}).items() if value == "off"]
    if off:
        raise StorageMisconfigured(
            f"PostgreSQL runs with {', '.join(off)} off and could lose acknowledged events: "
            "switch it on in postgresql.conf, or for this role"
        )


async def _open_pool(
    dsn: str,
    *,
    deadline_s: float,
    application_name: str,
    connections_max: int,
    statement_timeout_s: float,
) -> "asyncpg.Pool[asyncpg.Record]":
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    rest_s = _RETRY_FIRST_S
    while True:
        try:
            with error_translation.translate_errors():
                return await asyncpg.create_pool(
                    dsn,
                    connection_class=_Connection,
                    min_size=1,
                    max_size=connections_max,
                    timeout=_CONNECT_TIMEOUT_S,
                    command_timeout=statement_timeout_s,
                    init=_set_codecs,
                    server_settings={"application_name": application_name, "timezone": "UTC"},
                )
        except StorageUnavailable as failure:
            if loop.time() + rest_s > deadline:
                raise StorageUnavailable(
                    f"no PostgreSQL at {_describe_server(dsn)} within {deadline_s:g} s: {failure}"
                ) from failure
        await asyncio.sleep(rest_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        rest_s = min(rest_s * 2, _RETRY_MAX_S)


async def _set_codecs(connection: Any) -> None:
    for name in _JSON_TYPES:
        await connection.set_type_codec(
            name, encoder=codec.encode_text, decoder=codec.decode_json, schema="pg_catalog"
        )


async def _release_lock(connection: Any, name: str) -> None:
    """Give a lock back; a session that cannot ends, and its locks with it."""
    try:
        await connection.fetchval(_QUERIES["unlock"], name)
    except BaseException:
        connection.terminate()
        raise


async def _close_pool(pool: "asyncpg.Pool[asyncpg.Record]", database: Database) -> None:
    """Close politely, and by force where a connection hangs."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await database.release_spares()
            await pool.close()
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pool.terminate()


def _describe_server(dsn: str) -> str:
    """Name the server without the password."""
    parts = urlsplit(dsn)
    return f"{parts.hostname or 'the local socket'}:{parts.port or 5432}{parts.path}"
