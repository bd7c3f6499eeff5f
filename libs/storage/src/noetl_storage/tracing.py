"""Which run of a step led to which, as a history in memory tells it."""

from collections.abc import Sequence

from noetl_contracts.envelope import Envelope
from noetl_contracts.events.loop import LoopDone, LoopFailed
from noetl_contracts.events.step import CallDone, CallError, StepEnter, StepExit
from noetl_contracts.ledger import Link


def latest_entry(history: Sequence[Envelope], step: str) -> Envelope | None:
    """Return the last time that a step was entered."""
    for envelope in reversed(history):
        if isinstance(envelope.event, StepEnter) and envelope.event.step == step:
            return envelope
    return None


def entry_of(entered: Envelope) -> StepEnter:
    """Return the event of an entry."""
    assert isinstance(entered.event, StepEnter)
    return entered.event


def producer(history: Sequence[Envelope], entered: Envelope) -> Envelope | None:
    """Return the entry of the run whose end, or whose stream, started this one."""
    event = entry_of(entered)
    before = history[: entered.stream_version - 1]
    run_id = event.stream_of or _ended(before, event)
    for envelope in reversed(before):
        if isinstance(envelope.event, StepEnter) and envelope.event.run_id == run_id:
            return envelope
    return None


def link(entered: Envelope, outcome: Envelope | None) -> Link:
    """Describe one run by its entry and what ended its work."""
    event = entry_of(entered)
    begun = Link(step=event.step, run_id=event.run_id, entered_version=entered.stream_version)
    if outcome is None:
        return begun
    match outcome.event:
        case CallDone(result=result) | LoopDone(result=result):
            is_error = False
        case CallError(result=result) | LoopFailed(result=result):
            is_error = True
        case _:
            return begun
    return Link(
        step=event.step,
        run_id=event.run_id,
        entered_version=entered.stream_version,
        ref_id=outcome.event_id,
        is_error=is_error,
        result=result,
        created_at=outcome.ingest_time,
    )


def _ended(before: Sequence[Envelope], event: StepEnter) -> str | None:
    for envelope in reversed(before):
        ended = envelope.event
        if (
            isinstance(ended, StepExit)
            and ended.step == event.came_from
            and event.step in ended.targets
        ):
            return ended.run_id
    return None
