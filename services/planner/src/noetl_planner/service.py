"""Fetch facts, decide, append, publish, ack: one transaction per turn and shard."""

from collections.abc import Iterable
from datetime import timedelta

import structlog
from msgspec import Struct, structs

from noetl_chassis import instruments, names, tracing
from noetl_chassis.failpoints import Point, reach
from noetl_contracts import facts
from noetl_contracts.errors import (
    ErrorObject,
    NoetlError,
    Permanent,
    ResultMalformed,
)
from noetl_contracts.ids import CatalogId, EventId
from noetl_contracts.ledger import Append, NewMessage, Request, ShardFence, StreamAppend
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_messaging import topology
from noetl_messaging.ports import Consumer, Delivery
from noetl_planner.domain import growth
from noetl_planner.domain.decide import decide
from noetl_planner.domain.draft import Decision, Draft, Stamp
from noetl_planner.shell import accounts, admitting, outgoing, refusing, telling
from noetl_planner.shell.admitting import Refused, Work
from noetl_planner.shell.gathering import Mailbox
from noetl_planner.shell.outgoing import CommandTooLarge
from noetl_planner.shell.sharing import Shared
from noetl_planner.shell.states import (
    ForeignExecution,
    PlaybookMissing,
    States,
)
from noetl_planner.shell.wakeups import Wakeups
from noetl_playbook.handles import PayloadNeeded
from noetl_replay.state import ExecutionState, empty
from noetl_storage.errors import DuplicateKey, RowRefused, VersionConflict

log = structlog.get_logger(__name__)

_LOADS_MAX = 64
_REASON_CHARACTERS_MAX = 1000


class DecisionFailed(Permanent):
    """The planner cannot decide on a fact because of a defect, which its log tells of."""


class Decided(Struct, kw_only=True):
    """One execution's part of the turn's transaction."""

    work: Work
    state: ExecutionState
    expected_version: int
    decision: Decision
    messages: list[NewMessage]


