"""What projectors remember of whole shards, so that a restart compares little."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from noetl_contracts.epochs import CheckpointCommitted
from noetl_contracts.ids import ExecutionId


class Checkpoints(Protocol):
    """The streams of epochs, one a shard; of each the last few are kept."""

    async def list_latest(
        self, shards: Sequence[int], *, shard_count: int
    ) -> list[CheckpointCommitted]:
        """Return the latest epoch of each shard that has one, by shard."""

    async def commit(
        self,
        event_by_shard: Mapping[int, int],
        *,
        shard_count: int,
        set_aside: Sequence[ExecutionId],
        horizon_s: float,
        epochs_max: int,
    ) -> list[CheckpointCommitted]:
        """Commit the next epoch of each shard, projected up to an event at least; by shard.

        Nothing younger than `horizon_s` is vouched for: a transaction may have begun before and
        commit after.
        """
