"""Lineage in memory: the events that it is told from, and the run events that are kept."""

from collections.abc import Sequence

from noetl_contracts import ids
from noetl_contracts.events import LINEAGE_EVENTS
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_storage.memory.store import MemoryStore, StoredLineage
from noetl_storage.ports.history_ports import LineageBehind, LineageRow, UndeliveredRow


class MemoryLineageHistories:
    """Filters the histories of a store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def read_steps(
        self, execution_id: ExecutionId, *, after_version: int, until_version: int
    ) -> list[Envelope]:
        """Return the events of a range of versions that runs and steps begin, end or result in."""
        history = self._store.history_by_execution.get(execution_id, [])
        return [
            envelope
            for envelope in history[after_version:until_version]
            if isinstance(envelope.event, LINEAGE_EVENTS)
            and getattr(envelope.event, "item_index", None) is None
        ]


class MemoryLineage:
    """Keeps run events beside the histories of a store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def list_lineage_behind(
        self, *, shard: int, shard_count: int, lineage_version: int, executions_max: int
    ) -> list[LineageBehind]:
        """Return executions whose lineage is behind the ledger, or of an older release."""
        late_lineages = []
        for head in self._store.head_by_execution.values():
            stored_lineage = self._get_lineage(head.execution_id)
            is_same = stored_lineage.lineage_version == lineage_version
            is_behind = head.version > stored_lineage.version or not is_same
            history = self._store.history_by_execution.get(head.execution_id, [])
            if not history or history[0].stream_version != 1:
                continue
            if not is_behind or ids.find_shard(head.execution_id, shard_count) != shard:
                continue
            late_lineages.append(
                LineageBehind(
                    execution_id=head.execution_id,
                    tenant_id=history[0].tenant_id,
                    organization_id=history[0].organization_id,
                    head=head.version,
                    kept_version=stored_lineage.version if is_same else 0,
                    state=stored_lineage.state if is_same else None,
                )
            )
        return late_lineages[:executions_max]

    async def keep_rows(
        self,
        behind: LineageBehind,
        rows: Sequence[LineageRow],
        *,
        until: int,
        state: bytes,
        lineage_version: int,
    ) -> bool:
        """Write rows and move the position in one transaction; False when it stands elsewhere."""
        stored_lineage = self._store.lineage_by_execution.setdefault(
            behind.execution_id, StoredLineage()
        )
        is_same = stored_lineage.lineage_version == lineage_version
        if behind.kept_version != (stored_lineage.version if is_same else 0):
            return False
        new = {(row.version, row.ordinal): row for row in rows}
        for key in [key for key in stored_lineage.rows if behind.kept_version < key[0] <= until]:
            if stored_lineage.rows[key] != new.get(key):
                stored_lineage.settled.pop(key, None)
                del stored_lineage.rows[key]
        stored_lineage.rows |= new
        stored_lineage.version, stored_lineage.state, stored_lineage.lineage_version = (
            until,
            state,
            lineage_version,
        )
        return True

    async def list_undelivered_rows(
        self, *, shard: int, shard_count: int, rows_max: int
    ) -> list[UndeliveredRow]:
        """Return rows of a shard to deliver, in order within each execution."""
        undelivered_rows = [
            UndeliveredRow(
                execution_id=ExecutionId(execution_id),
                version=key[0],
                ordinal=key[1],
                body=stored_lineage.rows[key].body,
            )
            for execution_id, stored_lineage in sorted(self._store.lineage_by_execution.items())
            if ids.find_shard(ExecutionId(execution_id), shard_count) == shard
            for key in sorted(stored_lineage.rows)
            if key not in stored_lineage.settled
        ]
        return undelivered_rows[:rows_max]

    async def settle_row(self, row: UndeliveredRow, *, refusal: str | None = None) -> None:
        """Note that a row was delivered, or why its receiver will never take it."""
        self._get_lineage(row.execution_id).settled[row.version, row.ordinal] = refusal

    async def forget_lineage(self, execution_id: ExecutionId) -> bool:
        """Forget an execution's lineage, so that it is derived again; False when it has none."""
        stored_lineage = self._store.lineage_by_execution.get(execution_id)
        if stored_lineage is None:
            return False
        stored_lineage.version, stored_lineage.lineage_version, stored_lineage.state = 0, 0, b""
        return True

    def _get_lineage(self, execution_id: ExecutionId) -> StoredLineage:
        return self._store.lineage_by_execution.get(execution_id, StoredLineage())
