"""Questions to a history in memory: links between runs, results of units, and positions."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from noetl_contracts.events.frame_events import FrameEnd
from noetl_contracts.events.loop_events import LoopDone, LoopFailed
from noetl_contracts.events.step_events import CallDone, CallError, ItemEnd, StepEnter, StepExit
from noetl_contracts.ids import EventId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import LineageLink
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_storage.ports.history_ports import TimeBucket

History = Sequence[Envelope]
Events = Sequence[Envelope | StoredEvent]


def find_latest_entry(history: Sequence[Envelope], step: str) -> Envelope | None:
    """Return the last time that a step was entered."""
    for envelope in reversed(history):
        if isinstance(envelope.event, StepEnter) and envelope.event.step == step:
            return envelope
    return None


def get_entry_event(entry: Envelope) -> StepEnter:
    """Return the event of an entry."""
    assert isinstance(entry.event, StepEnter)
    return entry.event


def find_producer_entry(history: Sequence[Envelope], entry: Envelope) -> Envelope | None:
    """Return the entry of the run whose end, or whose stream, started this one."""
    event = get_entry_event(entry)
    earlier_events = history[: entry.stream_version - 1]
    run_id = event.stream_of or _find_ended_run(earlier_events, event)
    for envelope in reversed(earlier_events):
        if isinstance(envelope.event, StepEnter) and envelope.event.run_id == run_id:
            return envelope
    return None


def build_link(entry: Envelope, outcome: Envelope | None) -> LineageLink:
    """Describe one run by its entry and what ended its work."""
    event = get_entry_event(entry)
    open_link = LineageLink(
        step=event.step, run_id=event.run_id, entered_version=entry.stream_version
    )
    if outcome is None:
        return open_link
    match outcome.event:
        case CallDone(result=result) | LoopDone(result=result):
            is_error = False
        case CallError(result=result) | LoopFailed(result=result):
            is_error = True
        case _:
            return open_link
    return LineageLink(
        step=event.step,
        run_id=event.run_id,
        entered_version=entry.stream_version,
        ref_id=outcome.event_id,
        is_error=is_error,
        result=result,
        created_at=outcome.ingest_time,
    )


def _find_ended_run(earlier_events: Sequence[Envelope], event: StepEnter) -> str | None:
    for envelope in reversed(earlier_events):
        event_before = envelope.event
        if (
            isinstance(event_before, StepExit)
            and event_before.step == event.came_from
            and event.step in event_before.targets
        ):
            return event_before.run_id
    return None


def list_item_results(
    history: History, run_id: str, *, after_index: int, results_max: int
) -> list[ItemEnd]:
    """Return a page of the outcomes of one loop epoch's items, in item order."""
    item_results = [
        (event.item_index, envelope.stream_version, event)
        for envelope in history
        if isinstance(event := envelope.event, ItemEnd)
        and event.run_id == run_id
        and event.item_index is not None
        and event.item_index > after_index
    ]
    ordered = sorted(item_results, key=lambda item: item[:2])[:results_max]
    return [event for _, _, event in ordered]


def list_failed_items(
    history: History, run_id: str, *, after_index: int, results_max: int
) -> list[CallError]:
    """Return a page of the items of one loop epoch that failed, in item order."""
    item_results = list_item_results(
        history, run_id, after_index=after_index, results_max=len(history)
    )
    return [event for event in item_results if isinstance(event, CallError)][:results_max]


def list_frame_results(
    history: History, stage_id: str, *, after: tuple[int, int], results_max: int
) -> list[FrameEnd]:
    """Return a page of the outcomes of one stage's frames, by slot and frame index."""
    frame_results = [
        ((event.slot, event.frame_index), event)
        for envelope in history
        if isinstance(event := envelope.event, FrameEnd)
        and event.stage_id == stage_id
        and (event.slot, event.frame_index) > after
    ]
    return [entry for _, entry in sorted(frame_results, key=lambda item: item[0])[:results_max]]


def find_by_key(history: History, key: str) -> Envelope | None:
    """Return the event that took effect under an idempotency key, or None when none has."""
    return next((envelope for envelope in history if envelope.idempotency_key == key), None)


def find_outcome(history: History, run_id: str) -> Envelope | None:
    """Return the event that ended the work of a run as a whole, or None while it lasts."""
    for envelope in history:
        match envelope.event:
            case LoopDone(run_id=of) | LoopFailed(run_id=of) if of == run_id:
                return envelope
            case CallDone(run_id=of, item_index=None) | CallError(run_id=of, item_index=None):
                if of == run_id:
                    return envelope
            case _:
                pass
    return None


def trace_links(history: History, step: str, *, links_max: int) -> list[LineageLink]:
    """Return the latest run of a step, the run whose end started it, and so on, back."""
    links: list[LineageLink] = []
    entry = find_latest_entry(history, step)
    while entry is not None and len(links) < links_max:
        outcome = find_outcome(history, get_entry_event(entry).run_id)
        links.append(build_link(entry, outcome))
        entry = find_producer_entry(history, entry)
    return links


def find_version_at(history: Events, at: datetime) -> int:
    """Return the latest version whose event time is not after an instant; 0 for none."""
    return max((item.stream_version for item in history if item.event_time <= at), default=0)


def find_version_of(history: Events, event_id: EventId) -> int | None:
    """Return the version of an event, or None when the history has no such event."""
    return next((item.stream_version for item in history if item.event_id == event_id), None)


def list_buckets(history: Events, *, buckets: int) -> list[TimeBucket]:
    """Cut the time of a run into equal spans and return those with events, in order."""
    if not history:
        return []
    times = [item.event_time for item in history]
    low, width = min(times), max(max(times) - min(times), timedelta(microseconds=1))
    events_by_bucket: dict[int, list[Envelope | StoredEvent]] = {}
    for item in history:
        number = min(int((item.event_time - low) / width * buckets), buckets - 1)
        events_by_bucket.setdefault(number, []).append(item)
    return [_build_bucket(number, events_by_bucket[number]) for number in sorted(events_by_bucket)]


def _build_bucket(number: int, events: Events) -> TimeBucket:
    versions = [event.stream_version for event in events]
    times = [item.event_time for item in events]
    return TimeBucket(
        number=number,
        events=len(events),
        first_version=min(versions),
        last_version=max(versions),
        began_at=min(times),
        ended_at=max(times),
    )
