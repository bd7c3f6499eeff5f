"""The notifier over a memory store: what it starts, and what a kill leaves to the next one."""

from typing import Any

import pytest
from tests.conformance.storage.test_notifications import a_rule
from tests.conformance.storage.test_projections import execution_row
from tests.support.storage import an_execution
from tests.unit.reaper.test_scheduling import NOON, PLACE, World

from noetl_contracts import codec
from noetl_contracts.identity.actors import ActorKind
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests.facts import ExecutionRequested, FactBatch
from noetl_contracts.requests.notifications import Cause
from noetl_contracts.requests.quiet_hours import QuietHours
from noetl_reaper.sweeps.node_lease import NodeLease
from noetl_reaper.sweeps.notifier import Notifier, NotifierLimits
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.notifications import MemoryNotifications


class KilledError(Exception):
    """The process ended here."""


class KilledAfterSending(MemoryNotifications):
    """A store whose caller dies right after the transaction."""

    async def send_notification(self, *arguments: Any) -> bool:
        await super().send_notification(*arguments)
        raise KilledError

    async def hold_notification(self, *arguments: Any) -> bool:
        await super().hold_notification(*arguments)
        raise KilledError

    async def send_held_notifications(self, *arguments: Any) -> bool:
        await super().send_held_notifications(*arguments)
        raise KilledError


def a_notifier(world: World, owner: str = "one", *, is_killed: bool = False) -> Notifier:
    kind = KilledAfterSending if is_killed else MemoryNotifications
    return Notifier(
        notifications=kind(world.store),
        hints=world.broker,
        clock=world.clock,
        numbers=NodeLease(MemoryInstances(world.store), owner=owner, lease_s=60, clock=world.clock),
        limits=NotifierLimits(
            lookback_s=60.0, notifications_max=2, routes=IngestRoutes(shard_count=1)
        ),
    )


async def fail(world: World, count: int = 1, **rule: Any) -> None:
    await MemoryNotifications(world.store).put_rule(a_rule(**rule))
    rows = world.store.row_by_key_by_surface.setdefault("execution", {})
    for _ in range(count):
        execution = an_execution()
        row = execution_row(execution, status="FAILED", path="demo/a", ended_at=NOON)
        rows[(execution,)] = row


def list_starts(world: World) -> list[FactBatch]:
    return [
        codec.decode_as(stored.request.data, FactBatch)
        for stored in world.store.request_by_id.values()
    ]


async def test_a_failure_starts_the_rules_playbook_once() -> None:
    world = World()
    await fail(world)
    for owner in ("one", "two", "one"):
        await a_notifier(world, owner).send_due()
    (batch,) = list_starts(world)
    (fact,) = batch.facts
    assert isinstance(fact, ExecutionRequested)
    assert (fact.path, fact.requested_by) == ("ops/mail", "notification ops")
    assert fact.workload["notification"]["cause"] == "failed"
    assert batch.actor is not None
    assert (batch.actor.kind, batch.actor.name) == (ActorKind.TRIGGER, "ops")


async def test_nothing_is_lost_or_sent_twice_by_a_kill_between_two_of_them() -> None:
    world = World()
    await fail(world, count=3)
    with pytest.raises(KilledError):
        await a_notifier(world, is_killed=True).send_due()
    assert len(list_starts(world)) == 1
    for _ in range(3):
        await a_notifier(world, "two").send_due()
    sent = await MemoryNotifications(world.store).list_sent_notifications(
        notifications_max=9, **PLACE
    )
    assert len(list_starts(world)) == len({item.execution_id for item in sent}) == 3


async def test_one_turn_sends_no_more_than_its_limit() -> None:
    world = World()
    await fail(world, count=3)
    await a_notifier(world).send_due()
    assert len(list_starts(world)) == 2


async def test_what_ended_before_the_lookback_is_left() -> None:
    world = World()
    await fail(world)
    world.clock.advance_by(61)
    await a_notifier(world).send_due()
    assert list_starts(world) == []


# It is noon.
QUIET = QuietHours(start="11:00", end="12:01")


def read_note(batch: FactBatch) -> dict[str, Any]:
    (fact,) = batch.facts
    assert isinstance(fact, ExecutionRequested)
    note: dict[str, Any] = fact.workload["notification"]
    return note


async def test_what_comes_in_quiet_hours_is_sent_as_one_when_they_end() -> None:
    world = World()
    await fail(world, count=3, quiet=QUIET)
    for owner in ("one", "two", "one"):
        await a_notifier(world, owner).send_due()
    assert list_starts(world) == []
    world.clock.advance_by(60)
    for owner in ("two", "one"):
        await a_notifier(world, owner).send_due()
    (batch,) = list_starts(world)
    told = read_note(batch)
    assert (told["cause"], told["rule"], len(told["held"])) == ("held", "ops", 3)
    assert {item["cause"] for item in told["held"]} == {"failed"}


async def test_what_is_held_outlives_the_lookback() -> None:
    world = World()
    await fail(world, quiet=QuietHours(start="11:00", end="24:00"))
    await a_notifier(world).send_due()
    assert list_starts(world) == []
    world.clock.advance_by(12 * 3600)
    await a_notifier(world, "two").send_due()
    assert len(list_starts(world)) == 1


async def test_a_kill_in_or_after_quiet_hours_loses_nothing_and_sends_nothing_twice() -> None:
    world = World()
    await fail(world, count=2, quiet=QUIET)
    for _ in range(2):
        with pytest.raises(KilledError):
            await a_notifier(world, is_killed=True).send_due()
    world.clock.advance_by(60)
    with pytest.raises(KilledError):
        await a_notifier(world, is_killed=True).send_due()
    await a_notifier(world, "two").send_due()
    (batch,) = list_starts(world)
    assert len(read_note(batch)["held"]) == 2


async def test_urgent_causes_break_the_quiet() -> None:
    world = World()
    await fail(world, quiet=QUIET, urgent=(Cause.FAILED,))
    await a_notifier(world).send_due()
    (batch,) = list_starts(world)
    assert read_note(batch)["cause"] == "failed"


async def test_what_is_held_is_sent_when_its_rule_has_no_quiet_hours_any_more() -> None:
    world = World()
    await fail(world, quiet=QUIET)
    await a_notifier(world).send_due()
    await MemoryNotifications(world.store).put_rule(a_rule())
    await a_notifier(world).send_due()
    assert len(list_starts(world)) == 1
