"""Hears how far tasks of an execution are, for who follows it: the latest of each command."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import structlog

from noetl_contracts import codec, subjects
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import CommandId, ExecutionId
from noetl_contracts.step_progress import BYTES_MAX, StepProgress
from noetl_messaging.ports import Hints

# Commands whose latest progress waits to be taken; of more the oldest is forgotten.
_COMMANDS_MAX = 64

log = structlog.get_logger(__name__)


class LatestProgress:
    """The progress that was told since somebody took it."""

    def __init__(self) -> None:
        self._by_command: OrderedDict[CommandId, StepProgress] = OrderedDict()

    def put(self, data: bytes) -> None:
        """Keep what a hint says; what is no progress is dropped, for anyone may send hints."""
        if len(data) > BYTES_MAX:
            return
        with suppress(msgspec.DecodeError):
            progress = codec.decode_as(data, StepProgress)
            self._by_command[progress.command_id] = progress
            self._by_command.move_to_end(progress.command_id)
        if len(self._by_command) > _COMMANDS_MAX:
            self._by_command.popitem(last=False)

    def take(self) -> list[StepProgress]:
        """Take out what has come, in the order in which it came."""
        taken = list(self._by_command.values())
        self._by_command.clear()
        return taken


@asynccontextmanager
async def hear_progress(hints: Hints, execution_id: ExecutionId) -> AsyncIterator[LatestProgress]:
    """Hear of an execution's progress while the block runs; nothing where there is no listening."""
    latest = LatestProgress()
    hearing = asyncio.ensure_future(_hear(hints, execution_id, latest))
    try:
        yield latest
    finally:
        hearing.cancel()
        await asyncio.wait({hearing})


async def _hear(hints: Hints, execution_id: ExecutionId, latest: LatestProgress) -> None:
    try:
        async for data in hints.hear(subjects.progress(execution_id)):
            latest.put(data)
    except Retryable as problem:
        log.info("not listening to progress", reason=str(problem))
