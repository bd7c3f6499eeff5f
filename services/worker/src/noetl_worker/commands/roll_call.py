"""Answers the reaper, which asks all workers what they hold when one of them is gone."""

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog

from noetl_contracts import codec, subjects
from noetl_contracts.commands.held_commands import HeldCommands
from noetl_contracts.errors import Retryable
from noetl_messaging.streams.ports import Delivery, Hints

log = structlog.get_logger(__name__)

_RETRY_S = 1.0


class HeldDeliveries:
    """Counts the deliveries that a worker attends to, by their sequence in the stream.

    A command that comes again while it runs is attended to twice. An offer is in no stream.
    """

    def __init__(self) -> None:
        self._count_by_sequence: Counter[int] = Counter()

    def add_delivery(self, delivery: Delivery) -> None:
        """Count a delivery."""
        self._count_by_sequence[delivery.stream_sequence] += 1

    def remove_delivery(self, delivery: Delivery) -> None:
        """Count a delivery no longer."""
        self._count_by_sequence[delivery.stream_sequence] -= 1
        if not self._count_by_sequence[delivery.stream_sequence]:
            del self._count_by_sequence[delivery.stream_sequence]

    def list_sequences(self) -> tuple[int, ...]:
        """Return what is held, the oldest first."""
        return tuple(sorted(self._count_by_sequence))


async def answer_roll_calls(hints: Hints, build_answer: Callable[[str], HeldCommands]) -> None:
    """Say what is held whenever somebody asks, until cancelled."""
    while True:
        try:
            async for call in hints.subscribe(subjects.ROLL_CALL):
                answer = build_answer(call.decode(errors="replace"))
                subject = subjects.build_held_subject(answer.pool, answer.worker_id)
                await hints.broadcast(subject, codec.encode_json(answer))
        except Retryable as problem:
            log.info("not listening to roll calls", reason=str(problem))
        await asyncio.sleep(_RETRY_S)
