"""Group commit: concurrent runs of one statement travel and commit together.

Each run still ends only when its effects are committed. Runs that arrive while a batch is on its
way form the next one, so a lone run never waits. A batch that the database refuses is undone as a
whole, and its runs are repeated one by one: each gets its own answer.
"""

import asyncio
from typing import Any, Protocol

import asyncpg
from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.sql.sql_statements import Statement
from noetl_worker.tools.calls.background_tasks import BackgroundTasks
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.postgres.postgres_pool import ConnectionPool
from noetl_worker.tools.postgres.postgres_session import PostgresSession, StatementRows
from noetl_worker.tools.postgres.task_fields import is_autocommit
from noetl_worker.tools.postgres.value_types import UnfitValue, bind_values

BATCH_RUNS_MAX = 64
BATCHES_AT_ONCE_MAX = 1
_STATEMENTS_MAX = 256
NO_ROWS = StatementRows(rows=[], columns=(), types=(), message="")
_LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class SharedRun(Struct, eq=False):
    """One run of a statement, and who waits for it until when by the loop's clock."""

    values: list[Any]
    answer: "asyncio.Future[StatementRows]"
    until_s: float
    is_expired: bool = False
    # What it travels in, once it does.
    batch: "RunBatch | None" = None

    @property
    def has_left(self) -> bool:
        """Tell whether nobody waits for the answer any more."""
        return self.is_expired or self.answer.cancelled()


class RunBatch(Struct, eq=False):
    """Runs that are on their way together."""

    waiters: list[SharedRun]
    sending: "asyncio.Task[None]"

    def cancel_if_unwanted(self) -> None:
        """Cancel it on the server once nobody waits for any of it."""
        if all(waiter.has_left for waiter in self.waiters):
            self.sending.cancel()


class StatementLane(Struct, eq=False):
    """The runs of one statement: those that have not been sent yet, and all without an answer.

    They have one timer, that of the shortest wait: most of a worker's statements come this way.
    """

    text: str
    waiting: list[SharedRun]
    unanswered: set[SharedRun]
    alarm: asyncio.TimerHandle | None = None
    alarm_s: float = 0.0
    batches: int = 0

    def watch_deadline(self, waiter: SharedRun) -> None:
        """Have a run end when its time is over."""
        self.unanswered.add(waiter)
        if self.alarm is None or waiter.until_s < self.alarm_s:
            self._set_alarm(waiter.until_s)

    def _set_alarm(self, at_s: float) -> None:
        if self.alarm is not None:
            self.alarm.cancel()
        self.alarm_s = at_s
        self.alarm = asyncio.get_running_loop().call_at(at_s, self._expire_runs)

    def _expire_runs(self) -> None:
        self.alarm = None
        for shared_run in self.unanswered:
            if shared_run.until_s <= self.alarm_s and not shared_run.answer.done():
                shared_run.is_expired = True
                shared_run.answer.set_exception(TimeoutError())
                if shared_run.batch is not None:
                    shared_run.batch.cancel_if_unwanted()
        if deadlines := [item.until_s for item in self.unanswered if not item.is_expired]:
            self._set_alarm(min(deadlines))


class SoundCheck(Protocol):
    """Tells whether a connection may be used again after an error."""

    def __call__(self, problem: Exception) -> bool:
        """Judge an error."""


