"""Batches of items: one command that runs several items of a loop, one after another.

Each item runs as it would under a command of its own, whose identity it has: its files, its log and
its callbacks are named by it. Its end is reported under the batch's command.
"""

import asyncio

from msgspec import structs

from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import BatchWork, Command, ItemWork
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandStopped,
    ItemsReturned,
)
from noetl_worker.commands.command_context import CommandContext
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.commands.fact_publisher import FACTS_BYTES_MAX, AttemptReporter
from noetl_worker.domain.failures import build_error
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.runner import unit_run
from noetl_worker.runner.planner_frames import read_items
from noetl_worker.runner.unit_run import UnitEndFact, build_failed

# After this time what has not begun is given back, while the item that runs goes on.
HELD_S = 1.0
# What a report takes besides what it writes to `ctx`.
_REPORT_BYTES = 128 * 1024


class ItemBatch:
    """The run of one command that is a batch."""

    def __init__(
        self,
        command: Command,
        work: BatchWork,
        *,
        block: CompiledPipeline,
        context: CommandContext,
        services: CommandServices,
        reporter: AttemptReporter,
    ) -> None:
        self._command = command
        self._work = work
        self._block = block
        self._context = context
        self._services = services
        self._reporter = reporter
        # What has not begun, and is not given back.
        self._pending_indexes = list(work.indexes)

    async def run(self, draining: asyncio.Event) -> None:
        """Run the items in order; raises `ToolFailure` when they cannot be read.

        When the worker leaves, or the batch takes long, what has not begun is given back.
        """
        item_by_index = dict(zip(self._work.indexes, await self._read_items(), strict=True))
        timer = asyncio.get_running_loop().call_later(HELD_S, self._give_back)
        try:
            while self._pending_indexes and not draining.is_set():
                index = self._pending_indexes.pop(0)
                fact = await self._run_item(index, item_by_index[index])
                self._report_item(index, fact)
                if isinstance(fact, CommandStopped):
                    return
                if isinstance(fact, CommandParked):
                    break
                if self._command.attempt > 1:
                    # If this attempt is lost too, only the item that ran can be to blame.
                    await self._reporter.flush_facts()
            self._give_back()
        finally:
            timer.cancel()

    def _give_back(self) -> None:
        if self._pending_indexes:
            returned_indexes, self._pending_indexes = self._pending_indexes, []
            self._reporter.report_facts(
                ItemsReturned(
                    command_id=self._command.command_id,
                    attempt=self._command.attempt,
                    worker_id=self._services.worker_id,
                    items=returned_indexes,
                )
            )

    async def _read_items(self) -> list[object]:
        work = self._work
        if work.form is CollectionForm.RANGE:
            return list(work.indexes)
        if work.collection_ref is None:
            return work.items
        first = work.indexes[0]
        items = await read_items(
            work.collection_ref,
            work.form,
            start=first,
            end=work.indexes[-1] + 1,
            payloads=self._services.payloads,
        )
        return [items[index - first] for index in work.indexes]

    async def _run_item(self, index: int, item: object) -> UnitEndFact:
        """Run one item as a command of its own would; what goes wrong is the item's alone."""
        work = self._work
        own_work = ItemWork(
            index=index, total=work.total, item=item, done=work.done, failed=work.failed
        )
        command = structs.replace(
            self._command,
            command_id=ids.derive_command_id(self._command.run_id, f"item-{index}"),
            work=own_work,
        )
        context = self._context.for_item(command)
        try:
            unit = await unit_run.build_item_unit(own_work, context, self._services)
            return await unit_run.run_unit(command, self._block, unit, context, self._services)
        except unit_run.FAILURES as problem:
            return build_failed(
                command, self._services, unit_run.describe_failure(command, problem)
            )

    def _report_item(self, index: int, fact: UnitEndFact) -> None:
        """Report an item's end under the command of the batch."""
        lingers = bool(self._pending_indexes)
        command_id = self._command.command_id
        if isinstance(fact, CommandStopped):
            self._reporter.report_facts(structs.replace(fact, command_id=command_id))
            return
        if isinstance(fact, CommandCompleted | CommandFailed) and _is_too_large(fact):
            text = "the item writes more to ctx than a report may hold: write less"
            fact = build_failed(
                self._command, self._services, build_error("payload_too_large", text)
            )
        self._reporter.report_facts(
            structs.replace(fact, command_id=command_id, item_index=index), lingers=lingers
        )


def _is_too_large(fact: CommandCompleted | CommandFailed) -> bool:
    """Tell whether a report alone exceeds a message: it would fail the items beside it."""
    patch = fact.patch
    return bool(patch) and len(codec.encode_json(patch)) > FACTS_BYTES_MAX - _REPORT_BYTES
