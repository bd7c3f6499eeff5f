"""Who asked for what a history records, as its events name them inside their checksums."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.stored_event import StoredEvent


class EventActor(Struct, frozen=True, kw_only=True):
    """The actor of one event that answers a request."""

    version: int
    event_type: str
    actor: Actor


def list_event_actors(events: Iterable[StoredEvent]) -> Iterator[EventActor]:
    """Yield who asked for each event that answers a request; `unknown` where none was kept."""
    for event in events:
        kind = stored_event.get_stored_type(event)
        actor = actors.upcast_actor(kind, event.meta)
        if actor is not None:
            yield EventActor(version=event.stream_version, event_type=kind, actor=actor)


def find_unreadable_actor(events: Iterable[StoredEvent]) -> StoredEvent | None:
    """Return the first event whose actor is none that this release can read, None for none."""
    for event in events:
        stored_actor = event.meta.get(actors.META_KEY)
        if stored_actor is None:
            continue
        try:
            codec.convert_value(stored_actor, Actor)
        except msgspec.ValidationError:
            return event
    return None


def describe_actor(event_actor: EventActor) -> str:
    """Say who asked for an event, as `1 playbook.initialized: person Ada (ada)`."""
    return f"{event_actor.version} {event_actor.event_type}: {_describe_who(event_actor.actor)}"


def _describe_who(actor: Actor) -> str:
    text = f"{actor.kind} {actor.short_name}" if actor.short_name != actor.kind else str(actor.kind)
    if actor.id and actor.id != actor.short_name:
        text += f" ({actor.id})"
    if actor.key_prefix:
        text += f" with key {actor.key_prefix}"
    if actor.on_behalf_of is not None:
        text += f", for {_describe_who(actor.on_behalf_of)}"
    return text
