"""One execution's decision, made again with each value that it turns out to need."""

from collections.abc import Iterator

import structlog
from msgspec import Struct, structs

from noetl_chassis import tracing
from noetl_contracts.errors import ErrorObject, ResultMalformed
from noetl_contracts.facts import Fact, FactBatch
from noetl_contracts.ids import EventId
from noetl_contracts.ledger import NewMessage
from noetl_contracts.payloads import PayloadRef
from noetl_planner.domain import growth
from noetl_planner.domain.decide import decide
from noetl_planner.domain.draft import Decision, Draft, Stamp
from noetl_planner.shell import admitting, outgoing, refusing
from noetl_planner.shell.admitting import Work
from noetl_planner.shell.outgoing import CommandTooLarge
from noetl_planner.shell.render_child import begin_renders
from noetl_planner.shell.sharing import Shared
from noetl_planner.shell.states import Held, States
from noetl_playbook.handles import PayloadNeeded
from noetl_playbook.templates.render_record import Renders, SlowRenderError
from noetl_replay.state import ExecutionState, empty

log = structlog.get_logger(__name__)

# Each try but a few has a value more than the one before; what one fact may name is fewer.
_TRIES_MAX = 1000


class DecisionStuckError(AssertionError):
    """A decision asks again for what it was given, or without end: a defect of ours."""


class Decided(Struct, kw_only=True):
    """One execution's part of the turn's transaction."""

    work: Work
    state: ExecutionState
    expected_version: int
    decision: Decision
    messages: list[NewMessage]


class Judging:
    """Decides for executions of one shard, with their states and what templates look into."""

    def __init__(self, states: States, shared: Shared) -> None:
        self._states = states
        self._shared = shared

    async def judge(self, work: Work, refused: ErrorObject | None = None) -> Decided:
        """Decide, loading what templates name; facts that need too much at once go one by one.

        A state that was decided on in vain is read from its history again. Raises
        `DecisionStuckError` where trying again leads nowhere, and what the catalog, the ledger and
        the store raise.
        """
        held = Held(self._shared.loaded)
        renders = begin_renders()
        stamp = self._stamp()
        version = 0
        for _ in range(_TRIES_MAX):
            state = await self._states.take(
                work.batches[0], is_beginning=admitting.is_beginning(work)
            )
            expected = state.version
            if expected != version:
                # What was rendered is of another state.
                renders.forget()
                version = expected
            renders.begin()
            draft = await self._draft(work, state, held, stamp, renders)
            try:
                return self._judge(work, draft, refused)
            except SlowRenderError:
                await self._render_apart(work, held, draft, refused)
            except PayloadNeeded as needed:
                ref = needed.stored.reference
                if not self._has_room(held, ref) and (half := admitting.halved(work)) is not None:
                    return await self.judge(half, refused)
                fault = await self._load(held, ref, is_begun=expected > 0)
                if fault is not None:
                    work, refused = told_nothing(work), fault
                    renders.forget()
            except ResultMalformed as failure:
                if expected == 0:
                    raise
                self._states.drop(state.execution_id)
                work, refused = told_nothing(work), refusing.unreadable(failure)
                renders.forget()
            except CommandTooLarge as failure:
                self._states.drop(state.execution_id)
                refused = growth.too_large(failure.step, str(failure))
        raise DecisionStuckError(f"no decision after {_TRIES_MAX} tries and {len(held)} values")

    async def _render_apart(
        self, work: Work, held: Held, spoiled: Draft, refused: ErrorObject | None
    ) -> None:
        """Make a decision in a child, for what its templates give."""
        state = await self._states.take(work.batches[0], is_beginning=admitting.is_beginning(work))
        renders = spoiled.renders or begin_renders()
        draft = await self._draft(work, state, held, spoiled.stamp, renders)

        def compute() -> None:
            decide(draft, _asked(draft, work), refused=refused)

        await self._shared.children.complete(renders, compute)

    def _has_room(self, held: Held, ref: PayloadRef) -> bool:
        limits = self._shared.limits
        return held.has_room(
            ref, bytes_max=limits.read_bytes_max, values_max=limits.read_values_max
        )

    async def _load(self, held: Held, ref: PayloadRef, *, is_begun: bool) -> ErrorObject | None:
        """Read a payload for templates; return the error of one that stays unreadable.

        What has not begun cannot fail: there it is raised.
        """
        try:
            if ref.sha256 in held or not await held.load(ref):
                raise DecisionStuckError(f"the decision asks again for {ref.uri}")
        except refusing.UNREADABLE as failure:
            if not is_begun:
                raise
            log.exception("payload unreadable", reason=str(failure))
            return refusing.unreadable(failure)
        return None

    def _stamp(self) -> Stamp:
        shared = self._shared
        return Stamp(
            now=shared.clock.now(),
            producer=shared.producer,
            next_event_id=lambda: EventId(shared.snowflake.next_id()),
            workers=shared.crowd.seen() if shared.limits.offer_s else (),
        )

    async def _draft(
        self, work: Work, state: ExecutionState, held: Held, stamp: Stamp, renders: Renders
    ) -> Draft:
        return Draft(
            state=state,
            program=await self._shared.programs.of(state, admitting.asking(work.batches)),
            stamp=stamp,
            limits=self._shared.limits,
            loaded=held,
            causation_id=work.batches[0].key,
            traceparent=tracing.traceparent(),
            renders=renders,
        )

    def _judge(self, work: Work, draft: Draft, refused: ErrorObject | None) -> Decided:
        shared = self._shared
        state = draft.state
        expected = state.version
        decision = decide(draft, _asked(draft, work), refused=refused)
        messages = outgoing.messages(
            decision.envelopes,
            decision.commands,
            decision.told,
            shard_count=shared.bounds.shard_count,
            has_share=state.tenant_id in shared.limits.tenants,
            traceparent=draft.traceparent,
        )
        return Decided(
            work=work,
            state=draft.state,
            expected_version=expected,
            decision=decision,
            messages=messages,
        )

    def unbegun(self, work: Work, told: list[FactBatch]) -> Decided:
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


def _asked(draft: Draft, work: Work) -> Iterator[Fact]:
    """Yield facts in turn, each of them the cause of what is decided before the next."""
    for batch in work.batches:
        for fact in batch.facts:
            draft.begin_fact(fact, key=batch.key)
            yield fact


def told_nothing(work: Work) -> Work:
    """Return the same deliveries without what they say, which cannot be decided."""
    batches = [structs.replace(batch, facts=[]) for batch in work.batches]
    return Work(batches=batches, deliveries=work.deliveries, in_part=work.in_part)
