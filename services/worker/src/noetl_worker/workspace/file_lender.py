"""Runs tasks in checkouts of their execution's files."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from msgspec import structs

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts.commands.command_work import Command
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.workspace.task_files import FileConflict, RecordedOutcome, TaskFiles
from noetl_worker.workspace.workspaces import Workspaces

# A DuckDB task that met another writer does its work again on what that one wrote.
_CONFLICTS_MAX = 20
_PAUSE_S = 0.05


class FileLender:
    """Lends each attempt the files of its execution, and publishes what it changed."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    async def run_with_files(
        self, call: Call, run: Callable[[Call], Awaitable[Outcome]]
    ) -> Outcome:
        """Run one attempt; one that has run already is not run again.

        Of an attempt that fails no file is kept.
        """
        for conflicts in range(_CONFLICTS_MAX):
            files = TaskFiles(call, workspaces=self._workspaces)
            try:
                outcome = await run(structs.replace(call, own_files=files))
                if outcome.error is None:
                    await files.publish_changes(outcome)
            except RecordedOutcome as recorded_outcome:
                return recorded_outcome.outcome
            except ToolFailure as problem:
                outcome = Outcome(error=problem.error)
            finally:
                # Also of a task that is called off: the folder is checked before it is lent again.
                await asyncio.shield(files.release_checkout())
            if not _may_run_again(call, outcome):
                return await run_in_thread(files.add_hint, outcome)
            await asyncio.sleep(_PAUSE_S * conflicts * random.random())  # noqa: S311 - no secret
        return outcome

    def count_entries(self, command: Command) -> int:
        """Return how long the journal of an execution's files is known to be; 0 without one."""
        return self._workspaces.count_entries(_build_scope(command))

    async def read_entries(self, command: Command) -> None:
        """Look how long the journal is; raises `ToolFailure`."""
        site = _build_scope(command)
        journal = self._workspaces.get_journal(site, self._workspaces.get_payloads(site))
        await journal.read_latest(command.file_sources)
        self._workspaces.note_entries(site, journal.entry_count)


def _build_scope(command: Command) -> UnitScope:
    return UnitScope(
        execution_id=command.execution_id,
        tenant_id=command.tenant_id,
        organization_id=command.organization_id,
        step=command.step,
        unit="files",
    )


def _may_run_again(call: Call, outcome: Outcome) -> bool:
    """Tell whether a task lost to another writer, and has no effects but those on its files."""
    is_conflict = outcome.error is not None and outcome.error.kind == FileConflict.KIND
    return is_conflict and call.kind == "duckdb" and call.auth is None and call.sink is None
