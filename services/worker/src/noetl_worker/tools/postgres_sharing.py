"""Group commit: concurrent runs of one statement travel and commit together.

Each run still ends only when its effects are committed. Runs that arrive while a batch is on its
way form the next one, so a lone run never waits. A batch that the database refuses is undone as a
whole, and its runs are repeated one by one: each gets its own answer.
"""

import asyncio
from typing import Any, Protocol

import asyncpg
from msgspec import Struct

from noetl_worker.domain.sql_text import Statement
from noetl_worker.tools.call import Call
from noetl_worker.tools.leftovers import Leftovers
from noetl_worker.tools.postgres_fields import is_autocommit
from noetl_worker.tools.postgres_pool import Pool, Rows, Session
from noetl_worker.tools.postgres_types import UnfitValue, bind

BATCH_RUNS_MAX = 64
BATCHES_AT_ONCE_MAX = 1
_STATEMENTS_MAX = 256
_NO_ROWS = Rows(rows=[], columns=(), message="")
_LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class Waiter(Struct, eq=False):
    """One run of a statement, and who waits for it."""

    values: list[Any]
    answer: "asyncio.Future[Rows]"
    is_expired: bool = False

    @property
    def has_left(self) -> bool:
        """Tell whether nobody waits for the answer any more."""
        return self.is_expired or self.answer.cancelled()


class Lane(Struct, eq=False):
    """The runs of one statement that have not been sent yet."""

    text: str
    waiting: list[Waiter]
    batches: int = 0


class Sound(Protocol):
    """Tells whether a connection may be used again after an error."""

    def __call__(self, problem: Exception) -> bool:
        """Judge an error."""


class Sharing:
    """Gathers runs by statement; background work ends with the tool."""

    def __init__(self, pool: Pool, *, leftovers: Leftovers, is_sound_after: Sound) -> None:
        self._pool = pool
        self._leftovers = leftovers
        self._is_sound_after = is_sound_after
        self._lane_by_text: dict[str, Lane] = {}

    async def run(self, text: str, values: list[Any], *, patience_s: float) -> Rows:
        """Run a statement that returns no rows; raises what the client or database raises.

        Raises `TimeoutError` after `patience_s`.
        """
        lane = self._lane(text)
        loop = asyncio.get_running_loop()
        waiter = Waiter(values, loop.create_future())
        lane.waiting.append(waiter)
        if lane.batches < BATCHES_AT_ONCE_MAX:
            lane.batches += 1
            self._leftovers.add(self._send(lane))
        # Cheaper than a timeout around the task: most of a worker's statements come this way.
        alarm = loop.call_later(patience_s, _expire, waiter)
        try:
            return await waiter.answer
        finally:
            alarm.cancel()

    def _lane(self, text: str) -> Lane:
        lane = self._lane_by_text.get(text)
        if lane is None:
            idle = [key for key, one in self._lane_by_text.items() if not one.batches]
            if len(self._lane_by_text) >= _STATEMENTS_MAX and idle:
                del self._lane_by_text[idle[0]]
            lane = self._lane_by_text[text] = Lane(text, [])
        return lane

    async def _send(self, lane: Lane) -> None:
        """Send batch after batch until nobody waits."""
        try:
            while lane.waiting:
                batch = lane.waiting[:BATCH_RUNS_MAX]
                del lane.waiting[:BATCH_RUNS_MAX]
                await self._send_wanted(lane.text, [one for one in batch if not one.answer.done()])
        finally:
            lane.batches -= 1

    async def _send_wanted(self, text: str, batch: list[Waiter]) -> None:
        """Send a batch; once nobody waits for any of it, it is cancelled on the server."""
        if not batch:
            return
        sending = asyncio.ensure_future(self._send_batch(text, batch))

        def has_left(_answer: asyncio.Future[Rows]) -> None:
            if all(one.has_left for one in batch):
                sending.cancel()

        for one in batch:
            one.answer.add_done_callback(has_left)
        try:
            await asyncio.wait([sending])
        finally:
            sending.cancel()
        if not sending.cancelled():
            sending.result()

    async def _send_batch(self, text: str, batch: list[Waiter]) -> None:
        try:
            session = await self._pool.acquire()
        except (TimeoutError, asyncpg.PostgresError, *_LOST) as problem:
            _fail(batch, problem)
            return
        is_sound = False
        try:
            is_sound = await self._execute(session, text, batch)
        finally:
            self._pool.release(session, is_sound=is_sound)
            _fail(batch, asyncpg.InterfaceError("the batch was interrupted"))

    async def _execute(self, session: Session, text: str, batch: list[Waiter]) -> bool:
        """Run a batch as one transaction, else one by one; tell whether the session is sound."""
        try:
            plan = await session.plan(text)
            if plan.columns or len(batch) == 1:
                return await self._one_by_one(session, text, batch)
            bound = _bound(batch, plan.binders, plan.parameter_types)
            await plan.prepared.executemany([values for _, values in bound])
        except _LOST as problem:
            _fail(batch, problem)
            return False
        except asyncpg.PostgresError as problem:
            if not self._is_sound_after(problem):
                _fail(batch, problem)
                return False
            session.forget(text)
            return await self._one_by_one(session, text, batch)
        for waiter, _ in bound:
            if not waiter.answer.done():
                waiter.answer.set_result(_NO_ROWS)
        return True

    async def _one_by_one(self, session: Session, text: str, batch: list[Waiter]) -> bool:
        for waiter in batch:
            if waiter.answer.done():
                continue
            try:
                rows = await session.run(text, waiter.values)
            except _LOST as problem:
                _fail(batch, problem)
                return False
            except (asyncpg.PostgresError, UnfitValue) as problem:
                _fail([waiter], problem)
                if isinstance(problem, asyncpg.PostgresError) and not self._is_sound_after(problem):
                    _fail(batch, problem)
                    return False
            else:
                if not waiter.answer.done():
                    waiter.answer.set_result(rows)
        return True


def can_share(statements: tuple[Statement, ...], call: Call) -> bool:
    """Tell whether a call is one plain statement without wishes for its session."""
    first = statements[0]
    return len(statements) == 1 and not (
        first.is_transaction_control
        or first.is_outside_transactions
        or first.leaves_session_state
        or call.fields.get("statement_timeout") is not None
        or call.fields.get("pool") is not None
        or is_autocommit(call.fields)
    )


def _bound(
    batch: list[Waiter], binders: tuple[Any, ...], types: tuple[str, ...]
) -> list[tuple[Waiter, list[Any]]]:
    """Bind every run's values; a run whose values do not fit fails alone."""
    found = []
    for waiter in batch:
        try:
            found.append((waiter, bind(waiter.values, binders, types)))
        except UnfitValue as problem:
            _fail([waiter], problem)
    return found


def _fail(batch: list[Waiter], problem: Exception) -> None:
    for waiter in batch:
        if not waiter.answer.done():
            waiter.answer.set_exception(problem)


def _expire(waiter: Waiter) -> None:
    if not waiter.answer.done():
        waiter.is_expired = True
        waiter.answer.set_exception(TimeoutError())
