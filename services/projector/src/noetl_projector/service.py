"""Fold events into projections: each version once and in order, with its position, then settle."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_chassis.observability import instruments, names, tracing
from noetl_chassis.observability.tracing import SpanKind
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope, EventBatch
from noetl_projector.domain import read_models, shard_ownership, version_order
from noetl_projector.domain.policy import ProjectorPolicy
from noetl_projector.domain.state_cache import ProjectedState, StateCache
from noetl_projector.domain.version_order import VersionGap
from noetl_projector.projection.epochs import ShardEpochs
from noetl_projector.projection.event_intake import Arrival, EventIntake, FetchedBatch
from noetl_projector.projection.histories import (
    HistoryLoader,
    LedgerGuard,
    LedgerWentBack,
    PoisonedHistory,
    PositionMoved,
    fold_into_state,
)
from noetl_projector.projection.metrics import ProjectionMetrics
from noetl_projector.projection.stores import ProjectorStores

POISONED_MAX = 10_000
# Executions set aside that a summary names.
SHOWN_MAX = 20
# Snapshots are commits, one an execution; these share the time that a disk takes for one.
_SNAPSHOTS_TOGETHER = 4
# Before other turns are let in: what lies behind a full fetch is taken at once.
_FETCHES_A_TURN = 8

log = structlog.get_logger(__name__)


class Projector:
    """Owns the projection of its shards; a second one for the same shards does no harm."""

    def __init__(self, *, stores: ProjectorStores, clock: Clock, policy: ProjectorPolicy) -> None:
        self._stores = stores
        self._clock = clock
        self._policy = policy
        self._histories = HistoryLoader(
            ledger=stores.ledger,
            snapshots=stores.snapshots,
            past=stores.past,
            page_events=policy.gap_page_events,
            snapshot_floor=policy.snapshot_at_end_versions,
        )
        self._states = StateCache(states_max=policy.states_max, bytes_max=policy.states_bytes_max)
        self._poisoned: dict[ExecutionId, None] = {}
        self._paced_until = 0.0
        self.counting = ProjectionMetrics(policy)
        self._arriving = EventIntake(stores, policy, self.counting)
        self._epochs = ShardEpochs(
            projections=stores.projections,
            checkpoints=stores.checkpoints,
            policy=policy,
            clock=clock,
        )
        self.guard = LedgerGuard(projections=stores.projections, rebuilds=stores.rebuilds)
        # Both turns fold into the same states.
        self._turn = asyncio.Lock()

    async def project_batches(self) -> int:
        """Project what a fetch brings in one transaction, settle it; return how many messages.

        What lies behind a full fetch is read while that is written, a few times over.
        """
        await asyncio.sleep(self._paced_until - self._clock.monotonic_s())
        batch = await self._arriving.take_batch(wait_s=self._policy.fetch_wait_s)
        if not batch.messages:
            return 0
        self._paced_until = self._clock.monotonic_s() + self._policy.pace_s
        messages = 0
        async with self._turn:
            for fetches_left in reversed(range(_FETCHES_A_TURN)):
                messages += batch.messages
                batch = await self._project_and_take(batch, is_last=not fetches_left)
                if not batch.messages:
                    break
        return messages

    async def begin_projection(self) -> None:
        """Compare all positions with the ledger, and go on from the latest epochs."""
        await self.guard.check_positions()
        await self._epochs.load_latest()

    async def catch_up(self, *, is_complete: bool = False) -> int:
        """Project from the ledger what the bus did not bring in time; return how many versions.

        What the latest epoch vouches for is looked at only when `is_complete`.
        """
        async with self._turn:
            behind = await self._epochs.list_behind(but=self._poisoned, is_complete=is_complete)
            instruments.set_gauge(names.PROJECTOR_BEHIND, len(behind))
            total = 0
            for execution_id in behind:
                total += await self._catch_up_execution(execution_id)
            self._epochs.forget_tried(behind)
            return total

    async def commit_epoch(self) -> None:
        """Say how far each shard is projected beyond doubt."""
        await self._epochs.commit_epochs(self._poisoned)

    async def compare_all(self) -> None:
        """Look at all positions and histories, as if there were no epochs."""
        await self.guard.check_positions()
        await self.catch_up(is_complete=True)

    def summarize_state(self) -> dict[str, Any]:
        """Say which shards these are, and what was met so far."""
        policy = self._policy
        return {
            "index": policy.index,
            "count": policy.count,
            "shards": shard_ownership.list_owned_shards(
                index=policy.index, count=policy.count, shard_count=policy.execution_shard_count
            ),
            "states": len(self._states),
            "state_bytes": self._states.bytes,
            "set_aside": list(self._poisoned)[:SHOWN_MAX],
            **self._epochs.view_epochs(),
            **self.counting.tally.view_counts(),
        }

    async def measure_lag(self) -> None:
        """Show how far the projection is behind the bus."""
        undelivered, unsettled = await self._stores.consumer.count_pending()
        self.counting.show_lag(undelivered + unsettled, now=self._clock.now())
        self._epochs.show_epoch_age()

    async def _project_and_take(self, batch: FetchedBatch, *, is_last: bool) -> FetchedBatch:
        """Project a fetched batch, or nak it; return the batch that was fetched meanwhile."""
        try:
            failure, next_batch = await asyncio.gather(
                self._project_in_span(batch),
                self._arriving.take_next_batch(batch, is_wanted=not is_last),
                return_exceptions=True,
            )
        finally:
            await self._arriving.return_unsettled(batch)
        if isinstance(next_batch, BaseException):
            raise next_batch if failure is None else failure
        if failure is not None:
            await self._arriving.return_unsettled(next_batch)
            raise failure
        return next_batch

    async def _project_in_span(self, arrived: FetchedBatch) -> None:
        with tracing.start_recorded_span(
            names.SPAN_PROJECT,
            kind=SpanKind.CONSUMER,
            links=(delivery.traceparent for delivery in arrived.open),
            attributes={
                names.ATTR_SYSTEM: names.SYSTEM_NATS,
                names.ATTR_OPERATION: names.OPERATION_PROCESS,
                names.ATTR_BATCH: arrived.messages,
            },
        ):
            await self._project_batch(arrived)

    async def _project_batch(self, arrived: FetchedBatch) -> None:
        inbox = arrived.inbox
        try:
            moving = await self._advance_all(arrived)
            before = self.counting.tally.events
            left_out = set(await self._apply_states(moving.values()))
            self.counting.count_batch(
                messages=sum(map(len, inbox.values())),
                executions=len(inbox),
                events=self.counting.tally.events - before,
                stale=len(left_out),
            )
        except BaseException:
            # States that ran ahead of a transaction that may have failed prove nothing.
            self._forget_states(inbox)
            raise
        self._forget_states(left_out)
        self._states.enforce_bounds(moving)
        await self._keep_due_snapshots(
            projected_state for key, projected_state in moving.items() if key not in left_out
        )
        for execution_id, arrivals in inbox.items():
            if execution_id in left_out:
                self.counting.count_messages(len(arrivals), "moved")
                continue
            for delivery, _ in arrivals:
                await arrived.ack_delivery(delivery)
            outcome = "set_aside" if execution_id in self._poisoned else "projected"
            self.counting.count_messages(len(arrivals), outcome)

    async def _advance_all(self, arrived: FetchedBatch) -> dict[ExecutionId, ProjectedState]:
        inbox = arrived.inbox
        unknown = [key for key in inbox if self._states.find_state(key) is None]
        positions = await self._stores.projections.list_positions(unknown) if unknown else {}
        moving: dict[ExecutionId, ProjectedState] = {}
        for execution_id, arrivals in list(inbox.items()):
            if execution_id in self._poisoned:
                continue
            try:
                projected_state = await self._hold_state(execution_id, positions, arrivals[0].batch)
                await self._advance_state(projected_state, [arrival.batch for arrival in arrivals])
            except PoisonedHistory as failure:
                if self._is_repeated_batch(positions.get(execution_id, 0), arrivals):
                    continue
                self._set_aside_execution(execution_id, failure)
                # One letter tells of it; the ledger has the rest.
                first, *inbox[execution_id] = arrivals
                await self._arriving.bury_delivery(
                    first.delivery, arrived, str(failure), "poisoned"
                )
            except PositionMoved:
                self._forget_states([execution_id])
                self.counting.count_messages(len(inbox.pop(execution_id)), "moved")
            else:
                if projected_state.state.version > projected_state.position:
                    moving[execution_id] = projected_state
        return moving

    def _is_repeated_batch(self, position: int, arrivals: list[Arrival]) -> bool:
        """Tell whether nothing is new: a history that nobody can read any more is not missed."""
        batches = [arrival.batch for arrival in arrivals]
        if position < max(batch.last_version for batch in batches):
            return False
        self.counting.count_duplicates(version_order.arrange_batches(position, batches).duplicates)
        return True

    async def _hold_state(
        self, execution_id: ExecutionId, positions: dict[str, int], like: EventBatch
    ) -> ProjectedState:
        projected_state = self._states.find_state(execution_id)
        if projected_state is None:
            projected_state = await self._load_state(execution_id, positions, like)
            self._states.put_state(projected_state)
        return projected_state

    async def _load_state(
        self, execution_id: ExecutionId, positions: dict[str, int], like: EventBatch | Envelope
    ) -> ProjectedState:
        try:
            projected_state = await self._histories.load_state(
                execution_id,
                position=positions.get(execution_id, 0),
                tenant_id=like.tenant_id,
                organization_id=like.organization_id,
            )
            await self.guard.check_last_event(projected_state)
        except LedgerWentBack as failure:
            raise self.guard.record_failure(failure) from None
        return projected_state

    async def _advance_state(
        self, projected_state: ProjectedState, batches: Sequence[EventBatch]
    ) -> None:
        order = version_order.arrange_batches(projected_state.state.version, batches)
        self.counting.count_duplicates(order.duplicates)
        for step in order.steps:
            if isinstance(step, VersionGap):
                self.counting.count_gap()
                await self._close_gap(projected_state, until=step.until)
            else:
                fold_into_state(projected_state.state, step.envelopes)

    async def _close_gap(self, projected_state: ProjectedState, *, until: int) -> None:
        """Project from the ledger up to a version, a page at a time."""
        while projected_state.state.version < until:
            if not await self._project_page(projected_state, until=until):
                raise PoisonedHistory(
                    projected_state.state.execution_id,
                    f"a message says that version {until} exists, the ledger ends at "
                    f"{projected_state.state.version}",
                )

    async def _project_page(self, projected_state: ProjectedState, *, until: int | None) -> int:
        page = await self._histories.read_page(
            projected_state.state.execution_id, after=projected_state.state.version, until=until
        )
        if not page:
            return 0
        fold_into_state(projected_state.state, page)
        self.counting.count_gap_events(len(page))
        if await self._apply_states([projected_state]):
            raise PositionMoved(
                f"execution {projected_state.state.execution_id} was projected by another projector"
            )
        return len(page)

    async def _apply_states(self, projected_states: Iterable[ProjectedState]) -> list[ExecutionId]:
        """Write what the states have touched, in one transaction; return who was left out."""
        rows, results = read_models.build_empty_rows(), list[dict[str, Any]]()
        positions: dict[str, tuple[int, int]] = {}
        states_by_id = {
            projected_state.state.execution_id: projected_state
            for projected_state in projected_states
        }
        for execution_id, projected_state in states_by_id.items():
            positions[execution_id] = (projected_state.position, projected_state.state.version)
            read_models.add_changes(rows, results, projected_state.state)
        if not positions:
            return []
        await pass_failpoint(Failpoint.PROJECTOR_APPLY_BEFORE)
        left_out = await self._stores.projections.apply_rows(
            shard=self._policy.index, rows=rows, positions=positions, results=results
        )
        await pass_failpoint(Failpoint.PROJECTOR_APPLY_AFTER)
        for name in left_out:
            del states_by_id[ExecutionId(name)]
        self.counting.count_written(
            states_by_id.values(), stale=len(left_out), now=self._clock.now()
        )
        for projected_state in states_by_id.values():
            projected_state.position = projected_state.state.version
        self._epochs.note_positions(states_by_id.values())
        return [ExecutionId(name) for name in left_out]

    async def _keep_due_snapshots(self, projected: Iterable[ProjectedState]) -> None:
        policy = self._policy
        due = [
            projected_state
            for projected_state in projected
            if read_models.is_snapshot_due(
                projected_state.state,
                remembered=projected_state.remembered,
                every=policy.snapshot_every_versions,
                at_end_after=policy.snapshot_at_end_versions,
            )
        ]
        for at in range(0, len(due), _SNAPSHOTS_TOGETHER):
            due_states = due[at : at + _SNAPSHOTS_TOGETHER]
            await asyncio.gather(
                *(self._keep_snapshot(projected_state) for projected_state in due_states)
            )

    async def _keep_snapshot(self, projected_state: ProjectedState) -> None:
        try:
            await self._histories.keep_snapshot(projected_state)
            self.counting.tally.snapshots += 1
        except Retryable as failure:
            log.warning(
                "snapshot not stored",
                execution_id=projected_state.state.execution_id,
                reason=str(failure),
            )

    async def _catch_up_execution(self, execution_id: ExecutionId) -> int:
        try:
            return await self._project_pages(execution_id)
        except PoisonedHistory as failure:
            self._set_aside_execution(execution_id, failure)
        except PositionMoved:
            self._forget_states([execution_id])
        except BaseException:
            self._forget_states([execution_id])
            raise
        return 0

    async def _project_pages(self, execution_id: ExecutionId) -> int:
        first = await self._histories.read_page(execution_id, after=0, until=1)
        if not first:
            return 0
        positions = await self._stores.projections.list_positions([execution_id])
        self._forget_states([execution_id])
        projected_state = await self._load_state(execution_id, positions, first[0])
        total = 0
        for _ in range(self._policy.catch_up_pages_max):
            page = await self._project_page(projected_state, until=None)
            if not page:
                break
            total += page
        self._states.put_state(projected_state)
        self._states.enforce_bounds([execution_id])
        await self._keep_due_snapshots([projected_state])
        return total

    def _set_aside_execution(self, execution_id: ExecutionId, failure: PoisonedHistory) -> None:
        """Set an execution aside until this process starts again, and say so."""
        self._forget_states([execution_id])
        self._poisoned[execution_id] = None
        while len(self._poisoned) > POISONED_MAX:
            del self._poisoned[next(iter(self._poisoned))]
        self.counting.show_poisoned(len(self._poisoned))
        log.error("execution set aside", execution_id=execution_id, reason=str(failure))

    def _forget_states(self, execution_ids: Iterable[ExecutionId]) -> None:
        for execution_id in execution_ids:
            self._states.drop_state(execution_id)