class GroupCommit:
    """Gathers runs by statement; background work ends with the tool."""

    def __init__(
        self, pool: ConnectionPool, *, leftovers: BackgroundTasks, is_sound_after: SoundCheck
    ) -> None:
        self._pool = pool
        self._leftovers = leftovers
        self._is_sound_after = is_sound_after
        self._lane_by_text: dict[str, StatementLane] = {}

    async def run_shared(self, text: str, values: list[Any], *, patience_s: float) -> StatementRows:
        """Run a statement that returns no rows; raises what the client or database raises.

        Raises `TimeoutError` after `patience_s`, and `ToolFailure` as the pool does.
        """
        lane = self._get_lane(text)
        loop = asyncio.get_running_loop()
        waiter = SharedRun(values, loop.create_future(), loop.time() + patience_s)
        lane.waiting.append(waiter)
        if lane.batches < BATCHES_AT_ONCE_MAX:
            lane.batches += 1
            self._leftovers.start_task(self._send_batches(lane))
        lane.watch_deadline(waiter)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            if waiter.batch is not None:
                waiter.batch.cancel_if_unwanted()
            raise
        finally:
            lane.unanswered.discard(waiter)

    def _get_lane(self, text: str) -> StatementLane:
        lane = self._lane_by_text.get(text)
        if lane is None:
            idle = [
                key
                for key, statement_lane in self._lane_by_text.items()
                if not statement_lane.batches
            ]
            if len(self._lane_by_text) >= _STATEMENTS_MAX and idle:
                del self._lane_by_text[idle[0]]
            lane = self._lane_by_text[text] = StatementLane(text, [], set())
        return lane

    async def _send_batches(self, lane: StatementLane) -> None:
        """Send batches until no run waits for a result."""
        try:
            while lane.waiting:
                batch = lane.waiting[:BATCH_RUNS_MAX]
                del lane.waiting[:BATCH_RUNS_MAX]
                await self._send_wanted(
                    lane.text, [shared_run for shared_run in batch if not shared_run.answer.done()]
                )
        finally:
            lane.batches -= 1

    async def _send_wanted(self, text: str, batch: list[SharedRun]) -> None:
        """Send a batch; once nobody waits for any of it, it is cancelled on the server."""
        if not batch:
            return
        sending = asyncio.ensure_future(self._send_batch(text, batch))
        together = RunBatch(batch, sending)
        for shared_run in batch:
            shared_run.batch = together
        try:
            await asyncio.wait([sending])
        finally:
            sending.cancel()
        if not sending.cancelled():
            sending.result()

    async def _send_batch(self, text: str, batch: list[SharedRun]) -> None:
        try:
            session = await self._pool.acquire_session()
        except (ToolFailure, TimeoutError, asyncpg.PostgresError, *_LOST) as problem:
            _fail_runs(batch, problem)
            return
        is_sound = False
        try:
            is_sound = await self._execute_batch(session, text, batch)
        finally:
            self._pool.release_session(session, is_sound=is_sound)
            _fail_runs(batch, asyncpg.InterfaceError("the batch was interrupted"))

    async def _execute_batch(
        self, session: PostgresSession, text: str, batch: list[SharedRun]
    ) -> bool:
        """Run a batch as one transaction, else one by one; tell whether the session is sound."""
        try:
            plan = await session.get_plan(text)
            if plan.columns or len(batch) == 1:
                return await self._run_one_by_one(session, text, batch)
            bound = [
                bind_values(shared_run.values, plan.binders, plan.parameter_types)
                for shared_run in batch
            ]
            await session.run_batch(text, bound)
        except UnfitValue:
            # Each run tells by itself whether its values fit.
            return await self._run_one_by_one(session, text, batch)
        except ToolFailure as problem:
            _fail_runs(batch, problem)
            return True
        except _LOST as problem:
            _fail_runs(batch, problem)
            return False
        except asyncpg.PostgresError as problem:
            if not self._is_sound_after(problem):
                _fail_runs(batch, problem)
                return False
            session.forget_plan(text)
            return await self._run_one_by_one(session, text, batch)
        for waiter in batch:
            if not waiter.answer.done():
                waiter.answer.set_result(NO_ROWS)
        return True

    async def _run_one_by_one(
        self, session: PostgresSession, text: str, batch: list[SharedRun]
    ) -> bool:
        """Run each of a batch by itself, where they cannot run, or have failed, together.

        Return whether the connection can be used again.
        """
        for waiter in batch:
            if waiter.answer.done():
                continue
            try:
                rows = await session.run_statement(text, waiter.values)
            except ToolFailure as problem:
                _fail_runs([waiter], problem)
            except _LOST as problem:
                _fail_runs(batch, problem)
                return False
            except (asyncpg.PostgresError, UnfitValue) as problem:
                _fail_runs([waiter], problem)
                if isinstance(problem, asyncpg.PostgresError) and not self._is_sound_after(problem):
                    _fail_runs(batch, problem)
                    return False
            else:
                if not waiter.answer.done():
                    waiter.answer.set_result(rows)
        return True


def can_share(statements: tuple[Statement, ...], call: Call) -> bool:
    """Tell whether a call is one plain statement without session settings of its own."""
    first = statements[0]
    return len(statements) == 1 and not (
        first.is_transaction_control
        or first.is_outside_transactions
        or first.leaves_session_state
        or call.fields.get("statement_timeout") is not None
        or call.fields.get("pool") is not None
        or is_autocommit(call.fields)
    )


def _fail_runs(batch: list[SharedRun], problem: Exception) -> None:
    for waiter in batch:
        if not waiter.answer.done():
            waiter.answer.set_exception(problem)
