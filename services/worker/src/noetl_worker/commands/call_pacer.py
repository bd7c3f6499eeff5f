"""Paces calls by their rate limit, over all workers together.

Nothing here is authoritative: what is shared may be lost at any time, which only fills the
allowance again. Workers use their own clocks; one that is ahead by d lets at most d seconds' worth
of calls more go, once.
"""

import asyncio
from collections import OrderedDict, deque
from typing import Any

from msgspec import Struct

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_contracts import codec, subjects
from noetl_contracts.commands.command_work import Command
from noetl_contracts.json_values import to_json_value
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Registers
from noetl_playbook.model import coercion, rate_limits
from noetl_playbook.model.playbook import RateLimit
from noetl_playbook.templates.expressions import CompiledTemplate, TemplateError, compile_value
from noetl_worker.commands.command_context import build_template_error
from noetl_worker.domain import admission
from noetl_worker.domain.admission import CallRate
from noetl_worker.domain.failures import ToolFailure, build_error

HORIZON_S = 1.0
# A call that would wait longer lets its worker go; one that cannot fails after its time.
LEAVE_AFTER_S = 60.0
HELD_S_MAX = 3_600.0
QUEUES_MAX = 10_000
_DIGEST_CHARACTERS = 40
# How long to rest when another worker was faster, or the bus is away.
_CONTENDED_S = 0.02
_UNREACHED_S = 0.5


class CompiledLimit(Struct, frozen=True, kw_only=True):
    """A task's limit with its templates compiled."""

    key: CompiledTemplate
    rate: CompiledTemplate
    per: CompiledTemplate
    burst: CompiledTemplate

    @property
    def template_parts(self) -> tuple[CompiledTemplate, ...]:
        """Return everything that is rendered."""
        return (self.key, self.rate, self.per, self.burst)


class CallLimit(Struct, frozen=True, kw_only=True):
    """A rendered limit: which calls share it, and their pace."""

    key: str
    pace: CallRate


class LongWait(Exception):  # noqa: N818 - it says what was found
    """A call's turn comes so late that nobody is to wait for it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the turn comes in {seconds:g} s")
        self.seconds = seconds


class _Ticket:
    """One call in the queue; `at` is when it may go, once that is known."""

    def __init__(self) -> None:
        self.at: float | None = None


class _WaitingQueue:
    """The calls of this worker that wait under one key, and what was last seen to be shared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.tickets: deque[_Ticket] = deque()
        self.revision = 0
        self.tat = 0.0

    def hand_out_times(self, times: list[float]) -> None:
        """Give the first in the queue their times; those of calls that left meanwhile are lost."""
        for time, ticket in zip(times, list(self.tickets), strict=False):
            ticket.at = time
            self.tickets.popleft()


