"""Pages of a history's events, all of them or those whose type, step or status has a text."""

from msgspec import Struct

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import hidden_values, views
from noetl_planner.api.lookup.views import EventView

# So many are looked at for one answer, in pages.
LOOKED_AT_MAX = 20_000
PAGE_EVENTS = 1000


class FoundEvents(Struct, frozen=True, kw_only=True):
    """Events in order, and the version up to which the history was looked at."""

    events: list[EventView]
    last: int


async def find_events(
    services: ApiServices,
    execution_id: ExecutionId,
    *,
    after: int,
    text: str | None,
    events_max: int,
) -> FoundEvents:
    """Return events after a version as who asks may see them; raises a 404."""
    if text is None:
        return await _read_page(services, execution_id, after=after, events_max=events_max)
    wanted = text.lower()
    found: list[EventView] = []
    last, end = after, after + LOOKED_AT_MAX
    while last < end:
        page = await _read_page(services, execution_id, after=last, events_max=PAGE_EVENTS)
        for event in page.events:
            if len(found) >= events_max and event.version != found[-1].version:
                return FoundEvents(events=found, last=found[-1].version)
            if has_text(event, wanted):
                found.append(event)
        if page.last == last:
            break
        last = page.last
    return FoundEvents(events=found, last=last)


def has_text(event: EventView, wanted: str) -> bool:
    """Tell whether what a list shows of an event has a text, which is in small letters."""
    shown = f"{event.event_type} {event.node_name or ''} {event.status or ''}"
    return wanted in shown.lower()


async def _read_page(
    services: ApiServices, execution_id: ExecutionId, *, after: int, events_max: int
) -> FoundEvents:
    history = await services.history.ledger.read_events(
        execution_id, after_version=after, events_max=events_max
    )
    shown = await hidden_values.show_events(services, execution_id, views.view_events(history))
    return FoundEvents(events=shown, last=history[-1].stream_version if history else after)
