"""Questions to a whole history that is at hand as a list, in the order of its versions."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from noetl_contracts.envelope import Envelope
from noetl_contracts.events.frame import FrameEnd
from noetl_contracts.events.loop import LoopDone, LoopFailed
from noetl_contracts.events.step import CallDone, CallError, ItemEnd
from noetl_contracts.ids import EventId
from noetl_contracts.ledger import Link
from noetl_contracts.stored import StoredEvent
from noetl_storage import tracing
from noetl_storage.audit_ports import Bucket

History = Sequence[Envelope]
Events = Sequence[Envelope | StoredEvent]


def item_results(
    history: History, run_id: str, *, after_index: int, results_max: int
) -> list[ItemEnd]:
    """Return a page of the outcomes of one loop epoch's items, in item order."""
    found = [
        (event.item_index, envelope.stream_version, event)
        for envelope in history
        if isinstance(event := envelope.event, ItemEnd)
        and event.run_id == run_id
        and event.item_index is not None
        and event.item_index > after_index
    ]
    ordered = sorted(found, key=lambda item: item[:2])[:results_max]
    return [event for _, _, event in ordered]


def failed_items(
    history: History, run_id: str, *, after_index: int, results_max: int
) -> list[CallError]:
    """Return a page of the items of one loop epoch that failed, in item order."""
    ended = item_results(history, run_id, after_index=after_index, results_max=len(history))
    return [event for event in ended if isinstance(event, CallError)][:results_max]


def frame_results(
    history: History, stage_id: str, *, after: tuple[int, int], results_max: int
) -> list[FrameEnd]:
    """Return a page of the outcomes of one stage's frames, by slot and frame index."""
    found = [
        ((event.slot, event.frame_index), event)
        for envelope in history
        if isinstance(event := envelope.event, FrameEnd)
        and event.stage_id == stage_id
        and (event.slot, event.frame_index) > after
    ]
    return [one for _, one in sorted(found, key=lambda item: item[0])[:results_max]]


def by_key(history: History, key: str) -> Envelope | None:
    """Return the event that took effect under an idempotency key, or None when none has."""
    return next((one for one in history if one.idempotency_key == key), None)


def outcome(history: History, run_id: str) -> Envelope | None:
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


def trace(history: History, step: str, *, links_max: int) -> list[Link]:
    """Return the latest run of a step, the run whose end started it, and so on, back."""
    links: list[Link] = []
    entered = tracing.latest_entry(history, step)
    while entered is not None and len(links) < links_max:
        ended = outcome(history, tracing.entry_of(entered).run_id)
        links.append(tracing.link(entered, ended))
        entered = tracing.producer(history, entered)
    return links


def version_at(history: Events, at: datetime) -> int:
    """Return the latest version whose event time is not after an instant; 0 for none."""
    return max((one.stream_version for one in history if one.event_time <= at), default=0)


def version_of(history: Events, event_id: EventId) -> int | None:
    """Return the version of an event, or None when the history has no such event."""
    return next((one.stream_version for one in history if one.event_id == event_id), None)


def buckets(history: Events, *, buckets: int) -> list[Bucket]:
    """Cut the time of a run into equal spans and return those with events, in order."""
    if not history:
        return []
    times = [one.event_time for one in history]
    low, width = min(times), max(max(times) - min(times), timedelta(microseconds=1))
    placed: dict[int, list[Envelope | StoredEvent]] = {}
    for one in history:
        number = min(int((one.event_time - low) / width * buckets), buckets - 1)
        placed.setdefault(number, []).append(one)
    return [_bucket(number, placed[number]) for number in sorted(placed)]


def _bucket(number: int, events: Events) -> Bucket:
    versions = [one.stream_version for one in events]
    times = [one.event_time for one in events]
    return Bucket(
        number=number,
        events=len(events),
        first_version=min(versions),
        last_version=max(versions),
        began_at=min(times),
        ended_at=max(times),
    )
