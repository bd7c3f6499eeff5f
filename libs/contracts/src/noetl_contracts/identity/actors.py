"""The actor of an event: who asked for what it records, by which way, and who caused it first.

An event stores its actor in `meta`, which its checksum covers, and only where it answers a
request. What follows from that event has the event as its cause. Events of earlier releases have
no actor: they are read with one of kind `unknown`.
"""

import itertools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl_contracts import codec

# The key of an event's actor in its `meta`.
META_KEY = "actor"
NAME_CHARACTERS_MAX = 256


class ActorKind(StrEnum):
    """What asked."""

    PERSON = "person"
    SERVICE_ACCOUNT = "service_account"
    OWNER = "owner"
    WORKER = "worker"
    SERVICE = "service"
    EXECUTION = "execution"
    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    TRIGGER = "trigger"
    ANONYMOUS = "anonymous"
    UNKNOWN = "unknown"


class Via(StrEnum):
    """The way on which a request came."""

    API = "api"
    CLI = "cli"
    CONSOLE = "console"
    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    TRIGGER = "trigger"
    CHILD = "child"
    WORKER = "worker"


class Actor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asked for something; `id` is unique for the kind and its `issuer`.

    `key_prefix` names the API key that was shown, and `maker` is who made the first of the keys
    that led to it; of a key of an earlier release the maker's name alone is known, and its kind is
    `unknown`. `on_behalf_of` is who caused it first: it has no `on_behalf_of` of its own.
    """

    kind: ActorKind
    id: str = ""
    name: str = ""
    issuer: str = ""
    via: Via | None = None
    key_prefix: str = ""
    maker: "Actor | None" = None
    on_behalf_of: "Actor | None" = None

    @property
    def short_name(self) -> str:
        """Return the shortest text by which a person recognises this actor."""
        return self.name or self.id or str(self.kind)


UNKNOWN = Actor(kind=ActorKind.UNKNOWN)


def get_first_cause(actor: Actor) -> Actor:
    """Return who caused first what an actor asks for."""
    return actor.on_behalf_of or actor


def is_same_actor(actor: Actor, other: Actor) -> bool:
    """Tell whether two actors are the same person or account, on the same way or another."""
    return (actor.kind, actor.issuer, actor.id) == (other.kind, other.issuer, other.id)


def is_one_person(actor: Actor, other: Actor) -> bool:
    """Tell whether two actors are the same, or one person made the keys that they use."""
    people = [person for person in (actor, actor.maker) if person is not None]
    others = [person for person in (other, other.maker) if person is not None]
    return (
        any(itertools.starmap(is_same_actor, itertools.product(people, others)))
        or _is_named_maker(actor.maker, other)
        or _is_named_maker(other.maker, actor)
    )


def _is_named_maker(maker: Actor | None, actor: Actor) -> bool:
    """Tell whether an actor has the name of a maker of whom nothing else is known."""
    return maker is not None and maker.kind is ActorKind.UNKNOWN and maker.name == actor.short_name


def build_caused_actor(
    kind: ActorKind, via: Via, identity: str, name: str, cause: Actor | None
) -> Actor:
    """Build the actor of what a schedule, a webhook, a trigger or an execution asks for."""
    first = None if cause is None else structs.replace(get_first_cause(cause), via=None)
    return Actor(kind=kind, id=identity, name=name, via=via, on_behalf_of=first)


def build_actor_meta(actor: Actor) -> dict[str, Any]:
    """Return what an event's `meta` holds of its actor."""
    return {META_KEY: codec.to_builtins(actor)}


# Types of events that answer requests of people and of other systems, and nothing else.
ANSWERS = frozenset(
    {
        "playbook.initialized",
        "execution.cancelling",
        "execution.paused",
        "execution.resumed",
        "ctx.patched",
    }
)


def upcast_actor(event_type: str, meta: Mapping[str, Any]) -> Actor | None:
    """Return the actor of an event in today's form: `unknown` where an earlier release kept none.

    None is the actor of an event that answers no request.
    """
    return read_actor(meta) or (UNKNOWN if event_type in ANSWERS else None)


def read_actor(meta: Mapping[str, Any]) -> Actor | None:
    """Return the actor of an event's `meta`, None where it has none.

    An actor that this release does not understand is read as `unknown`: a history stays readable.
    """
    stored_actor = meta.get(META_KEY)
    if stored_actor is None:
        return None
    try:
        return codec.convert_value(stored_actor, Actor)
    except msgspec.ValidationError:
        return UNKNOWN
