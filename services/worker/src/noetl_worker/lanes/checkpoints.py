"""Where a pipeline that repeats stands, kept now and then for the attempt after a lost one.

A checkpoint is a named object, written once: `walks/<execution>/<command>.<attempt>-<number>`. It
holds what a parked pipeline holds, so the worker that takes it up reads again only the pages since
then.
"""

import itertools
from collections.abc import Awaitable, Callable

import msgspec

from noetl_contracts import codec
from noetl_contracts.commands import Command
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes.block import Block
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.parking import Saved
from noetl_worker.lanes.scratch import Unit

PAGES = 25
SECONDS = 5.0
WALKS = "walks"


class Checkpoints:
    """Writes the checkpoints of one attempt."""

    def __init__(self, *, command: Command, hands: Hands, is_wanted: bool) -> None:
        self._command = command
        self._hands = hands
        self._is_wanted = is_wanted
        self._number = 0
        self._pages = 0
        self._at = hands.clock.monotonic()

    async def count(self, save: Callable[[], Awaitable[Saved]]) -> None:
        """Count a jump back; keep where the pipeline stands when enough has been done."""
        self._pages += 1
        now = self._hands.clock.monotonic()
        if not self._is_wanted or (self._pages < PAGES and now - self._at < SECONDS):
            return
        data = self._hands.mask.data(codec.encode(await save()))
        self._number += 1
        name = name_of(self._command, attempt=self._command.attempt, number=self._number)
        await self._hands.payloads.put_named(name, data)
        self._pages, self._at = 0, self._hands.clock.monotonic()


def name_of(command: Command, *, attempt: int, number: int) -> str:
    """Name a checkpoint of one attempt of a command."""
    return f"{WALKS}/{command.execution_id}/{command.command_id}.{attempt}-{number}"


def is_resumable(unit: Unit) -> bool:
    """Tell whether another attempt goes on with a unit: a frame's rows begin again with it."""
    return unit.may_park and not unit.place and unit.emitter is None


def has_repeats(block: Block) -> bool:
    """Tell whether a rule of the block jumps back."""
    return any(
        rule.action.do == "jump" and rule.action.to <= position
        for position, task in enumerate(block.tasks)
        for rule in task.rules
    )


async def find(command: Command, hands: Hands, *, after: int) -> Saved | None:
    """Return the last checkpoint of the latest attempt that has one; raises `ToolFailure`.

    What attempts up to `after` kept is older than what the command goes on with.
    """
    for attempt in range(command.attempt - 1, after, -1):
        latest = None
        for number in itertools.count(start=1):
            data = await hands.payloads.find_named(name_of(command, attempt=attempt, number=number))
            if data is None:
                break
            latest = data
        if latest is not None:
            return _read(latest, command)
    return None


def _read(data: bytes, command: Command) -> Saved:
    try:
        return codec.decode_as(data, Saved)
    except (msgspec.ValidationError, msgspec.DecodeError) as problem:
        text = f"a checkpoint of step '{command.step}' cannot be read: {problem}"
        raise ToolFailure(failure("internal", text)) from problem
