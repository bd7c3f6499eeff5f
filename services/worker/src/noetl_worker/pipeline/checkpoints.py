"""Where a pipeline that repeats stands, kept now and then for the attempt after a lost one.

A checkpoint is a named object, written once: `walks/<execution>/<command>.<attempt>-<number>`. It
holds what a parked pipeline holds, so the worker that takes it up reads again only the pages since
then.
"""

import itertools
from collections.abc import Awaitable, Callable

import msgspec

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.pipeline.parked_work import SavedPipeline
from noetl_worker.pipeline.state import PipelineUnit

PAGES = 25
SECONDS = 5.0
WALKS = "walks"


class CheckpointWriter:
    """Writes the checkpoints of one attempt."""

    def __init__(self, *, command: Command, services: CommandServices, is_wanted: bool) -> None:
        self._command = command
        self._services = services
        self._is_wanted = is_wanted
        self._number = 0
        self._pages = 0
        self._at = services.clock.monotonic_s()

    async def count_jump(self, save: Callable[[], Awaitable[SavedPipeline]]) -> None:
        """Count a jump back; keep where the pipeline stands when enough has been done."""
        self._pages += 1
        now = self._services.clock.monotonic_s()
        if not self._is_wanted or (self._pages < PAGES and now - self._at < SECONDS):
            return
        data = self._services.mask.mask_bytes(codec.encode_json(await save()))
        self._number += 1
        name = build_checkpoint_name(
            self._command, attempt=self._command.attempt, number=self._number
        )
        await self._services.payloads.put_named(name, data)
        self._pages, self._at = 0, self._services.clock.monotonic_s()


def build_checkpoint_name(command: Command, *, attempt: int, number: int) -> str:
    """Name a checkpoint of one attempt of a command."""
    return f"{WALKS}/{command.execution_id}/{command.command_id}.{attempt}-{number}"


def is_resumable(unit: PipelineUnit) -> bool:
    """Tell whether another attempt goes on with a unit: a frame's rows begin again with it."""
    return unit.may_park and not unit.place and unit.emitter is None


def has_repeats(block: CompiledPipeline) -> bool:
    """Tell whether a rule of the block jumps back."""
    return any(
        rule.action.do == "jump" and rule.action.to <= position
        for position, task in enumerate(block.tasks)
        for rule in task.rules
    )


async def find_checkpoint(
    command: Command, services: CommandServices, *, after: int
) -> SavedPipeline | None:
    """Return the last checkpoint of the latest attempt that has one; raises `ToolFailure`.

    What attempts up to `after` kept is older than what the command goes on with.
    """
    for attempt in range(command.attempt - 1, after, -1):
        latest = None
        for number in itertools.count(start=1):
            data = await services.payloads.find_named(
                build_checkpoint_name(command, attempt=attempt, number=number)
            )
            if data is None:
                break
            latest = data
        if latest is not None:
            return _decode_checkpoint(latest, command)
    return None


def _decode_checkpoint(data: bytes, command: Command) -> SavedPipeline:
    try:
        return codec.decode_as(data, SavedPipeline)
    except (msgspec.ValidationError, msgspec.DecodeError) as problem:
        text = f"a checkpoint of step '{command.step}' cannot be read: {problem}"
        raise ToolFailure(build_error("internal", text)) from problem
