"""Counterfactuals: the outcomes of a history, decided under another version of its playbook.

The planner's own `decide` runs on an empty state and the recorded inputs. Where it asks for work,
it is told what the same activation of that step came to in the history. An outcome is `recorded`
where the work is the same: equal tasks that read equal values. Where they differ it is `assumed`:
the history cannot say what the other work would have come to. Work of which the history knows
nothing is `unknown`, and what depends on it stays undecided.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command, ItemWork
from noetl_contracts.events import execution_events, step_events
from noetl_contracts.ids import CommandId, EventId, RunId, WorkerId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_planner.domain import recorded_outcomes
from noetl_planner.domain.decide import decide
from noetl_planner.domain.decision.draft import DecisionDraft, DecisionInputs, Limits
from noetl_planner.domain.decision.program import Program
from noetl_planner.domain.recorded_outcomes import (
    RecordedHistory,
    RunKey,
    StepOutcome,
    WorkOutcome,
)
from noetl_playbook.templates.render_record import RenderRecord
from noetl_replay.fold import fold_event
from noetl_replay.state import CommandState, ExecutionState, build_empty_state

PRODUCER = "counterfactual"
WORKER = WorkerId("counterfactual")
_NO_RESULT = ResultEnvelope(status="error")
# Parts of a step that do not change what its tasks do.
_ROUTING = frozenset({"next", "desc", "description", "when"})


class Basis(StrEnum):
    """What a decision about an activation rests on."""

    RECORDED = "recorded"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"
    # Nothing was asked of a worker.
    DECIDED = "decided"


class DecidedStep(Struct, frozen=True, kw_only=True):
    """How an activation would have ended; without `outcome` it stays undecided."""

    key: RunKey
    basis: Basis
    outcome: StepOutcome | None = None


class Counterfactual:
    """One playbook decided over a history's outcomes, a fact at a time.

    `decide_next` may raise `PayloadNeeded` or `SlowRenderError` like `decide`; after what is asked
    for is in `loaded`, it is called again.
    """

    def __init__(
        self,
        program: Program,
        history: RecordedHistory,
        *,
        state: ExecutionState,
        loaded: Mapping[str, Any],
        limits: Limits,
        make_renders: Callable[[], RenderRecord],
    ) -> None:
        self.program = program
        self.history = history
        self.state = state
        self.loaded = loaded
        self.limits = limits
        self.make_renders = make_renders
        self.envelopes: list[Envelope] = []
        self.work_by_key: dict[RunKey, str] = {}
        self._payloads: dict[str, Any] = {}
        self._event_ids = 0
        self._to_collect: list[RunId] = []
        self._key_by_run: dict[RunId, RunKey] = {}
        self._numbers: Counter[str] = Counter()

    def decide_next(self) -> bool:
        """Decide on one fact more; False when there is none: it has ended, or is undecided."""
        if self.state.is_terminal():
            return False
        chosen = self._choose_fact()
        if chosen is None:
            return False
        fact, at = chosen
        expires_at = self.state.expires_at
        if expires_at is not None and at >= expires_at:
            # The outcome came after the time of this version was over.
            fact, at = facts.TimerDue(), expires_at
        before = len(self.envelopes)
        draft = self._make_draft(at)
        try:
            draft.begin_fact(fact, key=f"{PRODUCER}/{before}")
            decision = decide(draft, [fact])
        except BaseException:
            self._restore_state()
            raise
        self.state = draft.state
        self.envelopes += decision.envelopes
        self._payloads |= draft.value_by_digest
        self._payloads |= {
            digest: codec.decode_json(data)
            for digest, data in decision.payloads.items()
            if digest not in draft.value_by_digest
        }
        self._to_collect += [RunId(run_id) for run_id in decision.to_collect]
        self._note_decision(decision.envelopes, decision.commands)
        return True

    def list_steps(self) -> list[StepOutcome]:
        """Return the activations that have ended, in their order."""
        return [
            recorded_outcomes.make_step_outcome(
                self._key_by_run[envelope.event.run_id], envelope, envelope.event
            )
            for envelope in self.envelopes
            if isinstance(envelope.event, step_events.StepExit)
        ]

    def list_open(self) -> list[RunKey]:
        """Return the activations that have begun and stay undecided."""
        return [self._key_by_run[run_id] for run_id in self.state.runs]

    @property
    def status(self) -> str:
        """Return the status that the execution would have had, `UNDECIDED` where none is known."""
        return self.state.status.value if self.state.is_terminal() else "UNDECIDED"

    def _choose_fact(self) -> tuple[facts.Fact, datetime] | None:
        """Choose what comes next: the request, results to collect, or the earliest outcome."""
        request = self.history.request
        if request is None or self.history.begun_at is None:
            return None
        if self.state.version == 0:
            return _make_request(request), self.history.begun_at
        if (collected := self._choose_collection()) is not None:
            return collected
        outcomes = [
            (outcome, command_state)
            for command_state in self.state.commands.values()
            if command_state.run_id in self.state.runs
            and (outcome := self._find_outcome(command_state)) is not None
        ]
        if not outcomes:
            return None
        outcome, command_state = min(outcomes, key=lambda pair: pair[0].version)
        run = self.state.runs[command_state.run_id]
        if run.loop is not None and command_state.item_index is None:
            return _make_collection(run.run_id, outcome), outcome.at
        return _make_report(command_state, outcome), outcome.at

    def _choose_collection(self) -> tuple[facts.Fact, datetime] | None:
        for run_id in self._to_collect:
            run = self.state.runs.get(run_id)
            if run is None or run.loop is None or run.loop.is_finished:
                continue
            outcome = self.history.loops.get(self._key_by_run[run_id])
            if outcome is not None:
                return _make_collection(run_id, outcome), outcome.at
        return None

    def _find_outcome(self, command_state: CommandState) -> WorkOutcome | None:
        """Return what a command's work came to; a loop in frames is taken as a whole."""
        key = self._key_by_run[command_state.run_id]
        if command_state.item_index is not None:
            return self.history.items.get((key, command_state.item_index))
        if self.state.runs[command_state.run_id].loop is not None:
            return self.history.loops.get(key)
        return self.history.calls.get(key)

    def _make_draft(self, at: datetime) -> DecisionDraft:
        return DecisionDraft(
            state=self.state,
            program=self.program,
            stamp=DecisionInputs(now=at, producer=PRODUCER, next_event_id=self._mint_event_id),
            limits=self.limits,
            loaded={**self.loaded, **self._payloads},
            renders=self.make_renders(),
        )

    def _mint_event_id(self) -> EventId:
        self._event_ids += 1
        return EventId(str(self._event_ids))

    def _restore_state(self) -> None:
        """Fold the state anew: a decision that was not made has spoiled it."""
        state = self.state
        state = build_empty_state(state.execution_id, state.tenant_id, state.organization_id)
        for envelope in self.envelopes:
            state = fold_event(state, envelope)
        self.state = state

    def _note_decision(self, envelopes: list[Envelope], commands: list[Command]) -> None:
        for envelope in envelopes:
            event = envelope.event
            if isinstance(event, step_events.StepEnter):
                self._numbers[event.step] += 1
                key = RunKey(step=event.step, number=self._numbers[event.step])
                self._key_by_run[event.run_id] = key
        for command in commands:
            key = self._key_by_run[command.run_id]
            described = f"{self.work_by_key.get(key, '')}{describe_work(command)}"
            self.work_by_key[key] = codec.digest_hex(described.encode())


