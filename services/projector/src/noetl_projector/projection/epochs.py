"""Finds executions whose events never arrived, and commits up to when a shard is projected."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_contracts import ids
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import CheckpointCommitted
from noetl_projector.domain import shard_ownership
from noetl_projector.domain.policy import ProjectorPolicy
from noetl_projector.domain.state_cache import ProjectedState
from noetl_storage.ports.ledger_ports import Projections, ShardCheckpoints


class ShardEpochs:
    """Owns what is known of whole shards; without `checkpoints` every search is of everything."""

    def __init__(
        self,
        *,
        projections: Projections,
        checkpoints: ShardCheckpoints | None,
        policy: ProjectorPolicy,
        clock: Clock,
    ) -> None:
        self._projections = projections
        self._checkpoints = checkpoints
        self._policy = policy
        self._clock = clock
        self._shards = shard_ownership.list_owned_shards(
            index=policy.index, count=policy.count, shard_count=policy.execution_shard_count
        )
        self._event_by_shard = dict.fromkeys(self._shards, 0)
        self._latest: list[CheckpointCommitted] = []
        self._committed_at = clock.monotonic_s()
        self._set_aside: list[ExecutionId] = []

    @property
    def compared_since(self) -> datetime | None:
        """Return the time before which nothing needs to be compared; None: there is none yet."""
        if len(self._latest) < len(self._shards):
            return None
        return min(checkpoint.through_at for checkpoint in self._latest)

    async def load_latest(self) -> None:
        """Go on from the latest epochs; what they had set aside is tried again."""
        if self._checkpoints is None:
            return
        self._latest = await self._checkpoints.list_latest_epochs(
            self._shards, shard_count=self._policy.execution_shard_count
        )
        self._set_aside = [
            execution for checkpoint in self._latest for execution in checkpoint.set_aside
        ]

    def note_positions(self, projected_states: Iterable[ProjectedState]) -> None:
        """Note how far executions are projected now."""
        for projected_state in projected_states:
            shard = ids.find_shard(
                projected_state.state.execution_id, self._policy.execution_shard_count
            )
            event_id = int(projected_state.state.last_event_id or 0)
            event = self._event_by_shard.get(shard)
            # Messages of other shards are projected as well; another process commits their epochs.
            if event is not None:
                self._event_by_shard[shard] = max(event, event_id)

    async def commit_epochs(self, set_aside: Collection[ExecutionId]) -> None:
        """Commit an epoch of each shard; one that another process has just committed stands."""
        if self._checkpoints is None:
            return
        committed = await self._checkpoints.commit_epochs(
            self._event_by_shard,
            shard_count=self._policy.execution_shard_count,
            set_aside=[*set_aside, *self._set_aside],
            horizon_s=self._policy.epoch_horizon_s,
            epochs_max=self._policy.epochs_max,
        )
        if committed:
            self._latest = committed
            self._committed_at = self._clock.monotonic_s()

    async def list_behind(
        self, *, but: Collection[ExecutionId], is_complete: bool = False
    ) -> list[ExecutionId]:
        """Return executions whose ledger is ahead, `but` some; all histories, or the recent ones.

        First come those that an earlier process had set aside.
        """
        policy = self._policy
        execution_ids = list(self._set_aside)
        for shard, shard_count in shard_ownership.list_ledger_shards(
            index=policy.index, count=policy.count, shard_count=policy.execution_shard_count
        ):
            execution_ids += await self._projections.list_executions_behind(
                shard=shard,
                shard_count=shard_count,
                older_than_s=policy.catch_up_after_s,
                # What is set aside stays behind for good and must not hide the others.
                executions_max=policy.catch_up_executions_max + len(but),
                since=None if is_complete else self.compared_since,
            )
        behind = [execution for execution in dict.fromkeys(execution_ids) if execution not in but]
        return behind[: policy.catch_up_executions_max]

    def forget_tried(self, executions: Iterable[ExecutionId]) -> None:
        """Note that these need not be tried again for what an earlier process had set aside."""
        tried_executions = set(executions)
        self._set_aside = [
            execution_id for execution_id in self._set_aside if execution_id not in tried_executions
        ]

    def show_epoch_age(self) -> None:
        """Show how old the latest epochs are."""
        if self._latest:
            age_s = self._clock.monotonic_s() - self._committed_at
            instruments.set_gauge(names.CHECKPOINT_AGE, age_s)

    def view_epochs(self) -> dict[str, Any]:
        """Return the latest epoch of each shard as plain values."""
        return {
            "epochs": {checkpoint.shard: checkpoint.epoch for checkpoint in self._latest},
            "through_at": self.compared_since,
        }
