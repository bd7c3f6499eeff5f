"""Evidence names who asked, and an actor that cannot be read is told."""

from typing import Any

from msgspec import structs
from tests.support.builders import a_single_step

from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay.audit import event_actors

ADA = Actor(kind=ActorKind.PERSON, id="a1", name="Ada", issuer="https://id", via=Via.CLI)


def a_history(meta: dict[str, Any]) -> list[StoredEvent]:
    history = [stored_event.to_stored_event(event) for event in a_single_step().envelopes]
    return [structs.replace(history[0], meta=meta), *history[1:]]


def test_the_start_names_who_asked() -> None:
    (named,) = event_actors.list_event_actors(a_history(actors.build_actor_meta(ADA)))
    assert event_actors.describe_actor(named) == "1 playbook.initialized: person Ada (a1)"


def test_a_cause_is_named_behind_what_it_caused() -> None:
    nightly = actors.build_caused_actor(ActorKind.SCHEDULE, Via.SCHEDULE, "7", "nightly", ADA)
    (named,) = event_actors.list_event_actors(a_history(actors.build_actor_meta(nightly)))
    assert event_actors.describe_actor(named) == (
        "1 playbook.initialized: schedule nightly (7), for person Ada (a1)"
    )
    again = actors.build_caused_actor(ActorKind.EXECUTION, Via.CHILD, "9", "p", nightly)
    assert again.on_behalf_of is not None
    assert again.on_behalf_of.on_behalf_of is None


def test_an_event_of_an_earlier_release_has_an_unknown_actor() -> None:
    (named,) = event_actors.list_event_actors(a_history({}))
    assert named.actor == actors.UNKNOWN


def test_an_actor_of_a_later_release_is_unknown_and_told() -> None:
    history = a_history({"actor": {"kind": "robot", "id": "r2"}})
    (named,) = event_actors.list_event_actors(history)
    assert named.actor == actors.UNKNOWN
    assert event_actors.find_unreadable_actor(history) == history[0]
    assert event_actors.find_unreadable_actor(a_history({})) is None
