"""The epochs of shards in memory."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from noetl_contracts import ids
from noetl_contracts.epochs import CheckpointCommitted
from noetl_contracts.ids import ExecutionId
from noetl_storage.memory.store import MemoryStore

_EVER = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryCheckpoints:
    """Keeps the last few epochs of each shard."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def list_latest(
        self, shards: Sequence[int], *, shard_count: int
    ) -> list[CheckpointCommitted]:
        """Return the latest epoch of each shard that has one, by shard."""
        epochs = self._store.epochs_by_shard
        found = [epochs.get((shard, shard_count), []) for shard in sorted(shards)]
        return [kept[-1] for kept in found if kept]

    async def commit(
        self,
        event_by_shard: Mapping[int, int],
        *,
        shard_count: int,
        set_aside: Sequence[ExecutionId],
        horizon_s: float,
        epochs_max: int,
    ) -> list[CheckpointCommitted]:
        """Commit the next epoch of each shard, projected up to an event at least; by shard."""
        now = self._store.now()
        committed = []
        for shard, event_id in sorted(event_by_shard.items()):
            kept = self._store.epochs_by_shard.setdefault((shard, shard_count), [])
            before = kept[-1].through_at if kept else _EVER
            behind = self._behind(shard, shard_count, since=before, but=set_aside)
            through = min([now - timedelta(seconds=horizon_s), *behind])
            kept.append(
                CheckpointCommitted(
                    shard=shard,
                    shard_count=shard_count,
                    epoch=kept[-1].epoch + 1 if kept else 1,
                    last_event_id=max(event_id, kept[-1].last_event_id if kept else 0),
                    through_at=max(through, before),
                    committed_at=now,
                    set_aside=sorted(
                        (one for one in set_aside if ids.shard_of(one, shard_count) == shard),
                        key=int,
                    ),
                )
            )
            del kept[:-epochs_max]
            committed.append(kept[-1])
        return committed

    def _behind(
        self, shard: int, shard_count: int, *, since: datetime, but: Sequence[ExecutionId]
    ) -> list[datetime]:
        """List when histories of a shard changed that are ahead of the projection."""
        store = self._store
        return [
            moved_at
            for execution, moved_at in store.head_moved_at.items()
            if moved_at >= since
            and execution not in but
            and ids.shard_of(ExecutionId(execution), shard_count) == shard
            and store.head_by_execution[execution].version
            > store.position_by_execution.get(execution, 0)
        ]
