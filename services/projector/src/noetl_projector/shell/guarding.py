"""Notices a ledger that went backwards, and ends the process for it."""

import asyncio

import structlog

from noetl_contracts.ids import ExecutionId
from noetl_projector.domain.cache import Held
from noetl_projector.shell.histories import LedgerWentBack
from noetl_replay.state import forget_oldest
from noetl_storage.audit_ports import Rebuilds
from noetl_storage.ports import Projections

# Executions of which it is remembered that they were compared.
COMPARED_MAX = 10_000

log = structlog.get_logger(__name__)


class LedgerGuard:
    """Turns outlive whatever they meet; this must not: what follows is of no history there is."""

    def __init__(self, *, projections: Projections, rebuilds: Rebuilds) -> None:
        self._projections = projections
        self._rebuilds = rebuilds
        self._compared: dict[ExecutionId, None] = {}
        self._failure: LedgerWentBack | None = None
        self._has_failed = asyncio.Event()

    async def check_all(self) -> None:
        """Compare every position with the ledger; raises `LedgerWentBack` when one is ahead."""
        for execution_id in await self._rebuilds.list_ahead(executions_max=1):
            raise self.stopped_by(LedgerWentBack(execution_id, "is projected beyond its end"))

    async def check_same(self, held: Held) -> None:
        """Compare the last event that was projected with the one that the ledger has there."""
        state = held.state
        if state.version == 0 or state.execution_id in self._compared:
            return
        # Once an execution is enough: a load is a race with whoever else projects it.
        self._compared[state.execution_id] = None
        forget_oldest(self._compared, COMPARED_MAX)
        found = await self._projections.list_rows("execution", state.execution_id)
        if (
            found
            and found[0]["version"] == state.version
            and found[0]["envelope_checksum"] != state.checksum
        ):
            raise LedgerWentBack(
                state.execution_id, f"has another version {state.version} than was projected"
            )

    def stopped_by(self, failure: LedgerWentBack) -> LedgerWentBack:
        """Let `watch` end the process with a failure; return it."""
        if self._failure is None:
            self._failure = failure
            self._has_failed.set()
            log.critical("ledger went backwards", reason=str(failure))
        return failure

    async def watch(self, stop: asyncio.Event) -> None:
        """Wait until told to stop; raises `LedgerWentBack` once a turn has met it."""
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._has_failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._failure is not None:
            raise self._failure
