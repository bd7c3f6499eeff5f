"""Decides for one execution: decides again after each payload that its templates need is loaded."""

from collections.abc import Iterator

import structlog
from msgspec import Struct, structs

from noetl_chassis.observability import tracing
from noetl_contracts.commands.state_values import StateRecord
from noetl_contracts.errors import ErrorObject, ResultMalformed
from noetl_contracts.ids import EventId
from noetl_contracts.ledger.records import NewMessage
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests.facts import Fact, FactBatch
from noetl_planner.domain.decide import decide
from noetl_planner.domain.decision import ctx_writes
from noetl_planner.domain.decision.draft import (
    Decision,
    DecisionDraft,
    DecisionInputs,
    StateNeeded,
)
from noetl_planner.facts import fact_intake, rejections, report_checks
from noetl_planner.facts.fact_intake import ExecutionWork, RefusedDelivery
from noetl_planner.facts.report_checks import ReportedBatch, ReportRefused
from noetl_planner.shards import message_publisher
from noetl_planner.shards.caches import DecisionValues, StateCache
from noetl_planner.shards.message_publisher import CommandTooLarge
from noetl_planner.shards.render_processes import begin_renders
from noetl_planner.shards.shard_context import ShardContext
from noetl_playbook.templates.render_record import RenderRecord, SlowRenderError
from noetl_playbook.views.payload_handle import PayloadNeeded
from noetl_replay.state import ExecutionState, build_empty_state

log = structlog.get_logger(__name__)

# Nearly every try loads one payload more; the templates of one fact read far fewer payloads.
_TRIES_MAX = 1000


class DecisionStuckError(AssertionError):
    """A decision needs a payload that is loaded, or never ends: a defect of the planner."""


class ExecutionDecision(Struct, kw_only=True):
    """What one execution adds to the transaction of its shard's turn."""

    work: ExecutionWork
    state: ExecutionState
    expected_version: int
    decision: Decision
    messages: list[NewMessage]