def describe_work(command: Command) -> str:
    """Return a digest of what a command does and reads, the same for equal work."""
    definition = {
        name: value for name, value in (command.definition or {}).items() if name not in _ROUTING
    }
    about = {
        "definition": definition,
        "definition_ref": command.definition_ref and command.definition_ref.sha256,
        "workload": command.slice.workload,
        "workload_ref": command.slice.workload_ref and command.slice.workload_ref.sha256,
        "ctx": command.slice.ctx,
        "ctx_ref": command.slice.ctx_ref and command.slice.ctx_ref.sha256,
        "steps": codec.to_builtins(command.slice.steps),
        "defaults": command.defaults,
        "limits": command.limits,
        "keychain": command.keychain,
        "item": _describe_item(command),
    }
    return codec.digest_hex(codec.encode_canonical(codec.to_builtins(about)))


def _describe_item(command: Command) -> list[Any]:
    work = command.work
    if not isinstance(work, ItemWork):
        return []
    digest = work.collection_ref.sha256 if work.collection_ref is not None else None
    return [work.index, work.item, digest]


def compare_work(recorded: Counterfactual, decided: Counterfactual) -> list[DecidedStep]:
    """Tell of each activation how it would have ended, and what that rests on."""
    ended = {outcome.key: outcome for outcome in decided.list_steps()}
    differences = [
        DecidedStep(key=key, basis=_find_basis(key, recorded, decided), outcome=outcome)
        for key, outcome in ended.items()
    ]
    undecided = [key for key in decided.list_open() if key not in ended]
    return differences + [DecidedStep(key=key, basis=Basis.UNKNOWN) for key in undecided]


def _find_basis(key: RunKey, recorded: Counterfactual, decided: Counterfactual) -> Basis:
    """Tell what an outcome rests on.

    On the planner alone where no worker was asked, on the history where its worker was asked for
    the same, else on an assumption.
    """
    if key not in decided.work_by_key:
        return Basis.DECIDED
    is_same = decided.work_by_key[key] == recorded.work_by_key.get(key)
    return Basis.RECORDED if is_same else Basis.ASSUMED


def _make_request(request: execution_events.PlaybookInitialized) -> facts.ExecutionRequested:
    return facts.ExecutionRequested(
        path=request.path,
        workload=request.workload,
        workload_ref=request.workload_ref,
        requested_by=request.requested_by,
        pool=request.pool,
        priority=request.priority,
    )


def _make_report(command_state: CommandState, outcome: WorkOutcome) -> facts.Fact:
    if outcome.error is not None:
        return facts.CommandFailed(
            command_id=command_state.command_id,
            attempt=command_state.attempt,
            worker_id=WORKER,
            error=outcome.error,
            result=outcome.result,
            patch=outcome.patch,
        )
    return facts.CommandCompleted(
        command_id=CommandId(command_state.command_id),
        attempt=command_state.attempt,
        worker_id=WORKER,
        result=outcome.result or _NO_RESULT,
        patch=outcome.patch,
    )


def _make_collection(run_id: RunId, outcome: WorkOutcome) -> facts.ItemsCollected:
    return facts.ItemsCollected(
        run_id=run_id, result=outcome.result or _NO_RESULT, error=outcome.error
    )
