"""The progress of an execution's tasks, which workers tell now and then and nobody keeps."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import structlog

from noetl_contracts import codec, subjects
from noetl_contracts.commands.task_metrics import BYTES_MAX, StepProgress
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import CommandId, ExecutionId
from noetl_messaging.streams.ports import Hints

# Commands whose latest progress waits to be taken; of more the oldest is forgotten.
_COMMANDS_MAX = 64

log = structlog.get_logger(__name__)


class LatestProgress:
    """The progress of tasks since it was last taken."""

    def __init__(self) -> None:
        self._by_command: OrderedDict[CommandId, StepProgress] = OrderedDict()

    def put_hint(self, data: bytes) -> None:
        """Keep the progress in a hint; other hints are dropped, since any client may send them."""
        if len(data) > BYTES_MAX:
            return
        with suppress(msgspec.DecodeError):
            progress = codec.decode_as(data, StepProgress)
            self._by_command[progress.command_id] = progress
            self._by_command.move_to_end(progress.command_id)
        if len(self._by_command) > _COMMANDS_MAX:
            self._by_command.popitem(last=False)

    def take_latest(self) -> list[StepProgress]:
        """Take out what has come, in the order in which it came."""
        latest_progress = list(self._by_command.values())
        self._by_command.clear()
        return latest_progress


@asynccontextmanager
async def listen_to_progress(
    hints: Hints, execution_id: ExecutionId
) -> AsyncIterator[LatestProgress]:
    """Hear of an execution's progress while the block runs; nothing where there is no listening."""
    latest = LatestProgress()
    hearing = asyncio.ensure_future(_receive_progress(hints, execution_id, latest))
    try:
        yield latest
    finally:
        hearing.cancel()
        await asyncio.wait({hearing})


async def _receive_progress(
    hints: Hints, execution_id: ExecutionId, latest: LatestProgress
) -> None:
    try:
        async for data in hints.subscribe(subjects.build_progress_hint(execution_id)):
            latest.put_hint(data)
    except Retryable as problem:
        log.info("progress hints interrupted", reason=str(problem))
