"""Executions that wait for the payload store, as the planners of all shards say.

A planner says it each time that the store refuses, at most every 11 s, and when the wait is over.
Who hears nothing for longer forgets the wait: a message may be lost, and a planner may end.
"""

import structlog
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import codec, subjects
from noetl_contracts.errors import MalformedMessage, Retryable
from noetl_contracts.ids import ExecutionId
from noetl_contracts.store_waits import REASON_CHARACTERS_MAX, StoreWait, decode_store_wait
from noetl_messaging.streams.hint_receiver import receive_hints
from noetl_messaging.streams.ports import Hints

log = structlog.get_logger(__name__)

# A store may take half a minute to refuse; the next try comes up to 11 s later.
SILENT_S = 60.0
# Of more executions than this the ones that were heard of longest ago are forgotten.
EXECUTIONS_MAX = 10_000


class HeardWait(Struct, frozen=True, kw_only=True):
    """Why an execution waits, and when that arrived."""

    reason: str
    at_s: float


class StoreWaits:
    """Says and hears which executions wait for the payload store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[ExecutionId, HeardWait] = {}

    def find_reason(self, execution_id: ExecutionId) -> str | None:
        """Return why an execution waits, or None when it does not."""
        heard = self._heard.get(execution_id)
        if heard is None or heard.at_s < self._clock.monotonic_s() - SILENT_S:
            return None
        return heard.reason

    async def announce_wait(
        self, hints: Hints, execution_id: ExecutionId, problem: Retryable
    ) -> None:
        """Say that the store refuses what an execution needs."""
        reason = str(problem)[:REASON_CHARACTERS_MAX] or type(problem).__name__
        await self._announce(hints, StoreWait(execution_id=execution_id, reason=reason))

    async def announce_end(self, hints: Hints, execution_id: ExecutionId) -> None:
        """Say that an execution goes on, if this or another planner said that it waits."""
        if execution_id in self._heard:
            await self._announce(hints, StoreWait(execution_id=execution_id))

    async def _announce(self, hints: Hints, wait: StoreWait) -> None:
        self.note_wait(wait)
        await hints.broadcast(subjects.STORE_WAITS, codec.encode_json(wait))

    def note_wait(self, wait: StoreWait) -> None:
        """Remember a wait, or forget it when it is over."""
        self._heard.pop(wait.execution_id, None)
        if wait.reason:
            self._heard[wait.execution_id] = HeardWait(
                reason=wait.reason, at_s=self._clock.monotonic_s()
            )
        while len(self._heard) > EXECUTIONS_MAX:
            del self._heard[next(iter(self._heard))]

    async def listen_to_planners(self, hints: Hints) -> None:
        """Receive the waits of other planners until cancelled."""
        await receive_hints(
            lambda: hints.subscribe(subjects.STORE_WAITS),
            self._receive_wait,
            subject=subjects.STORE_WAITS,
        )

    def _receive_wait(self, data: bytes) -> None:
        try:
            self.note_wait(decode_store_wait(data))
        except MalformedMessage as problem:
            log.warning("store wait cannot be decoded", reason=str(problem))
