"""A planner without a shell: facts in, events out, the state kept between them."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count
from typing import Any

from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Command, SlotWork
from noetl_contracts.commands.state_values import StateRecord
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.events import get_event_type
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import (
    CatalogId,
    EventId,
    ExecutionId,
    OrganizationId,
    TenantId,
    WorkerId,
)
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_planner.domain.decide import decide
from noetl_planner.domain.decision.draft import Decision, DecisionDraft, DecisionInputs, Limits
from noetl_planner.domain.decision.program import Program
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, build_empty_state, take_changes

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WORKER = WorkerId("worker-1")
ROWS = PayloadRef(
    uri="noetl://tenant/default/org/default/payloads/sha256/" + "0" * 64,
    sha256="0" * 64,
    media_type="application/json",
    payload_bytes=2,
)


@lru_cache(maxsize=32)
def program(text: str) -> Program:
    """Parse a playbook that must be good."""
    parsed = parse_playbook(text)
    assert parsed.playbook is not None, [str(problem) for problem in parsed.problems]
    return Program(parsed.playbook, catalog_id=CatalogId("1"), catalog_version=1, digest="d" * 64)


def _asked_by(
    draft: DecisionDraft, told: Sequence[facts.Fact], actor: Actor
) -> Iterator[facts.Fact]:
    for fact in told:
        draft.begin_fact(fact, key="asked", actor=actor)
        yield fact


class PlannerHarness:
    """One execution under the planner's judgement."""

    def __init__(
        self,
        text: str | Program,
        *,
        limits: Limits | None = None,
        execution_id: str = "42",
        minted: Iterator[int] | None = None,
    ) -> None:
        self.program = program(text) if isinstance(text, str) else text
        self.limits = limits or Limits()
        self.now = NOON
        self.history: list[Envelope] = []
        self.commands: dict[str, Command] = {}
        self.last: Decision | None = None
        self.loaded: dict[str, Any] = {}
        self.workers: tuple[WorkerHeartbeat, ...] = ()
        # What the ledger has of `state`; decisions change it.
        self.values: dict[str, StateRecord | None] = {}
        self._minted = minted or count(1)
        self.state: ExecutionState = build_empty_state(
            ExecutionId(execution_id), TenantId("default"), OrganizationId("default")
        )

    def tell(self, *told: facts.Fact, actor: Actor | None = None) -> list[str]:
        """Decide on facts, those of an actor where one is named; return the types of the events."""
        draft = DecisionDraft(
            state=self.state,
            program=self.program,
            stamp=DecisionInputs(
                now=self.now,
                producer="test",
                next_event_id=self._mint,
                workers=self.workers,
                states=self.values,
            ),
            limits=self.limits,
            loaded=self.loaded,
        )
        self.last = decide(draft, told if actor is None else _asked_by(draft, told, actor))
        self.state = draft.state
        take_changes(self.state)
        self.history += self.last.envelopes
        for change in self.last.state_changes:
            self.values[change.name] = StateRecord(
                name=change.name, value=change.value, revision=change.revision
            )
        for data in self.last.payloads.values():
            self.loaded[codec.digest_hex(data)] = codec.decode_json(data)
        for command in self.last.commands:
            self.commands[command.command_id] = command
        return [get_event_type(envelope.event) for envelope in self.last.envelopes]

    def start(self, **workload: Any) -> list[str]:
        """Request the execution."""
        return self.tell(facts.ExecutionRequested(path="p", workload=workload))

    def replay(self, history: Sequence[Envelope]) -> None:
        """Know an execution from its history alone, as a planner that starts anew does."""
        self.state = fold_history(self.state, history)
        take_changes(self.state)
        self.history += history
        self.now = history[-1].event_time
        self._minted = count(int(history[-1].event_id) + 1)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def sent(self) -> list[Command]:
        """Return the commands of the last decision."""
        assert self.last is not None
        return list(self.last.commands)

    def types(self) -> list[str]:
        """Return every event type so far."""
        return [get_event_type(envelope.event) for envelope in self.history]

    def events(self, kind: str) -> list[Any]:
        """Return the events of one type."""
        return [item.event for item in self.history if get_event_type(item.event) == kind]

    def _mint(self) -> EventId:
        return EventId(str(next(self._minted)))


def done(command: Command, value: Any = None, **patch: Any) -> facts.CommandCompleted:
    """Report a step or item as done with a value."""
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="python", raw=value)}, last="t")
    return facts.CommandCompleted(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WORKER,
        result=ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(pipeline_result)
        ),
        patch=patch,
    )


def opened(command: Command, index: int, *, rows: int = 5, **changes: Any) -> facts.FrameOpened:
    """Report that a slot recorded a window."""
    work = _slot(command)
    values: dict[str, Any] = {
        "command_id": command.command_id,
        "attempt": command.attempt,
        "worker_id": WORKER,
        "stage_id": work.stage_id,
        "frame_id": ids.derive_frame_id(work.stage_id, slot=work.slot, frame_index=index),
        "slot": work.slot,
        "frame_index": index,
        "row_count": rows,
        "rows_ref": ROWS,
    }
    return facts.FrameOpened(**{**values, **changes})


def closed(command: Command, index: int, *, rows: int = 5, **changes: Any) -> facts.FrameClosed:
    """Report that a slot finished a frame."""
    work = _slot(command)
    values: dict[str, Any] = {
        "command_id": command.command_id,
        "attempt": command.attempt,
        "worker_id": WORKER,
        "stage_id": work.stage_id,
        "frame_id": ids.derive_frame_id(work.stage_id, slot=work.slot, frame_index=index),
        "slot": work.slot,
        "frame_index": index,
        "row_count": rows,
    }
    return facts.FrameClosed(**{**values, **changes})


def dry(command: Command, *, frames: int, next_index: int) -> facts.SlotDry:
    """Report that a slot's claim found nothing."""
    return facts.SlotDry(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WORKER,
        frames=frames,
        next_index=next_index,
    )


def run_all(harness: PlannerHarness, answers: Sequence[Any] = ()) -> None:
    """Answer step commands in order until nothing is sent."""
    queue = list(answers)
    while harness.last is not None and harness.last.commands:
        harness.tell(
            *(done(command, queue.pop(0) if queue else None) for command in harness.sent())
        )


def _slot(command: Command) -> SlotWork:
    assert isinstance(command.work, SlotWork)
    return command.work
