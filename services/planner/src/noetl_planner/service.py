"""Fetch facts, decide, append, publish, ack: one transaction per turn and shard."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from noetl_chassis import instruments, names
from noetl_chassis.failpoints import Point, reach
from noetl_contracts import facts
from noetl_contracts.errors import ErrorObject, NoetlError, Permanent, ResultMalformed, Retryable
from noetl_contracts.ids import CatalogId
from noetl_contracts.ledger import Append, Request, ShardFence, StreamAppend
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_messaging import topology
from noetl_messaging.ports import Consumer, Delivery
from noetl_planner.domain import growth
from noetl_planner.shell import accounts, admitting, judging, refusing, telling
from noetl_planner.shell.admitting import Refused, Work
from noetl_planner.shell.decision_spans import decision_span
from noetl_planner.shell.gathering import Mailbox
from noetl_planner.shell.judging import Decided, Judging
from noetl_planner.shell.sharing import Shared
from noetl_planner.shell.states import ForeignExecution, PlaybookMissing, States
from noetl_planner.shell.wakeups import Wakeups
from noetl_storage.errors import DuplicateKey, RowRefused, VersionConflict

log = structlog.get_logger(__name__)

_REASON_CHARACTERS_MAX = 1000


class DecisionFailed(Permanent):
    """The planner cannot decide on a fact because of a defect, which its log tells of."""


class ShardPlanner:
    """Decides for the executions of one shard while it owns it."""

    def __init__(
        self, *, fence: ShardFence, consumer: Consumer, states: States, shared: Shared
    ) -> None:
        self._fence = fence
        self._consumer = consumer
        self._states = states
        self._shared = shared
        self._judging = Judging(states, shared)
        self._wakeups = Wakeups()
        self._gathered = Mailbox(consumer.wake)

    async def turn(self) -> int:
        """Take on one batch of facts; return how many executions it moved."""
        now = self._shared.clock.now()
        own = self._wakeups.take_due(now) + self._gathered.take()
        bounds = self._shared.bounds
        wait_s = 0.01 if own else self._wakeups.next_in_s(now, at_most_s=bounds.fetch_wait_s)
        deliveries = await self._consumer.fetch(
            messages_max=bounds.messages_max, wait_s=max(wait_s, 0.01)
        )
        work = await self._sorted(own, deliveries)
        if work:
            await reach(Point.PLANNER_FETCHED)
        moved = 0
        while work:
            found = [await self._decide(each) for each in work]
            decided = [one for one in found if one is not None]
            moved += len(decided)
            work = await self._commit(await self._store_each(decided))
        return moved

    async def begin(self, request: Request, *, latest: CatalogId | None) -> bool:
        """Decide on a request that nobody has kept, and keep it with what follows from it.

        False when it is to be sent instead, like what has to be looked at again by a turn soon.
        """
        decided = await self._decide(admitting.brought(request))
        if decided is None or not decided.decision.envelopes or self._is_pressing(decided):
            return False
        try:
            await self._store_payloads(decided)
            await self._append([decided], begun=request, latest=latest)
        except NoetlError as failure:
            log.info("request sent instead", execution_id=request.execution_id, reason=str(failure))
            return False
        return True

    def _is_pressing(self, decided: Decided) -> bool:
        """Tell whether a turn that waits for messages may come too late for what was decided."""
        until = self._shared.clock.now() + timedelta(seconds=self._shared.bounds.fetch_wait_s)
        wake_at = decided.decision.wake_at
        return bool(decided.decision.to_collect) or (wake_at is not None and wake_at < until)

    async def close(self) -> None:
        """Leave the shard's messages to its next owner."""
        self._shared.desk.vacate(self._fence.shard, self)
        await self._consumer.close()

    async def _sorted(
        self, own: Iterable[facts.FactBatch], deliveries: Iterable[Delivery]
    ) -> list[Work]:
        """Gather facts by execution, in order; bury what does not belong here."""
        work, refused = admitting.sort(
            own,
            deliveries,
            shard=self._fence.shard,
            shard_count=self._shared.bounds.shard_count,
        )
        await self._bury_refused(refused)
        return work

    async def _decide(self, work: Work, refused: ErrorObject | None = None) -> Decided | None:
        """Decide for one execution; what cannot be decided is put aside, the others go on."""
        with decision_span(work, shard=self._fence.shard):
            return await self._decide_within(work, refused)

    async def _decide_within(self, work: Work, refused: ErrorObject | None) -> Decided | None:
        execution_id, problem = work.batches[0].execution_id, None
        try:
            return await self._judging.judge(work, refused)
        except PlaybookMissing as failure:
            told = refusing.answer(work.batches, str(failure))
            if told:
                return self._judging.unbegun(work, told)
            if not refusing.is_early(work.batches, work.all_deliveries()):
                await self._bury(work.all_deliveries(), failure)
                return None
        except (ForeignExecution, ResultMalformed) as failure:
            await self._bury(work.all_deliveries(), failure)
            return None
        except Exception as failure:
            # A defect in one execution's decision must not stop the others of its shard.
            log.exception("decision failed", execution_id=execution_id, error=str(failure))
            problem = failure
        self._states.drop(execution_id)
        await self._put_off(work, problem)
        return None

    async def _put_off(self, work: Work, failure: Exception | None) -> None:
        """Take facts again later; bury deliveries that a defect has failed often enough."""
        is_defect = failure is not None and not isinstance(failure, NoetlError)
        if isinstance(failure, Retryable):
            self._put_back_own(work)
        for place, delivery in enumerate(work.all_deliveries()):
            if is_defect and delivery.delivered >= admitting.DEFECTS_MAX:
                # What it says may hold data: the log has it.
                await self._bury([delivery], DecisionFailed(type(failure).__name__))
            else:
                await delivery.nak(admitting.delay_s(delivery, place))

    async def _commit(self, decided: list[Decided]) -> list[Work]:
        """Append everything in one transaction; when that is refused, one by one.

        Return what is left to decide on of what was committed.
        """
        if not decided:
            return []
        try:
            await self._append(decided)
        except (VersionConflict, DuplicateKey, RowRefused) as failure:
            if len(decided) > 1:
                return [left for one in decided for left in await self._commit([one])]
            if isinstance(failure, RowRefused):
                await self._refuse(decided[0], failure)
                return []
            instruments.count(names.VERSION_CONFLICTS)
            log.warning("append refused", reason=str(failure))
            await self._give_back(decided)
            return []
        except NoetlError:
            await self._give_back(decided)
            raise
        return [left for one in decided if (left := admitting.left(one.work)) is not None]

    async def _refuse(self, one: Decided, failure: RowRefused) -> None:
        """End an execution whose events the ledger cannot hold: asking again would not help."""
        log.error("events refused", execution_id=one.state.execution_id, reason=str(failure))
        error = growth.too_large("(ledger)", f"the ledger refuses what was decided: {failure}")
        if one.expected_version == 0:
            await self._give_back([one])
            return
        again = await self._decide(judging.told_nothing(one.work), error)
        if again is not None:
            await self._store_payloads(again)
            await self._append([again])

    async def _append(
        self,
        decided: list[Decided],
        *,
        begun: Request | None = None,
        latest: CatalogId | None = None,
    ) -> None:
        shared = self._shared
        messages = [message for one in decided for message in one.messages]
        started = shared.clock.monotonic()
        await reach(Point.PLANNER_APPEND_BEFORE)
        appended = await shared.ledger.append(
            Append(
                fence=self._fence,
                streams=[_stream(one) for one in decided if one.decision.envelopes],
                messages=messages,
                settled_requests=[
                    each for one in decided for each in admitting.settled(one.work.batches)
                ]
                if begun is None
                else [],
                begun=begun,
                latest=latest,
                publish_lease_s=shared.bounds.publish_lease_s,
            )
        )
        instruments.record(names.APPEND_DURATION, shared.clock.monotonic() - started)
        await reach(Point.PLANNER_APPEND_AFTER)
        # Who waits for an end is answered before anything is published.
        for one in decided:
            telling.tell_end(shared.board, one.state, one.decision, appended.ingest_time)
        await shared.publishing.offer(appended.outbox_ids, messages)
        for one in decided:
            await self._conclude(one, appended.ingest_time)

    async def _store_each(self, decided: list[Decided]) -> list[Decided]:
        """Store the payloads of each; return those whose payloads are stored.

        The others are decided on again later, so that a store which refuses writes holds up
        nothing that needs none.
        """
        stored: list[Decided] = []
        for one in decided:
            try:
                await self._store_payloads(one)
            except Retryable as failure:
                log.warning(
                    "execution waits for the payload store",
                    execution_id=one.state.execution_id,
                    reason=str(failure),
                )
                await self._give_back([one])
            else:
                stored.append(one)
        return stored

    async def _store_payloads(self, one: Decided) -> None:
        """Persist before emit: a reference in an event always resolves."""
        for data in one.decision.payloads.values():
            await self._shared.payloads.put(
                data,
                tenant_id=one.state.tenant_id,
                organization_id=one.state.organization_id,
                media_type=JSON_MEDIA_TYPE,
            )

    async def _conclude(self, one: Decided, ingest_time: datetime) -> None:
        """After the commit: keep the state, settle deliveries, arrange what comes next."""
        if self._states.put_back(one.state):
            self._wakeups.set(one.state, one.decision.wake_at)
        await reach(Point.PLANNER_ACK_BEFORE)
        if not one.work.rest:
            for delivery in one.work.deliveries:
                await delivery.ack()
            await self._bury_refused(one.work.in_part)
        await reach(Point.PLANNER_ACK_AFTER)
        for run_id in one.decision.to_collect:
            self._shared.gathering.ask(one.state, run_id, self._gathered)
        told = self._shared
        await telling.tell(
            told.hints, told.crowd, told.board, one.state, one.decision, ingest_time=ingest_time
        )
        accounts.decided(one.work.batches, one.decision.envelopes, one.state)

    async def _give_back(self, decided: Iterable[Decided]) -> None:
        for one in decided:
            self._states.drop(one.state.execution_id)
            self._put_back_own(one.work)
            for delivery in one.work.all_deliveries():
                await delivery.nak(admitting.delay_s(delivery))

    def _put_back_own(self, work: Work) -> None:
        """Keep what no delivery brings again, as a timer or the gathered results of a loop."""
        at = self._shared.clock.now() + timedelta(seconds=admitting.OWN_DELAY_S)
        self._wakeups.put_back(work.own, at)

    async def _bury_refused(self, refused: Iterable[Refused]) -> None:
        for one in refused:
            await self._bury([one.delivery], one.reason)

    async def _bury(self, deliveries: Iterable[Delivery], failure: Exception) -> None:
        for delivery in deliveries:
            log.error("fact buried", subject=delivery.subject, reason=str(failure))
            await self._shared.dead_letters.bury(
                delivery,
                stream=topology.INGEST,
                consumer=topology.planner_consumer(self._fence.shard),
                reason=f"{type(failure).__name__}: {failure}"[:_REASON_CHARACTERS_MAX],
            )


def _stream(one: Decided) -> StreamAppend:
    return StreamAppend(
        execution_id=one.state.execution_id,
        tenant_id=one.state.tenant_id,
        organization_id=one.state.organization_id,
        expected_version=one.expected_version,
        envelopes=one.decision.envelopes,
    )
