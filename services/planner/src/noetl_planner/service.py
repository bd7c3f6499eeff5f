"""Fetch facts, decide, append, publish, ack: one transaction per turn and shard."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog

from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_chassis.observability import instruments, names
from noetl_contracts.errors import ErrorObject, NoetlError, Permanent, ResultMalformed, Retryable
from noetl_contracts.ids import CatalogId, TenantId
from noetl_contracts.ledger.records import (
    Append,
    OwnedStateChange,
    Request,
    ShardFence,
    StreamAppend,
)
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_contracts.requests import facts
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Consumer, Delivery
from noetl_planner.domain.decision import ctx_writes
from noetl_planner.facts import fact_intake, rejections
from noetl_planner.facts.fact_intake import ExecutionWork, RefusedDelivery
from noetl_planner.facts.report_checks import ReportRefused
from noetl_planner.facts.wakeups import Wakeups
from noetl_planner.loops.queue import ShardInbox
from noetl_planner.shards import decision_runner, decision_telemetry, notifications
from noetl_planner.shards.caches import ForeignExecution, PlaybookMissing, StateCache
from noetl_planner.shards.decision_runner import DecisionRunner, ExecutionDecision
from noetl_planner.shards.decision_telemetry import open_decision_span
from noetl_planner.shards.shard_context import ShardContext
from noetl_storage.ports.errors import DuplicateKey, RowRefused, VersionConflict

log = structlog.get_logger(__name__)

_REASON_CHARACTERS_MAX = 1000
# Where tenants have shares of their own: what one of them commits at once keeps others waiting.
_SHARED_TURN_MESSAGES_MAX = 64


class DecisionFailed(Permanent):
    """The planner cannot decide on a fact because of a defect, which its log tells of."""


class ShardPlanner:
    """Decides for the executions of one shard while it owns it.

    With a `share` for those of that tenant: its turns and the others' alternate, decision by
    decision, so that no queue of one holds up another.
    """

    def __init__(
        self,
        *,
        fence: ShardFence,
        consumer: Consumer,
        states: StateCache,
        shared: ShardContext,
        share: TenantId | None = None,
    ) -> None:
        self._fence = fence
        self._share = share
        self._consumer = consumer
        self._states = states
        self._shared = shared
        self._judging = DecisionRunner(states, shared)
        self._wakeups = Wakeups()
        self._gathered = ShardInbox(consumer.wake_fetch)

    async def run_turn(self) -> int:
        """Take on one batch of facts; return how many executions it moved."""
        now = self._shared.clock.now()
        own_batches = self._wakeups.take_due_facts(now) + self._gathered.take_results()
        bounds = self._shared.bounds
        messages_max = bounds.messages_max
        if self._shared.limits.tenants:
            messages_max = min(messages_max, _SHARED_TURN_MESSAGES_MAX)
        wait_s = (
            0.01
            if own_batches
            else self._wakeups.compute_next_wakeup_s(now, at_most_s=bounds.fetch_wait_s)
        )
        with self._keep_own_batches(own_batches):
            deliveries = await self._consumer.fetch_batch(
                messages_max=messages_max, wait_s=max(wait_s, 0.01)
            )
        if not own_batches and not deliveries:
            return 0
        async with self._shared.share_turns.take_turn(self._share):
            with self._keep_own_batches(own_batches):
                work = await self._sort_work(own_batches, deliveries)
            return await self._move_executions(work)

    async def _move_executions(self, work: list[ExecutionWork]) -> int:
        """Decide for each execution and commit it all; return how many were moved."""
        if work:
            await pass_failpoint(Failpoint.PLANNER_FETCHED)
        moved = 0
        while work:
            own_batches = [batch for one in work for batch in one.own_batches]
            with self._keep_own_batches(own_batches):
                decided = await self._decide_each(work)
                stored = await self._store_each(decided)
            moved += len(decided)
            work = await self._commit_decisions(stored)
        return moved

    async def _decide_each(self, work: Iterable[ExecutionWork]) -> list[ExecutionDecision]:
        """Decide for each execution; return the decisions that could be made."""
        decided = []
        for execution_work in work:
            execution_decision = await self._decide_work(execution_work)
            if execution_decision is not None:
                decided.append(execution_decision)
            if self._shared.limits.tenants:
                # A decision seldom waits for anything: without this the whole turn would run first.
                await asyncio.sleep(0)
        return decided

    async def start_execution(self, request: Request, *, latest: CatalogId | None) -> bool:
        """Commit a new request, its first events and their messages in one transaction.

        False when the request must go by message instead, for instance when its first decision
        needs another turn soon.
        """
        decided = await self._decide_work(fact_intake.decode_request(request))
        if decided is None or not decided.decision.envelopes or self._is_urgent(decided):
            return False
        try:
            await self._store_payloads(decided)
            await self._append_decisions([decided], start_request=request, latest=latest)
        except NoetlError as failure:
            log.info(
                "start request published instead of decided here",
                execution_id=request.execution_id,
                reason=str(failure),
            )
            return False
        return True

    def _is_urgent(self, decided: ExecutionDecision) -> bool:
        """Tell whether a turn that waits for messages may come too late for what was decided."""
        until = self._shared.clock.now() + timedelta(seconds=self._shared.bounds.fetch_wait_s)
        wake_at = decided.decision.wake_at
        return bool(decided.decision.to_collect) or (wake_at is not None and wake_at < until)

    async def close(self) -> None:
        """Leave the shard's messages to its next owner."""
        self._shared.local_starts.remove_starter(self._fence.shard, self, self._share)
        await self._consumer.close()

    async def _sort_work(
        self, fact_batches: Iterable[facts.FactBatch], deliveries: Iterable[Delivery]
    ) -> list[ExecutionWork]:
        """Gather facts by execution, in order; bury what does not belong here."""
        work, refused = fact_intake.sort_by_execution(
            fact_batches,
            deliveries,
            shard=self._fence.shard,
            shard_count=self._shared.bounds.shard_count,
            served=self._shared.served_tenants,
        )
        await self._bury_refused(refused)
        return work

    async def _decide_work(
        self, work: ExecutionWork, refused: ErrorObject | None = None
    ) -> ExecutionDecision | None:
        """Decide for one execution; what cannot be decided is put aside, the others go on."""
        with open_decision_span(work, shard=self._fence.shard):
            return await self._decide_in_span(work, refused)

    async def _decide_in_span(
        self, work: ExecutionWork, refused: ErrorObject | None
    ) -> ExecutionDecision | None:
        execution_id, problem = work.batches[0].execution_id, None
        try:
            return await self._judging.decide_work(work, refused)
        except PlaybookMissing as failure:
            fact_batches = rejections.answer_parents(work.batches, str(failure))
            if fact_batches:
                return self._judging.answer_unstarted(work, fact_batches)
            if not rejections.is_early_cancel(work.batches, work.list_deliveries()):
                await self._bury_deliveries(work.list_deliveries(), failure)
                return None
        except (ForeignExecution, ResultMalformed) as failure:
            await self._bury_deliveries(work.list_deliveries(), failure)
            return None
        except Exception as failure:
            # A defect in one execution's decision must not stop the others of its shard.
            log.exception("decision failed", execution_id=execution_id, error=str(failure))
            problem = failure
        self._states.drop_state(execution_id)
        await self._postpone_deliveries(work, problem)
        return None

    async def _postpone_deliveries(self, work: ExecutionWork, failure: Exception | None) -> None:
        """Take facts again later; bury deliveries that a defect has failed often enough."""
        is_defect = failure is not None and not isinstance(failure, NoetlError)
        if isinstance(failure, Retryable):
            self._put_back_own(work.own_batches)
        for place, delivery in enumerate(work.list_deliveries()):
            if is_defect and delivery.delivery_count >= fact_intake.DEFECTS_MAX:
                # What it says may hold data: the log has it.
                await self._bury_deliveries([delivery], DecisionFailed(type(failure).__name__))
            else:
                await delivery.nak(fact_intake.compute_redelivery_delay_s(delivery, place))

    async def _commit_decisions(self, decided: list[ExecutionDecision]) -> list[ExecutionWork]:
        """Append everything in one transaction; when that is refused, one by one.

        Return what is left to decide on of what was committed.
        """
        if not decided:
            return []
        try:
            await self._append_decisions(decided)
        except (VersionConflict, DuplicateKey, RowRefused) as failure:
            if len(decided) > 1:
                return await self._commit_each(decided)
            if isinstance(failure, RowRefused):
                await self._fail_refused(decided[0], failure)
                return []
            instruments.add_to_counter(names.VERSION_CONFLICTS)
            log.warning("append refused", reason=str(failure))
            await self._return_deliveries(decided)
            return []
        except NoetlError:
            await self._return_deliveries(decided)
            raise
        return [
            execution_work
            for one in decided
            if (execution_work := fact_intake.find_remaining_work(one.work)) is not None
        ]

    async def _commit_each(self, decided: list[ExecutionDecision]) -> list[ExecutionWork]:
        """Append one by one; when one fails, the others' own batches are put back."""
        remaining_work: list[ExecutionWork] = []
        for place, execution_decision in enumerate(decided):
            waiting_work = [*remaining_work, *(later.work for later in decided[place + 1 :])]
            own_batches = [batch for work in waiting_work for batch in work.own_batches]
            with self._keep_own_batches(own_batches):
                remaining_work += await self._commit_decisions([execution_decision])
        return remaining_work

    async def _fail_refused(
        self, execution_decision: ExecutionDecision, failure: RowRefused
    ) -> None:
        """End an execution whose events the ledger cannot hold: asking again would not help."""
        log.error(
            "events refused",
            execution_id=execution_decision.state.execution_id,
            reason=str(failure),
        )
        error = ctx_writes.build_ctx_too_large_error(
            "(ledger)", f"the ledger refuses what was decided: {failure}"
        )
        if execution_decision.expected_version == 0:
            await self._return_deliveries([execution_decision])
            return
        work = execution_decision.work
        with self._keep_own_batches(work.own_batches):
            again = await self._decide_work(decision_runner.drop_facts(work), error)
            if again is not None:
                await self._store_payloads(again)
                await self._append_decisions([again])

    async def _append_decisions(
        self,
        decided: list[ExecutionDecision],
        *,
        start_request: Request | None = None,
        latest: CatalogId | None = None,
    ) -> None:
        shared = self._shared
        messages = [
            message for execution_decision in decided for message in execution_decision.messages
        ]
        started = shared.clock.monotonic_s()
        await pass_failpoint(Failpoint.PLANNER_APPEND_BEFORE)
        appended = await shared.ledger.append(
            Append(
                fence=self._fence,
                streams=[
                    _build_stream_append(decision)
                    for decision in decided
                    if decision.decision.envelopes
                ],
                messages=messages,
                settled_requests=[
                    request
                    for decision in decided
                    for request in fact_intake.list_settled_requests(decision.work.batches)
                ]
                if start_request is None
                else [],
                begun=start_request,
                latest=latest,
                publish_lease_s=shared.bounds.publish_lease_s,
                states=[change for decision in decided for change in _list_state_changes(decision)],
            )
        )
        instruments.record_measurement(names.APPEND_DURATION, shared.clock.monotonic_s() - started)
        await pass_failpoint(Failpoint.PLANNER_APPEND_AFTER)
        # Before a message can fail: no delivery brings again what is arranged here.
        for decision in decided:
            self._arrange_next(decision)
        # Who waits for an end is answered before anything is published.
        for decision in decided:
            notifications.notify_end(
                shared.commit_feed, decision.state, decision.decision, appended.ingest_time
            )
        await shared.message_publisher.offer_messages(appended.outbox_ids, messages)
        for decision in decided:
            await self._finish_commit(decision, appended.ingest_time)

    async def _store_each(self, decided: list[ExecutionDecision]) -> list[ExecutionDecision]:
        """Store the payloads of each; return those whose payloads are stored.

        The others are decided on again later, so that a store which refuses writes holds up
        nothing that needs none.
        """
        stored: list[ExecutionDecision] = []
        for execution_decision in decided:
            try:
                await self._store_payloads(execution_decision)
            except Retryable as failure:
                log.warning(
                    "execution waits for the payload store",
                    execution_id=execution_decision.state.execution_id,
                    reason=str(failure),
                )
                await self._shared.store_waits.announce_wait(
                    self._shared.hints, execution_decision.state.execution_id, failure
                )
                await self._return_deliveries([execution_decision])
            else:
                await self._shared.store_waits.announce_end(
                    self._shared.hints, execution_decision.state.execution_id
                )
                stored.append(execution_decision)
        return stored

    async def _store_payloads(self, execution_decision: ExecutionDecision) -> None:
        """Persist before emit: a reference in an event always resolves."""
        for data in execution_decision.decision.payloads.values():
            await self._shared.payloads.put_payload(
                data,
                tenant_id=execution_decision.state.tenant_id,
                organization_id=execution_decision.state.organization_id,
                media_type=JSON_MEDIA_TYPE,
            )

    def _arrange_next(self, execution_decision: ExecutionDecision) -> None:
        """Keep a committed state, its timer, and the loops whose results are to be collected."""
        state, decision = execution_decision.state, execution_decision.decision
        if self._states.put_state_back(state):
            self._wakeups.set_wakeup(state, decision.wake_at)
        for run_id in decision.to_collect:
            self._shared.loop_queue.enqueue_loop(state, run_id, self._gathered)

    async def _finish_commit(
        self, execution_decision: ExecutionDecision, ingest_time: datetime
    ) -> None:
        """After the commit: settle deliveries, and announce what was decided."""
        await pass_failpoint(Failpoint.PLANNER_ACK_BEFORE)
        if not execution_decision.work.later_batches:
            for delivery in execution_decision.work.deliveries:
                await delivery.ack()
            await self._bury_refused(execution_decision.work.in_part)
        await pass_failpoint(Failpoint.PLANNER_ACK_AFTER)
        shard_context = self._shared
        await notifications.notify_decision(
            shard_context.hints,
            shard_context.worker_presence,
            shard_context.commit_feed,
            execution_decision.state,
            execution_decision.decision,
            ingest_time=ingest_time,
        )
        decision_telemetry.count_decision(
            execution_decision.work.batches,
            execution_decision.decision.envelopes,
            execution_decision.state,
        )

    async def _return_deliveries(self, decided: Iterable[ExecutionDecision]) -> None:
        returned = list(decided)
        # Before a message can fail: the broker may be away, too.
        for execution_decision in returned:
            self._states.drop_state(execution_decision.state.execution_id)
            self._put_back_own(execution_decision.work.own_batches)
        for execution_decision in returned:
            for delivery in execution_decision.work.list_deliveries():
                await delivery.nak(fact_intake.compute_redelivery_delay_s(delivery))

    @contextmanager
    def _keep_own_batches(self, batches: Iterable[facts.FactBatch]) -> Iterator[None]:
        """Put batches back when the block fails that nothing would bring again."""
        try:
            yield
        except Exception:
            self._put_back_own(batches)
            raise

    def _put_back_own(self, batches: Iterable[facts.FactBatch]) -> None:
        """Keep what no delivery brings again, as a timer or the gathered results of a loop."""
        at = self._shared.clock.now() + timedelta(seconds=fact_intake.OWN_DELAY_S)
        self._wakeups.put_back(batches, at)

    async def _bury_refused(self, refused: Iterable[RefusedDelivery]) -> None:
        for refused_delivery in refused:
            reason = refused_delivery.reason
            if isinstance(reason, ReportRefused):
                self._shared.report_refusals.count_refusal(reason)
            else:
                log.error(
                    "fact moved to the dead letters",
                    subject=refused_delivery.delivery.subject,
                    reason=str(reason),
                )
            await self._bury_delivery(refused_delivery.delivery, reason)

    async def _bury_deliveries(self, deliveries: Iterable[Delivery], failure: Exception) -> None:
        for delivery in deliveries:
            log.error(
                "fact moved to the dead letters", subject=delivery.subject, reason=str(failure)
            )
            await self._bury_delivery(delivery, failure)

    async def _bury_delivery(self, delivery: Delivery, failure: Exception) -> None:
        await self._shared.dead_letters.bury_delivery(
            delivery,
            stream=topology.INGEST,
            consumer=topology.build_planner_consumer(self._fence.shard, self._share),
            reason=f"{type(failure).__name__}: {failure}"[:_REASON_CHARACTERS_MAX],
        )


def _list_state_changes(execution_decision: ExecutionDecision) -> list[OwnedStateChange]:
    state = execution_decision.state
    return [
        OwnedStateChange(
            tenant_id=state.tenant_id, organization_id=state.organization_id, change=change
        )
        for change in execution_decision.decision.state_changes
    ]


def _build_stream_append(execution_decision: ExecutionDecision) -> StreamAppend:
    return StreamAppend(
        execution_id=execution_decision.state.execution_id,
        tenant_id=execution_decision.state.tenant_id,
        organization_id=execution_decision.state.organization_id,
        expected_version=execution_decision.expected_version,
        envelopes=execution_decision.decision.envelopes,
    )
