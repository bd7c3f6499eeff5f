"""Histories for the projector: loaded from snapshots and the ledger, folded, and compared."""

import asyncio
from collections.abc import Iterable

import structlog

from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_projector.domain.state_cache import ProjectedState
from noetl_replay import fold, snapshot, state
from noetl_replay.state import ExecutionState, forget_oldest, take_changes
from noetl_storage.ports.history_ports import PastSnapshots, ProjectionRebuilds
from noetl_storage.ports.ledger_ports import LedgerReader, Projections, Snapshots

# Snapshots of the past lie so far apart that about this many of a long history are kept in each
# doubling of its length.
PAST_SNAPSHOTS_MAX = 64

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)
# Executions of which it is remembered that they were compared.
COMPARED_MAX = 10_000
log = structlog.get_logger(__name__)
# So many executions are forgotten in one statement, in so many statements a turn.
EXECUTIONS_MAX = 200
ROUNDS_MAX = 50


class PoisonedHistory(Permanent):
    """An execution's history cannot be projected by this release."""

    def __init__(self, execution_id: ExecutionId, reason: str) -> None:
        super().__init__(f"execution {execution_id} cannot be projected: {reason}")
        self.execution_id = execution_id


class PositionMoved(Retryable):
    """Another projector has moved the execution's position: load it again."""


class LedgerWentBack(Permanent):
    """The projection knows of events that the ledger does not have: it was restored or replaced."""

    def __init__(self, execution_id: ExecutionId, reason: str) -> None:
        super().__init__(
            f"the ledger went backwards: execution {execution_id} {reason}. If the database was "
            "restored from a backup, rebuild what was projected and start again: "
            "noetl projection rebuild --all"
        )


class HistoryLoader:
    """Reads what a projector needs to go on with an execution."""

    def __init__(
        self,
        *,
        ledger: LedgerReader,
        snapshots: Snapshots,
        past: PastSnapshots,
        page_events: int,
        snapshot_floor: int,
    ) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._past = past
        self._page_events = page_events
        self._snapshot_floor = snapshot_floor

    async def load_state(
        self,
        execution_id: ExecutionId,
        *,
        position: int,
        tenant_id: TenantId,
        organization_id: OrganizationId,
    ) -> ProjectedState:
        """Rebuild the state at a position; raises `PoisonedHistory` or `LedgerWentBack`."""
        current = await self._restore_snapshot(execution_id, position)
        remembered = current.version if current is not None else 0
        current = current or state.build_empty_state(execution_id, tenant_id, organization_id)
        while current.version < position:
            page = await self.read_page(execution_id, after=current.version, until=position)
            if not page:
                raise LedgerWentBack(
                    execution_id,
                    f"is projected up to version {position} and ends at {current.version}",
                )
            fold_into_state(current, page)
        # What was touched up to the position has been projected already.
        take_changes(current)
        return ProjectedState(current, remembered=remembered)

    async def read_page(
        self, execution_id: ExecutionId, *, after: int, until: int | None = None
    ) -> list[Envelope]:
        """Return the next page after a version, not beyond `until`; raises `PoisonedHistory`."""
        room = self._page_events if until is None else min(self._page_events, until - after)
        try:
            return await self._ledger.read_events(
                execution_id, after_version=after, events_max=room
            )
        except Permanent as failure:
            raise PoisonedHistory(execution_id, str(failure)) from failure

    async def keep_snapshot(self, projected_state: ProjectedState) -> None:
        """Keep a snapshot of a projected state."""
        state_snapshot = snapshot.build_snapshot(projected_state.state)
        await self._snapshots.put_snapshot(state_snapshot)
        await self._past.keep_snapshot(
            state_snapshot, spacing_versions=state_snapshot.version // PAST_SNAPSHOTS_MAX
        )
        projected_state.remembered = projected_state.state.version

    async def _restore_snapshot(
        self, execution_id: ExecutionId, position: int
    ) -> ExecutionState | None:
        if position < self._snapshot_floor:
            return None
        stored_snapshot = await self._snapshots.find_snapshot(execution_id)
        # A snapshot beyond the position would hide what is still to be projected.
        if stored_snapshot is None or stored_snapshot.version > position:
            return None
        return snapshot.restore_state(stored_snapshot)


def fold_into_state(current: ExecutionState, envelopes: Iterable[Envelope]) -> None:
    """Fold events into a state; raises `PoisonedHistory` and leaves the state unusable."""
    try:
        fold.fold_history(current, envelopes)
    except _FOLD_FAILURES as failure:
        raise PoisonedHistory(
            current.execution_id, f"version {current.version}: {type(failure).__name__}: {failure}"
        ) from failure


class LedgerGuard:
    """Detects a ledger that went back; that must end the projector, which outlives other errors."""

    def __init__(self, *, projections: Projections, rebuilds: ProjectionRebuilds) -> None:
        self._projections = projections
        self._rebuilds = rebuilds
        self._compared: dict[ExecutionId, None] = {}
        self._failure: LedgerWentBack | None = None
        self._has_failed = asyncio.Event()

    async def check_positions(self) -> None:
        """Compare every position with the ledger; raises `LedgerWentBack` when one is ahead."""
        for execution_id in await self._rebuilds.list_executions_ahead(executions_max=1):
            raise self.record_failure(LedgerWentBack(execution_id, "is projected beyond its end"))

    async def check_last_event(self, projected_state: ProjectedState) -> None:
        """Compare the last event that was projected with the one that the ledger has there."""
        state = projected_state.state
        if state.version == 0 or state.execution_id in self._compared:
            return
        # Once for each execution is enough: a load races with other projectors of it.
        self._compared[state.execution_id] = None
        forget_oldest(self._compared, COMPARED_MAX)
        rows = await self._projections.list_rows("execution", state.execution_id)
        if (
            rows
            and rows[0]["version"] == state.version
            and rows[0]["envelope_checksum"] != state.checksum
        ):
            raise LedgerWentBack(
                state.execution_id, f"has another version {state.version} than was projected"
            )

    def record_failure(self, failure: LedgerWentBack) -> LedgerWentBack:
        """Let `watch_for_failure` end the process with a failure; return it."""
        if self._failure is None:
            self._failure = failure
            self._has_failed.set()
            log.critical("ledger went backwards", reason=str(failure))
        return failure

    async def watch_for_failure(self, stop: asyncio.Event) -> None:
        """Wait until told to stop; raises `LedgerWentBack` once a turn has met it."""
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._has_failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._failure is not None:
            raise self._failure


async def prune_past_snapshots(past: PastSnapshots, *, ended_s: float) -> int:
    """Forget the past of executions that ended so long ago; return how many snapshots."""
    total = 0
    for _ in range(ROUNDS_MAX):
        snapshots = await past.prune_snapshots(ended_s=ended_s, executions_max=EXECUTIONS_MAX)
        total += snapshots
        if not snapshots:
            break
    return total
