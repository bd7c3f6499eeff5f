"""What a history says that happened: its request, the outcomes of its work, and its decisions."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import (
    execution_events,
    loop_events,
    state_events,
    step_events,
)
from noetl_contracts.ids import RunId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus


class RunKey(Struct, frozen=True, kw_only=True, order=True):
    """One activation of a step: its first is number 1."""

    step: str
    number: int


class StepOutcome(Struct, frozen=True, kw_only=True):
    """How one activation ended, and where its tokens went; `version` is the event's."""

    key: RunKey
    status: RunStatus
    targets: tuple[str, ...]
    version: int
    error: ErrorObject | None = None


class WorkOutcome(Struct, frozen=True, kw_only=True):
    """What a step's call or a loop's item came to, when, and as which event of the history."""

    version: int
    at: datetime
    result: ResultEnvelope | None
    error: ErrorObject | None
    patch: dict[str, Any]


class RecordedHistory(Struct, kw_only=True):
    """A history, by the activations of its steps; `unusable` says why it cannot be decided anew."""

    request: execution_events.PlaybookInitialized | None = None
    begun_at: datetime | None = None
    status: str = "RUNNING"
    calls: dict[RunKey, WorkOutcome] = msgspec.field(default_factory=dict)
    items: dict[tuple[RunKey, int], WorkOutcome] = msgspec.field(default_factory=dict)
    loops: dict[RunKey, WorkOutcome] = msgspec.field(default_factory=dict)
    steps: list[StepOutcome] = msgspec.field(default_factory=list)
    unusable: str | None = None


# What these record was asked for or observed otherwise than by a command's report.
_UNUSABLE = {
    execution_events.StateInherited: "it took over the state of another execution",
    execution_events.CtxPatched: "somebody wrote to its variables from outside",
    step_events.CallPartial: "a step of it streamed",
    state_events.StateRead: "it read the state of an increment",
}
_ENDS: dict[type, str] = {
    execution_events.PlaybookCompleted: "COMPLETED",
    execution_events.PlaybookFailed: "FAILED",
    execution_events.ExecutionCancelled: "CANCELLED",
}


def read_history(envelopes: Iterable[Envelope]) -> RecordedHistory:
    """Read the events of one execution, in their order."""
    history = RecordedHistory()
    numbers: Counter[str] = Counter()
    key_by_run: dict[RunId, RunKey] = {}
    for envelope in envelopes:
        event = envelope.event
        history.unusable = history.unusable or _UNUSABLE.get(type(event))
        history.status = _ENDS.get(type(event), history.status)
        match event:
            case execution_events.PlaybookInitialized():
                history.request, history.begun_at = event, envelope.event_time
            case step_events.StepEnter():
                numbers[event.step] += 1
                key_by_run[event.run_id] = RunKey(step=event.step, number=numbers[event.step])
            case step_events.CallDone() | step_events.CallError():
                _note_call(history, key_by_run[event.run_id], envelope, event)
            case loop_events.LoopDone() | loop_events.LoopFailed():
                history.loops[key_by_run[event.run_id]] = _make_outcome(envelope, event)
            case step_events.StepExit():
                history.steps.append(make_step_outcome(key_by_run[event.run_id], envelope, event))
            case _:
                continue
    return history


def _note_call(
    history: RecordedHistory,
    key: RunKey,
    envelope: Envelope,
    event: step_events.CallDone | step_events.CallError,
) -> None:
    outcome = _make_outcome(envelope, event)
    if event.item_index is None:
        history.calls[key] = outcome
    else:
        history.items[key, event.item_index] = outcome


def _make_outcome(
    envelope: Envelope,
    event: step_events.CallDone
    | step_events.CallError
    | loop_events.LoopDone
    | loop_events.LoopFailed,
) -> WorkOutcome:
    return WorkOutcome(
        version=envelope.stream_version,
        at=envelope.event_time,
        result=event.result,
        error=getattr(event, "error", None),
        patch=event.patch,
    )


def make_step_outcome(key: RunKey, envelope: Envelope, event: step_events.StepExit) -> StepOutcome:
    """Make the outcome of an activation from the event that ended it."""
    return StepOutcome(
        key=key,
        status=event.status,
        targets=tuple(event.targets),
        version=envelope.stream_version,
        error=event.error or event.failure,
    )


def is_terminal_status(status: str) -> bool:
    """Tell whether a status of a history is its end."""
    return status in _ENDS.values()
