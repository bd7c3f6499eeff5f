"""States from snapshots and the ledger, and events folded into them."""

from collections.abc import Iterable

from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_projector.domain.cache import Held
from noetl_replay import fold, snapshot, state
from noetl_replay.state import ExecutionState, take_changes
from noetl_storage.audit_ports import Past
from noetl_storage.ports import LedgerReader, Snapshots

# Snapshots of the past lie so far apart that about this many of a long history are kept in each
# doubling of its length.
PAST_SNAPSHOTS_MAX = 64

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


class Poisoned(Permanent):
    """An execution's history cannot be projected by this release."""

    def __init__(self, execution_id: ExecutionId, reason: str) -> None:
        super().__init__(f"execution {execution_id} cannot be projected: {reason}")
        self.execution_id = execution_id


class Moved(Retryable):
    """Another projector has moved the execution's position: load it again."""


class LedgerWentBack(Permanent):
    """The projection knows of events that the ledger does not have: it was restored or replaced."""

    def __init__(self, execution_id: ExecutionId, reason: str) -> None:
        super().__init__(
            f"the ledger went backwards: execution {execution_id} {reason}. If the database was "
            "restored from a backup, rebuild what was projected and start again: "
            "noetl projection rebuild --all"
        )


class Histories:
    """Reads what a projector needs to go on with an execution."""

    def __init__(
        self,
        *,
        ledger: LedgerReader,
        snapshots: Snapshots,
        past: Past,
        page_events: int,
        snapshot_floor: int,
    ) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._past = past
        self._page_events = page_events
        self._snapshot_floor = snapshot_floor

    async def load(
        self,
        execution_id: ExecutionId,
        *,
        position: int,
        tenant_id: TenantId,
        organization_id: OrganizationId,
    ) -> Held:
        """Rebuild the state at a position; raises `Poisoned` or `LedgerWentBack`."""
        current = await self._restore(execution_id, position)
        remembered = current.version if current is not None else 0
        current = current or state.empty(execution_id, tenant_id, organization_id)
        while current.version < position:
            page = await self.read(execution_id, after=current.version, until=position)
            if not page:
                raise LedgerWentBack(
                    execution_id,
                    f"is projected up to version {position} and ends at {current.version}",
                )
            fold_into(current, page)
        # What was touched up to the position has been projected already.
        take_changes(current)
        return Held(current, remembered=remembered)

    async def read(
        self, execution_id: ExecutionId, *, after: int, until: int | None = None
    ) -> list[Envelope]:
        """Return the next page after a version, not beyond `until`; raises `Poisoned`."""
        room = self._page_events if until is None else min(self._page_events, until - after)
        try:
            return await self._ledger.read(execution_id, after_version=after, events_max=room)
        except Permanent as failure:
            raise Poisoned(execution_id, str(failure)) from failure

    async def remember(self, held: Held) -> None:
        """Keep a snapshot of a projected state."""
        taken = snapshot.take(held.state)
        await self._snapshots.put(taken)
        await self._past.keep(taken, spacing_versions=taken.version // PAST_SNAPSHOTS_MAX)
        held.remembered = held.state.version

    async def _restore(self, execution_id: ExecutionId, position: int) -> ExecutionState | None:
        if position < self._snapshot_floor:
            return None
        found = await self._snapshots.find(execution_id)
        # A snapshot beyond the position would hide what is still to be projected.
        if found is None or found.version > position:
            return None
        return snapshot.restore(found)


def fold_into(current: ExecutionState, envelopes: Iterable[Envelope]) -> None:
    """Fold events into a state; raises `Poisoned` and leaves the state unusable."""
    try:
        fold.fold(current, envelopes)
    except _FOLD_FAILURES as failure:
        raise Poisoned(
            current.execution_id, f"version {current.version}: {type(failure).__name__}: {failure}"
        ) from failure
