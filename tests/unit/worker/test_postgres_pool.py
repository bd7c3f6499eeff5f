"""Who gets a connection of a pool while others hold some and want more."""

import asyncio
import random
from collections import Counter
from typing import Any, ClassVar

import pytest

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.tools.calls.background_tasks import BackgroundTasks
from noetl_worker.tools.postgres import postgres_pool
from noetl_worker.tools.postgres.postgres_pool import ConnectionPool, PoolLimits
from noetl_worker.tools.postgres.postgres_session import PostgresSession

LATE_S = 20.0


class Line:
    """A connection that does nothing; `open` counts them by credential."""

    open: ClassVar[Counter[str]] = Counter()
    most: ClassVar[Counter[str]] = Counter()

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_closed = False
        self.open[name] += 1
        self.most[name] = max(self.most[name], self.open[name])

    def is_closed(self) -> bool:
        return self._is_closed

    def get_server_pid(self) -> int:
        return 0

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as the client has it
        self.terminate()

    def terminate(self) -> None:
        self.open[self._name] -= not self._is_closed
        self._is_closed = True


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> type[Line]:
    async def connect(credential: Credential) -> Any:
        await asyncio.sleep(0)
        return Line(credential.name)

    monkeypatch.setattr(postgres_pool, "open_postgres_connection", connect)
    monkeypatch.setattr(Line, "open", Counter())
    monkeypatch.setattr(Line, "most", Counter())
    return Line


def pool_of(most: int, *, name: str = "db", wait_s: float = LATE_S) -> ConnectionPool:
    credential = Credential(name=name, kind="postgres", version=1, fields={})
    return ConnectionPool(
        credential, room=PoolLimits(most=most, soon=1, wait_s=wait_s), leftovers=BackgroundTasks()
    )


class ConnectionCount:
    """Frames, streams and plain tasks, with a file's lock between connections of two pools."""

    def __init__(self, pools: list[ConnectionPool], seed: int) -> None:
        self._pools = pools
        self._random = random.Random(seed)
        self._file = asyncio.Lock()

    async def one(self, index: int) -> None:
        async with asyncio.timeout(LATE_S):
            await self._rest()
            match index % 4:
                case 0:
                    await self._task(self._random.choice(self._pools))
                case 1:
                    await self._move()
                case _:
                    await self._frame(self._random.choice(self._pools))

    async def _frame(self, pool: ConnectionPool) -> None:
        session = await pool.acquire_session(patience_s=0.001, lasts=True)
        for _ in range(2):
            await self._rest()
            await self._move()
            await self._task(pool)
        self._give_back(pool, session)

    async def _move(self) -> None:
        """Take a lock, then a connection of every pool, as transfers do."""
        async with self._file:
            held = []
            for pool in self._pools:
                held.append((pool, await pool.acquire_session(patience_s=0.001)))
                await self._rest()
            for pool, session in held:
                self._give_back(pool, session)

    async def _task(self, pool: ConnectionPool) -> None:
        session = await pool.acquire_session(patience_s=0.001)
        await self._rest()
        self._give_back(pool, session)

    def _give_back(self, pool: ConnectionPool, session: PostgresSession) -> None:
        pool.release_session(session, is_sound=self._random.random() > 0.1)

    async def _rest(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("most", [1, 2, 3, 16])
@pytest.mark.parametrize("seed", range(5))
async def test_everybody_gets_a_connection(most: int, seed: int, lines: type[Line]) -> None:
    pools = [pool_of(most, name="a"), pool_of(most, name="b")]
    connection_count = ConnectionCount(pools, seed)
    async with asyncio.TaskGroup() as group:
        for index in range(40):
            group.create_task(connection_count.one(index))
    for pool in pools:
        assert not pool.waiting_count
        await pool.close()
    assert max(lines.most.values()) <= max(most, 2)


async def test_those_that_last_leave_one_to_the_others() -> None:
    pool = pool_of(3)
    held = [await pool.acquire_session(lasts=True) for _ in range(2)]
    third = asyncio.create_task(pool.acquire_session(lasts=True))
    await asyncio.sleep(0)
    assert pool.waiting_count == 1
    plain = await pool.acquire_session(patience_s=0)
    pool.release_session(plain, is_sound=True)
    assert not third.done()
    pool.release_session(held.pop(), is_sound=True)
    pool.release_session(await third, is_sound=True)
    pool.release_session(held.pop(), is_sound=True)


async def test_a_pool_of_one_has_a_second_connection_while_the_first_lasts(
    lines: type[Line],
) -> None:
    pool = pool_of(1)
    plain = await pool.acquire_session()
    lasting = asyncio.create_task(pool.acquire_session(patience_s=0, lasts=True))
    await asyncio.sleep(0)
    after = asyncio.create_task(pool.acquire_session(patience_s=0))
    # Until nobody is patient any more, and all wait to be given one.
    for _ in range(10):
        await asyncio.sleep(0)
    # Nobody but the one that lasts gets the only connection; who waited meanwhile gets another.
    pool.release_session(plain, is_sound=True)
    assert await lasting is plain
    second = await asyncio.wait_for(after, LATE_S)
    assert lines.open["db"] == 2
    pool.release_session(plain, is_sound=True)
    pool.release_session(second, is_sound=True)
    assert await pool.acquire_session() is second
    assert lines.most["db"] == 2


async def test_who_gives_up_waiting_takes_nothing_along() -> None:
    pool = pool_of(2, wait_s=0.01)
    held = await pool.acquire_session(lasts=True)
    with pytest.raises(ToolFailure, match=r"credential 'db' had no connection free within 0\.01 s"):
        await pool.acquire_session(lasts=True)
    other = await pool.acquire_session(patience_s=0)
    with pytest.raises(ToolFailure) as caught:
        await pool.acquire_session(patience_s=0)
    assert caught.value.error.retryable
    pool.release_session(held, is_sound=True)
    waiting = asyncio.create_task(pool.acquire_session(lasts=True, wait_s=LATE_S))
    pool.release_session(await waiting, is_sound=True)
    pool.release_session(other, is_sound=True)
    assert not pool.waiting_count
    assert not pool.is_busy
