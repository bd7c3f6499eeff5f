"""Fold events into projections: each version once and in order, with its position, then settle."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import structlog

from noetl_chassis import instruments, names
from noetl_chassis.clock import Clock
from noetl_chassis.failpoints import Point, reach
from noetl_contracts import stored
from noetl_contracts.envelope import Envelope, EventBatch
from noetl_contracts.errors import MalformedMessage, Retryable, UnknownEventType
from noetl_contracts.ids import ExecutionId
from noetl_messaging import topology
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.ports import Delivery
from noetl_projector.domain import ordering, read_models, sharding
from noetl_projector.domain.cache import Held, StateCache
from noetl_projector.domain.ordering import Gap
from noetl_projector.domain.policy import Policy
from noetl_projector.shell.counting import Counting
from noetl_projector.shell.epochs import Epochs
from noetl_projector.shell.guarding import LedgerGuard
from noetl_projector.shell.histories import Histories, LedgerWentBack, Moved, Poisoned, fold_into
from noetl_projector.shell.stores import Stores

POISONED_MAX = 10_000
# Executions set aside that a summary names.
SHOWN_MAX = 20

log = structlog.get_logger(__name__)


class Arrival(NamedTuple):
    """A delivery and the batch that was read from it."""

    delivery: Delivery
    batch: EventBatch


class Projector:
    """Owns the projection of its shards; a second one for the same shards does no harm."""

    def __init__(self, *, stores: Stores, clock: Clock, policy: Policy) -> None:
        self._stores = stores
        self._clock = clock
        self._policy = policy
        self._histories = Histories(
            ledger=stores.ledger,
            snapshots=stores.snapshots,
            past=stores.past,
            page_events=policy.gap_page_events,
            snapshot_floor=policy.snapshot_at_end_versions,
        )
        self._states = StateCache(states_max=policy.states_max, bytes_max=policy.states_bytes_max)
        self._poisoned: dict[ExecutionId, None] = {}
        self._paced_until = 0.0
        self.counting = Counting(policy)
        self._epochs = Epochs(
            projections=stores.projections,
            checkpoints=stores.checkpoints,
            policy=policy,
            clock=clock,
        )
        self.guard = LedgerGuard(projections=stores.projections, rebuilds=stores.rebuilds)
        # Both turns fold into the same states.
        self._turn = asyncio.Lock()

    async def project(self) -> int:
        """Project what one fetch brings in one transaction, settle it; return how many messages."""
        policy = self._policy
        await asyncio.sleep(self._paced_until - self._clock.monotonic())
        deliveries = await self._stores.consumer.fetch(
            messages_max=policy.batch_messages_max, wait_s=policy.fetch_wait_s
        )
        if not deliveries:
            return 0
        self._paced_until = self._clock.monotonic() + policy.pace_s
        async with self._turn:
            open_deliveries = dict.fromkeys(deliveries)
            try:
                await reach(Point.PROJECTOR_FETCHED)
                await self._project(open_deliveries)
            finally:
                await self._give_back(open_deliveries)
        return len(deliveries)

    async def begin(self) -> None:
        """Compare all positions with the ledger, and go on from the latest epochs."""
        await self.guard.check_all()
        await self._epochs.begin()

    async def catch_up(self, *, is_complete: bool = False) -> int:
        """Project from the ledger what the bus did not bring in time; return how many versions.

        What the latest epoch vouches for is looked at only when `is_complete`.
        """
        async with self._turn:
            behind = await self._epochs.list_behind(but=self._poisoned, is_complete=is_complete)
            instruments.show(names.PROJECTOR_BEHIND, len(behind))
            total = 0
            for execution_id in behind:
                total += await self._catch_up(execution_id)
            self._epochs.tried(behind)
            return total

    async def commit_epoch(self) -> None:
        """Say how far each shard is projected beyond doubt."""
        await self._epochs.commit(self._poisoned)

    async def compare_all(self) -> None:
        """Look at all positions and histories, as if there were no epochs."""
        await self.guard.check_all()
        await self.catch_up(is_complete=True)

    def summarize(self) -> dict[str, Any]:
        """Say which shards these are, and what was met so far."""
        policy = self._policy
        return {
            "index": policy.index,
            "count": policy.count,
            "shards": sharding.owned_shards(
                index=policy.index, count=policy.count, shard_count=policy.execution_shard_count
            ),
            "states": len(self._states),
            "state_bytes": self._states.bytes,
            "set_aside": list(self._poisoned)[:SHOWN_MAX],
            **self._epochs.show(),
            **self.counting.tally.show(),
        }

    async def measure(self) -> None:
        """Show how far the projection is behind the bus."""
        undelivered, unsettled = await self._stores.consumer.pending()
        self.counting.lag(undelivered + unsettled, now=self._clock.now())
        self._epochs.measure()

    async def _project(self, open_deliveries: dict[Delivery, None]) -> None:
        inbox = await self._read(open_deliveries)
        try:
            moving = await self._advance_all(inbox, open_deliveries)
            before = self.counting.tally.events
            left_out = set(await self._apply(moving.values()))
            self.counting.batch(
                messages=sum(map(len, inbox.values())),
                executions=len(inbox),
                events=self.counting.tally.events - before,
                stale=len(left_out),
            )
        except BaseException:
            # States that ran ahead of a transaction that may have failed prove nothing.
            self._forget(inbox)
            raise
        self._forget(left_out)
        self._states.settle(moving)
        await self._remember(held for key, held in moving.items() if key not in left_out)
        for execution_id, arrivals in inbox.items():
            if execution_id in left_out:
                _count(len(arrivals), "moved")
                continue
            for delivery, _ in arrivals:
                await reach(Point.PROJECTOR_ACK_BEFORE)
                await delivery.ack()
                del open_deliveries[delivery]
                await reach(Point.PROJECTOR_ACK_AFTER)
            outcome = "set_aside" if execution_id in self._poisoned else "projected"
            _count(len(arrivals), outcome)

    async def _read(
        self, open_deliveries: dict[Delivery, None]
    ) -> dict[ExecutionId, list[Arrival]]:
        inbox: dict[ExecutionId, list[Arrival]] = {}
        for delivery in list(open_deliveries):
            try:
                batch = _decode(delivery)
            except (MalformedMessage, UnknownEventType) as failure:
                self.counting.tally.undecodable += 1
                await self._bury(delivery, str(failure), "undecodable")
                del open_deliveries[delivery]
                continue
            self.counting.place(delivery, batch)
            inbox.setdefault(batch.execution_id, []).append(Arrival(delivery, batch))
        return inbox

    async def _advance_all(
        self, inbox: dict[ExecutionId, list[Arrival]], open_deliveries: dict[Delivery, None]
    ) -> dict[ExecutionId, Held]:
        unknown = [key for key in inbox if self._states.find(key) is None]
        positions = await self._stores.projections.list_positions(unknown) if unknown else {}
        moving: dict[ExecutionId, Held] = {}
        for execution_id, arrivals in list(inbox.items()):
            if execution_id in self._poisoned:
                continue
            try:
                held = await self._hold(execution_id, positions, arrivals[0].batch)
                await self._advance(held, [arrival.batch for arrival in arrivals])
            except Poisoned as failure:
                if self._is_repeated(positions.get(execution_id, 0), arrivals):
                    continue
                self._poison(execution_id, failure)
                # One letter tells of it; the ledger has the rest.
                first, *inbox[execution_id] = arrivals
                await self._bury(first.delivery, str(failure), "poisoned")
                del open_deliveries[first.delivery]
            except Moved:
                self._forget([execution_id])
                _count(len(inbox.pop(execution_id)), "moved")
            else:
                if held.state.version > held.position:
                    moving[execution_id] = held
        return moving

    def _is_repeated(self, position: int, arrivals: list[Arrival]) -> bool:
        """Tell whether nothing is new: a history that nobody can read any more is not missed."""
        batches = [arrival.batch for arrival in arrivals]
        if position < max(batch.last_version for batch in batches):
            return False
        self.counting.duplicates(ordering.arrange(position, batches).duplicates)
        return True

    async def _hold(
        self, execution_id: ExecutionId, positions: dict[str, int], like: EventBatch
    ) -> Held:
        held = self._states.find(execution_id)
        if held is None:
            held = await self._load(execution_id, positions, like)
            self._states.put(held)
        return held

    async def _load(
        self, execution_id: ExecutionId, positions: dict[str, int], like: EventBatch | Envelope
    ) -> Held:
        try:
            held = await self._histories.load(
                execution_id,
                position=positions.get(execution_id, 0),
                tenant_id=like.tenant_id,
                organization_id=like.organization_id,
            )
            await self.guard.check_same(held)
        except LedgerWentBack as failure:
            raise self.guard.stopped_by(failure) from None
        return held

    async def _advance(self, held: Held, batches: Sequence[EventBatch]) -> None:
        order = ordering.arrange(held.state.version, batches)
        self.counting.duplicates(order.duplicates)
        for step in order.steps:
            if isinstance(step, Gap):
                self.counting.gap()
                await self._close_gap(held, until=step.until)
            else:
                fold_into(held.state, step.envelopes)

    async def _close_gap(self, held: Held, *, until: int) -> None:
        """Project from the ledger up to a version, a page at a time."""
        while held.state.version < until:
            if not await self._take_page(held, until=until):
                raise Poisoned(
                    held.state.execution_id,
                    f"a message says that version {until} exists, the ledger ends at "
                    f"{held.state.version}",
                )

    async def _take_page(self, held: Held, *, until: int | None) -> int:
        page = await self._histories.read(
            held.state.execution_id, after=held.state.version, until=until
        )
        if not page:
            return 0
        fold_into(held.state, page)
        self.counting.gap_events(len(page))
        if await self._apply([held]):
            raise Moved(f"execution {held.state.execution_id} was projected by another projector")
        return len(page)

    async def _apply(self, moving: Iterable[Held]) -> list[ExecutionId]:
        """Write what the states have touched, in one transaction; return who was left out."""
        rows, results = read_models.no_rows(), list[dict[str, Any]]()
        positions: dict[str, tuple[int, int]] = {}
        held_by_id = {held.state.execution_id: held for held in moving}
        for execution_id, held in held_by_id.items():
            positions[execution_id] = (held.position, held.state.version)
            read_models.add_changes(rows, results, held.state)
        if not positions:
            return []
        await reach(Point.PROJECTOR_APPLY_BEFORE)
        left_out = await self._stores.projections.apply(
            shard=self._policy.index, rows=rows, positions=positions, results=results
        )
        await reach(Point.PROJECTOR_APPLY_AFTER)
        for stranger in left_out:
            del held_by_id[ExecutionId(stranger)]
        self.counting.written(held_by_id.values(), stale=len(left_out), now=self._clock.now())
        for held in held_by_id.values():
            held.position = held.state.version
        self._epochs.moved(held_by_id.values())
        return [ExecutionId(stranger) for stranger in left_out]

    async def _remember(self, projected: Iterable[Held]) -> None:
        for held in projected:
            if not read_models.is_snapshot_due(
                held.state,
                remembered=held.remembered,
                every=self._policy.snapshot_every_versions,
                at_end_after=self._policy.snapshot_at_end_versions,
            ):
                continue
            try:
                await self._histories.remember(held)
                self.counting.tally.snapshots += 1
            except Retryable as failure:
                log.warning(
                    "snapshot not kept", execution_id=held.state.execution_id, reason=str(failure)
                )

    async def _catch_up(self, execution_id: ExecutionId) -> int:
        try:
            return await self._take_pages(execution_id)
        except Poisoned as failure:
            self._poison(execution_id, failure)
        except Moved:
            self._forget([execution_id])
        except BaseException:
            self._forget([execution_id])
            raise
        return 0

    async def _take_pages(self, execution_id: ExecutionId) -> int:
        first = await self._histories.read(execution_id, after=0, until=1)
        if not first:
            return 0
        positions = await self._stores.projections.list_positions([execution_id])
        self._forget([execution_id])
        held = await self._load(execution_id, positions, first[0])
        total = 0
        for _ in range(self._policy.catch_up_pages_max):
            taken = await self._take_page(held, until=None)
            if not taken:
                break
            total += taken
        self._states.put(held)
        self._states.settle([execution_id])
        await self._remember([held])
        return total

    def _poison(self, execution_id: ExecutionId, failure: Poisoned) -> None:
        """Set an execution aside until this process starts again, and say so."""
        self._forget([execution_id])
        self._poisoned[execution_id] = None
        while len(self._poisoned) > POISONED_MAX:
            del self._poisoned[next(iter(self._poisoned))]
        self.counting.poisoned(len(self._poisoned))
        log.error("execution set aside", execution_id=execution_id, reason=str(failure))

    def _forget(self, execution_ids: Iterable[ExecutionId]) -> None:
        for execution_id in execution_ids:
            self._states.drop(execution_id)

    async def _bury(self, delivery: Delivery, reason: str, outcome: str) -> None:
        await self._stores.letters.bury(
            delivery,
            stream=topology.EVENTS,
            consumer=topology.projector_consumer(
                index=self._policy.index, count=self._policy.count
            ),
            reason=reason,
        )
        _count(1, outcome)
        log.error("message buried", subject=delivery.subject, reason=reason)

    async def _give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Let what is not settled come again; without a server it comes again by itself."""
        with suppress(MessagingUnavailable):
            for delivery in deliveries:
                await delivery.nak(self._policy.retry_delay_s)
                _count(1, "returned")


def _decode(delivery: Delivery) -> EventBatch:
    batch = stored.decode_batch(delivery.data)
    reason = ordering.disorder(batch)
    if reason is not None:
        raise MalformedMessage(reason)
    return batch


def _count(messages: int, outcome: str) -> None:
    instruments.count(names.PROJECTOR_MESSAGES, messages, labels={names.OUTCOME: outcome})