class DecisionRunner:
    """Decides for executions of one shard; loads their states and the payloads that they read."""

    def __init__(self, states: StateCache, shared: ShardContext) -> None:
        self._states = states
        self._shared = shared

    async def decide_work(
        self, work: ExecutionWork, refused: ErrorObject | None = None
    ) -> ExecutionDecision:
        """Decide on the facts of an execution, and load each payload that a template reads.

        Facts that together read more than the limits are halved until they fit. After a try that
        ends without a decision, the state is read again. Raises `DecisionStuckError` when further
        tries cannot help, and the errors of the catalog, the ledger and the payload store.
        """
        decision_values = DecisionValues(self._shared.payload_cache)
        renders = begin_renders()
        stamp = self._make_inputs()
        version = -1
        for _ in range(_TRIES_MAX):
            state = await self._states.take_state(
                work.batches[0], is_beginning=fact_intake.is_first_request(work)
            )
            expected = state.version
            if expected != version:
                # What was rendered is of another state.
                renders.forget_all()
                version = expected
                stamp = await self._check_start(work, stamp, version)
            renders.start_recording()
            draft = await self._make_draft(work, state, decision_values, stamp, renders)
            try:
                return self._run_decision(work, draft, refused)
            except SlowRenderError:
                await self._render_in_child(work, decision_values, draft, refused)
            except StateNeeded as needed:
                stamp.states[needed.name] = await self._find_state(draft, needed)
            except PayloadNeeded as needed:
                ref = needed.stored.reference
                if (
                    not self._has_room(decision_values, ref)
                    and (half := fact_intake.halve_work(work)) is not None
                ):
                    return await self.decide_work(half, refused)
                fault = await self._load_payload(decision_values, ref, is_begun=expected > 0)
                if fault is not None:
                    work, refused = drop_facts(work), fault
                    renders.forget_all()
            except ResultMalformed as failure:
                work, refused = self._refuse_malformed(work, state, failure, is_begun=expected > 0)
                renders.forget_all()
            except CommandTooLarge as failure:
                self._states.drop_state(state.execution_id)
                refused = ctx_writes.build_ctx_too_large_error(failure.step, str(failure))
        raise DecisionStuckError(
            f"no decision after {_TRIES_MAX} tries and {len(decision_values)} values"
        )

    async def _check_start(
        self, work: ExecutionWork, stamp: DecisionInputs, version: int
    ) -> DecisionInputs:
        """Add to what a first decision knows why the execution may not begin, if it may not."""
        if version > 0:
            return stamp
        batch = fact_intake.select_request_batch(work.batches)
        refusal = await self._shared.start_checks.find_refusal(batch)
        return stamp if refusal is None else structs.replace(stamp, start_refusal=refusal)

    def _refuse_malformed(
        self,
        work: ExecutionWork,
        state: ExecutionState,
        failure: ResultMalformed,
        *,
        is_begun: bool,
    ) -> tuple[ExecutionWork, ErrorObject]:
        """Return what ends an execution with an unreadable result; raises it before the begin."""
        if not is_begun:
            raise failure
        self._states.drop_state(state.execution_id)
        return drop_facts(work), rejections.build_unreadable_fact_error(failure)

    async def _render_in_child(
        self,
        work: ExecutionWork,
        decision_values: DecisionValues,
        failed_draft: DecisionDraft,
        refused: ErrorObject | None,
    ) -> None:
        """Make a decision in a child process, to keep the values that its templates render to."""
        state = await self._states.take_state(
            work.batches[0], is_beginning=fact_intake.is_first_request(work)
        )
        renders = failed_draft.renders or begin_renders()
        stamp = failed_draft.stamp
        draft = await self._make_draft(work, state, decision_values, stamp, renders)

        def decide_again() -> None:
            decide(draft, _iterate_facts(draft, work, []), refused=refused)

        await self._shared.render_processes.render_in_child(renders, decide_again)

    async def _find_state(self, draft: DecisionDraft, needed: StateNeeded) -> StateRecord | None:
        """Read a value of `state` from the ledger; the append checks that it is still that."""
        state = draft.state
        return await self._shared.states.find_state(
            state.path,
            needed.name,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
        )

    def _has_room(self, decision_values: DecisionValues, ref: PayloadRef) -> bool:
        limits = self._shared.limits
        return decision_values.has_room_for(
            ref, bytes_max=limits.read_bytes_max, values_max=limits.read_values_max
        )

    async def _load_payload(
        self, decision_values: DecisionValues, ref: PayloadRef, *, is_begun: bool
    ) -> ErrorObject | None:
        """Load a payload for templates; return the error of a payload that cannot be read.

        An execution without a history cannot fail: then the error is raised instead.
        """
        try:
            if ref.sha256 in decision_values or not await decision_values.load_payload(ref):
                raise DecisionStuckError(f"the decision asks again for {ref.uri}")
        except rejections.UNREADABLE as failure:
            if not is_begun:
                raise
            log.exception("payload unreadable", reason=str(failure))
            return rejections.build_unreadable_fact_error(failure)
        return None

    def _make_inputs(self) -> DecisionInputs:
        shared = self._shared
        return DecisionInputs(
            now=shared.clock.now(),
            producer=shared.producer,
            next_event_id=lambda: EventId(shared.snowflake.next_id()),
            workers=shared.worker_presence.list_beats(),
        )

    async def _make_draft(
        self,
        work: ExecutionWork,
        state: ExecutionState,
        decision_values: DecisionValues,
        stamp: DecisionInputs,
        renders: RenderRecord,
    ) -> DecisionDraft:
        return DecisionDraft(
            state=state,
            program=await self._shared.programs.get_program(
                state, fact_intake.select_request_batch(work.batches)
            ),
            stamp=stamp,
            limits=self._shared.limits,
            loaded=decision_values,
            causation_id=work.batches[0].key,
            traceparent=tracing.get_traceparent(),
            renders=renders,
        )

    def _run_decision(
        self, work: ExecutionWork, draft: DecisionDraft, refused: ErrorObject | None
    ) -> ExecutionDecision:
        shared = self._shared
        state = draft.state
        expected = state.version
        refused_reports: list[RefusedDelivery] = []
        decision = decide(draft, _iterate_facts(draft, work, refused_reports), refused=refused)
        if refused_reports:
            work = fact_intake.bury_reports(work, refused_reports)
        messages = message_publisher.build_messages(
            decision.envelopes,
            decision.commands,
            decision.sent_facts,
            routes=shared.routes,
            traceparent=draft.traceparent if tracing.are_spans_wanted() else None,
        )
        return ExecutionDecision(
            work=work,
            state=draft.state,
            expected_version=expected,
            decision=decision,
            messages=messages,
        )

    def answer_unstarted(
        self, work: ExecutionWork, fact_batches: list[FactBatch]
    ) -> ExecutionDecision:
        """Return the decision on an execution that cannot begin: no events, only facts to send."""
        first = work.batches[0]
        state = build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
        return ExecutionDecision(
            work=work,
            state=state,
            expected_version=state.version,
            decision=Decision(envelopes=[], sent_facts=fact_batches),
            messages=[
                message_publisher.build_fact_message(fact_batch, routes=self._shared.routes)
                for fact_batch in fact_batches
            ],
        )


def _iterate_facts(
    draft: DecisionDraft, work: ExecutionWork, refused: list[RefusedDelivery]
) -> Iterator[Fact]:
    """Yield facts in turn, each of them the cause of what is decided before the next.

    A report is held against the state that the facts before it led to; what of it is refused is
    added to `refused`.
    """
    for batch in work.batches:
        for fact in batch.facts:
            if isinstance(batch, ReportedBatch) and not _admit_report(draft, batch, fact, refused):
                continue
            draft.begin_fact(fact, key=batch.key, actor=batch.actor)
            yield fact


def _admit_report(
    draft: DecisionDraft, batch: ReportedBatch, fact: Fact, refused: list[RefusedDelivery]
) -> bool:
    try:
        return report_checks.check_holder(
            draft.state,
            fact,
            batch.reporter,
            now=draft.now,
            lease_s=draft.limits.command_lease_s,
        )
    except ReportRefused as refusal:
        refused.append(RefusedDelivery(delivery=batch.delivery, reason=refusal))
        return False


def drop_facts(work: ExecutionWork) -> ExecutionWork:
    """Return the same deliveries without their facts, on which nothing can be decided."""
    batches = [structs.replace(batch, facts=[]) for batch in work.batches]
    return ExecutionWork(batches=batches, deliveries=work.deliveries, in_part=work.in_part)
