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


class ReceivedWait(Struct, frozen=True, kw_only=True):
    """Why an execution waits, and when that arrived."""

    reason: str
    at_s: float


class StoreWaits:
    """Says and hears which executions wait for the payload store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._received_waits: dict[ExecutionId, ReceivedWait] = {}

    def find_reason(self, execution_id: ExecutionId) -> str | None:
        """Return why an execution waits, or None when it does not."""
        received_wait = self._received_waits.get(execution_id)
        if received_wait is None or received_wait.at_s < self._clock.monotonic_s() - SILENT_S:
            return None
        return received_wait.reason

    async def announce_wait(
        self, hints: Hints, execution_id: ExecutionId, problem: Retryable
    ) -> None:
        """Say that the store refuses what an execution needs."""
        reason = str(problem)[:REASON_CHARACTERS_MAX] or type(problem).__name__
        await self._announce(hints, StoreWait(execution_id=execution_id, reason=reason))

    async def announce_end(self, hints: Hints, execution_id: ExecutionId) -> None:
        """Say that an execution goes on, if this or another planner said that it waits."""
        if execution_id in self._received_waits:
            await self._announce(hints, StoreWait(execution_id=execution_id))

    async def _announce(self, hints: Hints, wait: StoreWait) -> None:
        self.note_wait(wait)
        await hints.broadcast(subjects.STORE_WAITS, codec.encode_json(wait))

    def note_wait(self, wait: StoreWait) -> None:
        """Remember a wait, or forget it when it is over."""
        self._received_waits.pop(wait.execution_id, None)
        if wait.reason:
            self._received_waits[wait.execution_id] = ReceivedWait(
                reason=wait.reason, at_s=self._clock.monotonic_s()
            )
        while len(self._received_waits) > EXECUTIONS_MAX:
            del self._received_waits[next(iter(self._received_waits))]

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