class CallPacer:
    """Paces the calls of one worker in waiting queues, one a key; cancelled calls leave them."""

    def __init__(self, *, registers: Registers, clock: Clock) -> None:
        self._registers = registers
        self._clock = clock
        self._queues: OrderedDict[str, _WaitingQueue] = OrderedDict()

    async def wait_for_turn(
        self, limit: CallLimit, command: Command, *, may_leave: bool = False
    ) -> float:
        """Return when a call may go, and how many seconds that took; raises `ToolFailure`.

        Raises `LongWait` for a call that may leave, and come back when its turn is near.
        """
        digest = codec.digest_hex(limit.key.encode())[:_DIGEST_CHARACTERS]
        name = subjects.build_limit_subject(command.tenant_id, command.organization_id, digest)
        queue, started_s = self._get_queue(name), self._clock.monotonic_s()
        ticket = _Ticket()
        queue.tickets.append(ticket)
        try:
            async with asyncio.timeout(HELD_S_MAX):
                await self._wait_for_time(queue, ticket, limit.pace, may_leave=may_leave)
                if ticket.at is not None:
                    await asyncio.sleep(max(0.0, ticket.at - self._read_timestamp()))
        except TimeoutError:
            text = f"rate limit {limit.key!r} let the call wait for more than {HELD_S_MAX:g} s"
            raise ToolFailure(build_error("rate_limit", text, code="RATE_LIMIT_WAIT")) from None
        finally:
            if ticket.at is None:
                queue.tickets.remove(ticket)
        waited_s = self._clock.monotonic_s() - started_s
        instruments.add_to_counter(names.RATE_LIMITED_CALLS)
        instruments.add_to_counter(names.RATE_LIMIT_WAITED, waited_s)
        return waited_s

    async def _wait_for_time(
        self, queue: _WaitingQueue, ticket: _Ticket, pace: CallRate, *, may_leave: bool
    ) -> None:
        while ticket.at is None:
            rest_s = 0.0
            async with queue.lock:
                if ticket.at is None:
                    rest_s = await self._request_times(queue, pace)
            if may_leave and ticket.at is None:
                # Those who stand before it have their turns first.
                turn_s = rest_s + queue.tickets.index(ticket) * pace.interval_s
                if turn_s > LEAVE_AFTER_S:
                    raise LongWait(turn_s)
            # Others ask at the same moment: without the noise they would meet again.
            await asyncio.sleep(rest_s * (1 + identity.draw_noise() * 0.1))

    async def _request_times(self, queue: _WaitingQueue, pace: CallRate) -> float:
        """Take times for all who wait; return how long to rest when there were none."""
        call_grant = admission.grant_calls(
            pace,
            tat=queue.tat,
            now=self._read_timestamp(),
            calls=len(queue.tickets),
            horizon_s=HORIZON_S,
        )
        if not call_grant.times:
            return call_grant.rest_s
        data = codec.encode_json({"tat": call_grant.tat})
        try:
            revision = await self._registers.swap_value(queue.name, data, revision=queue.revision)
            if revision is None:
                instruments.add_to_counter(names.RATE_LIMIT_CONTENTIONS)
                await self._read_shared(queue)
                return _CONTENDED_S * identity.draw_noise()
        except MessagingUnavailable:
            return _UNREACHED_S
        queue.revision, queue.tat = revision, call_grant.tat
        queue.hand_out_times(call_grant.times)
        return 0.0

    async def _read_shared(self, queue: _WaitingQueue) -> None:
        value = await self._registers.find_value(queue.name)
        queue.revision, queue.tat = (0, 0.0) if value is None else (value[0], _decode_tat(value[1]))

    def _read_timestamp(self) -> float:
        return self._clock.now().timestamp()

    def _get_queue(self, name: str) -> _WaitingQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _WaitingQueue(name)
            idle = next(
                (
                    waiting_queue
                    for waiting_queue in self._queues.values()
                    if not waiting_queue.tickets
                ),
                None,
            )
            if len(self._queues) > QUEUES_MAX and idle is not None and idle is not queue:
                del self._queues[idle.name]
        self._queues.move_to_end(name)
        return queue


def compile_limit(limit: RateLimit | None) -> CompiledLimit | None:
    """Compile a task's limit, if it has one."""
    if limit is None:
        return None
    return CompiledLimit(
        key=compile_value(limit.key),
        rate=compile_value(limit.rate),
        per=compile_value(limit.per),
        burst=compile_value(limit.burst),
    )


def render_limit(limit: CompiledLimit, scope: Any, step: str, task: str) -> CallLimit:
    """Render a limit; raises `ToolFailure`, or `PayloadNeeded` to be called again."""
    try:
        key, rate_given, per_given, burst_given = (
            part.render(scope) for part in limit.template_parts
        )
    except TemplateError as error:
        error_object = build_template_error(error, step=step, task=task, field="spec.rate_limit")
        raise ToolFailure(error_object) from error
    rate, per_s = coercion.coerce_number(rate_given), coercion.coerce_duration_s(per_given)
    burst = coercion.coerce_integer(burst_given)
    if rate is None or per_s is None or burst is None:
        raise _build_limit_failure("'rate' is a number, 'per' a duration, 'burst' a whole number")
    try:
        text = key if isinstance(key, str) else codec.encode_text(to_json_value(key))
    except ValueError as deep:
        raise _build_limit_failure(f"'key' cannot be a text: {deep}") from deep
    if (
        fault := rate_limits.find_rate_fault(key=text, rate=rate, per_s=per_s, burst=burst)
    ) is not None:
        raise _build_limit_failure(fault)
    return CallLimit(key=text, pace=CallRate(interval_s=per_s / rate, burst=burst))


def _build_limit_failure(reason: str) -> ToolFailure:
    return ToolFailure(build_error("validation", f"field 'spec.rate_limit': {reason}"))


def _decode_tat(data: bytes) -> float:
    """Read what is shared; what cannot be read counts as lost."""
    try:
        stored_time = codec.decode_json(data)
    except ValueError:
        return 0.0
    tat = stored_time.get("tat") if isinstance(stored_time, dict) else None
    return float(tat) if isinstance(tat, int | float) else 0.0