class ShardPlanner:
    """Decides for the executions of one shard while it owns it."""

    def __init__(
        self, *, fence: ShardFence, consumer: Consumer, states: States, shared: Shared
    ) -> None:
        self._fence = fence
        self._consumer = consumer
        self._states = states
        self._shared = shared
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
        decided = [one for one in [await self._decide(each) for each in work] if one is not None]
        await self._commit(decided)
        return len(decided)

    async def begin(self, request: Request, *, latest: CatalogId | None) -> bool:
        """Decide on a request that nobody has kept, and keep it with what follows from it.

        False when it is to be sent instead, like what has to be looked at again by a turn soon.
        """
        decided = await self._decide(admitting.brought(request))
        if decided is None or not decided.decision.envelopes or self._is_pressing(decided):
            return False
        try:
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
        first = work.batches[0]
        attributes: dict[str, str | int] = {
            names.ATTR_EXECUTION: first.execution_id,
            names.ATTR_BATCH: len(work.batches),
        }
        with tracing.span(names.SPAN_DECIDE, parent=first.traceparent, attributes=attributes):
            return await self._decide_within(work, refused)

    async def _decide_within(self, work: Work, refused: ErrorObject | None) -> Decided | None:
        execution_id, problem = work.batches[0].execution_id, None
        try:
            decided = await self._judge_loaded(work, refused)
            if decided is not None:
                return decided
        except PlaybookMissing as failure:
            told = refusing.answer(work.batches, str(failure))
            if told:
                return self._unbegun(work, told)
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
        await self._put_off(work.all_deliveries(), problem)
        return None

    async def _put_off(self, deliveries: list[Delivery], failure: Exception | None) -> None:
        """Take deliveries again later; bury those that a defect of ours has failed often enough."""
        is_defect = failure is not None and not isinstance(failure, NoetlError)
        for place, delivery in enumerate(deliveries):
            if is_defect and delivery.delivered >= admitting.DEFECTS_MAX:
                # What it says may hold data: the log has it.
                await self._bury([delivery], DecisionFailed(type(failure).__name__))
            else:
                await delivery.nak(admitting.delay_s(delivery, place))

    async def _judge_loaded(self, work: Work, refused: ErrorObject | None) -> Decided | None:
        """Decide, loading what templates name; None for what names too much.

        A state that was decided on in vain is read from its history again.
        """
        for _ in range(_LOADS_MAX):
            state = await self._states.take(
                work.batches[0], is_beginning=admitting.is_beginning(work)
            )
            expected = state.version
            try:
                return await self._judge(work, state, refused)
            except PayloadNeeded as needed:
                fault = await self._load(needed.stored.reference, is_begun=expected > 0)
                if fault is not None:
                    work, refused = _told_nothing(work), fault
            except ResultMalformed as failure:
                if expected == 0:
                    raise
                self._states.drop(state.execution_id)
                work, refused = _told_nothing(work), refusing.unreadable(failure)
            except CommandTooLarge as failure:
                self._states.drop(state.execution_id)
                refused = growth.too_large(failure.step, str(failure))
        return None

    async def _load(self, ref: PayloadRef, *, is_begun: bool) -> ErrorObject | None:
        """Read a payload for templates; return the error of one that stays unreadable.

        What has not begun cannot fail: there it is raised.
        """
        try:
            await self._shared.loaded.load(ref)
        except refusing.UNREADABLE as failure:
            if not is_begun:
                raise
            log.exception("payload unreadable", reason=str(failure))
            return refusing.unreadable(failure)
        return None

    async def _judge(
        self, work: Work, state: ExecutionState, refused: ErrorObject | None
    ) -> Decided:
        shared = self._shared
        draft = Draft(
            state=state,
            program=await shared.programs.of(state, admitting.asking(work.batches)),
            stamp=Stamp(
                now=shared.clock.now(),
                producer=shared.producer,
                next_event_id=lambda: EventId(shared.snowflake.next_id()),
                workers=shared.crowd.seen() if shared.limits.offer_s else (),
            ),
            limits=shared.limits,
            loaded=shared.loaded.values(),
            causation_id=work.batches[0].key,
            traceparent=tracing.traceparent(),
        )
        expected = state.version
        asked = (fact for batch in work.batches for fact in batch.facts)
        decision = decide(draft, asked, refused=refused)
        messages = outgoing.messages(
            decision.envelopes,
            decision.commands,
            decision.told,
            shard_count=shared.bounds.shard_count,
            has_share=state.tenant_id in shared.limits.tenants,
        )
        return Decided(
            work=work,
            state=draft.state,
            expected_version=expected,
            decision=decision,
            messages=messages,
        )

    def _unbegun(self, work: Work, told: list[facts.FactBatch]) -> Decided:
        """Answer for an execution that cannot begin; it has no history."""
        first = work.batches[0]
        state = empty(first.execution_id, first.tenant_id, first.organization_id)
        shard_count = self._shared.bounds.shard_count
        return Decided(
            work=work,
            state=state,
            expected_version=state.version,
            decision=Decision(envelopes=[], told=told),
            messages=[outgoing.to_execution(one, shard_count=shard_count) for one in told],
        )

    async def _commit(self, decided: list[Decided]) -> None:
        """Append everything in one transaction; when that is refused, one by one."""
        if not decided:
            return
        try:
            await self._append(decided)
        except (VersionConflict, DuplicateKey, RowRefused) as failure:
            if len(decided) > 1:
                for one in decided:
                    await self._commit([one])
                return
            if isinstance(failure, RowRefused):
                await self._refuse(decided[0], failure)
                return
            instruments.count(names.VERSION_CONFLICTS)
            log.warning("append refused", reason=str(failure))
            await self._give_back(decided)
        except NoetlError:
            await self._give_back(decided)
            raise

    async def _refuse(self, one: Decided, failure: RowRefused) -> None:
        """End an execution whose events the ledger cannot hold: asking again would not help."""
        log.error("events refused", execution_id=one.state.execution_id, reason=str(failure))
        error = growth.too_large("(ledger)", f"the ledger refuses what was decided: {failure}")
        if one.expected_version == 0:
            await self._give_back([one])
            return
        again = await self._decide(_told_nothing(one.work), error)
        if again is not None:
            await self._append([again])

    async def _append(
        self,
        decided: list[Decided],
        *,
        begun: Request | None = None,
        latest: CatalogId | None = None,
    ) -> None:
        shared = self._shared
        await self._store_payloads(decided)
        messages = [message for one in decided for message in one.messages]
        started = shared.clock.monotonic()
        await reach(Point.PLANNER_APPEND_BEFORE)
        outbox_ids = await shared.ledger.append(
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
            telling.tell_end(shared.board, one.state, one.decision)
        await shared.publishing.offer(outbox_ids, messages)
        for one in decided:
            await self._conclude(one)

    async def _store_payloads(self, decided: list[Decided]) -> None:
        """Persist before emit: a reference in an event always resolves."""
        for one in decided:
            for data in one.decision.payloads.values():
                await self._shared.payloads.put(
                    data,
                    tenant_id=one.state.tenant_id,
                    organization_id=one.state.organization_id,
                    media_type=JSON_MEDIA_TYPE,
                )

    async def _conclude(self, one: Decided) -> None:
        """After the commit: keep the state, settle deliveries, arrange what comes next."""
        if self._states.put_back(one.state):
            self._wakeups.set(one.state, one.decision.wake_at)
        await reach(Point.PLANNER_ACK_BEFORE)
        for delivery in one.work.deliveries:
            await delivery.ack()
        await self._bury_refused(one.work.in_part)
        await reach(Point.PLANNER_ACK_AFTER)
        for run_id in one.decision.to_collect:
            self._shared.gathering.ask(one.state, run_id, self._gathered)
        told = self._shared
        await telling.tell(told.hints, told.crowd, told.board, one.state, one.decision)
        accounts.decided(one.work.batches, one.decision.envelopes, one.state)

    async def _give_back(self, decided: Iterable[Decided]) -> None:
        for one in decided:
            self._states.drop(one.state.execution_id)
            for delivery in one.work.all_deliveries():
                await delivery.nak(admitting.delay_s(delivery))

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


def _told_nothing(work: Work) -> Work:
    """Return the same deliveries without what they say, which cannot be decided."""
    batches = [structs.replace(batch, facts=[]) for batch in work.batches]
    return Work(batches=batches, deliveries=work.deliveries, in_part=work.in_part)


def _stream(one: Decided) -> StreamAppend:
    return StreamAppend(
        execution_id=one.state.execution_id,
        tenant_id=one.state.tenant_id,
        organization_id=one.state.organization_id,
        expected_version=one.expected_version,
        envelopes=one.decision.envelopes,
    )
