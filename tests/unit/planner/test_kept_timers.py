"""A turn that fails costs no timer: what no message brings again is decided on later."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support import informers
from tests.support.one_shard import World, assert_sound

from noetl_contracts import codec
from noetl_contracts.commands.waits import TimeWait
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import Append, AppendResult
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests import facts
from noetl_messaging.memory.consumer import MemoryConsumer, MemoryDelivery
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_planner.facts import fact_intake
from noetl_storage.memory.ledger import MemoryLedger
from noetl_storage.ports.errors import StorageUnavailable, VersionConflict

WAIT_S = 5.0
KEPT = PayloadRef(uri="noetl://kept", sha256="0" * 64, media_type="m", payload_bytes=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path, {"waits": "  - {step: w, tool: {kind: noop}}\n"})
    yield opened
    opened.close()


def tell_parked(world: World, execution_id: ExecutionId, *, wait_s: float = WAIT_S) -> None:
    """Send that an execution's command waits for so long."""
    (live,) = world.state(execution_id).commands.values()
    until = world.clock.now() + timedelta(seconds=wait_s)
    parked = facts.CommandParked(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=informers.WORKER,
        resume_ref=KEPT,
        wait=TimeWait(key="1/t", task="t", timeout_s=wait_s, until=until, reason="retry"),
    )
    world.send(codec.encode_json(world.batch(execution_id, parked)))


def park_command(world: World) -> ExecutionId:
    """Have an execution wait for `WAIT_S`; return its id."""
    execution_id = world.begin("waits")
    tell_parked(world, execution_id)
    world.run(world.planner.run_turn())
    return execution_id


def list_kinds(world: World, execution_id: ExecutionId) -> list[str]:
    return [get_event_type(item.event) for item in world.history(execution_id)]


@pytest.mark.parametrize(
    ("adapter", "call", "failure"),
    [
        (MemoryConsumer, "fetch_batch", MessagingUnavailable),
        (MemoryLedger, "append", StorageUnavailable),
    ],
)
def test_a_timer_outlasts_a_turn_that_fails(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    adapter: type[object],
    call: str,
    failure: type[Exception],
) -> None:
    execution_id = park_command(world)

    async def refuse(*_: object, **__: object) -> None:
        raise failure("away")

    world.clock.advance_by(WAIT_S + 1)
    with monkeypatch.context() as patched:
        patched.setattr(adapter, call, refuse)
        with pytest.raises(failure):
            world.run(world.planner.run_turn())
    world.clock.advance_by(fact_intake.OWN_DELAY_S)
    world.run(world.planner.run_turn())

    assert_sound(world, execution_id)
    assert list_kinds(world, execution_id)[-1] == "command.resumed"


async def refuse_settlement(*_: object, **__: object) -> None:
    raise MessagingUnavailable("away")


def fail_settlements(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a turn that commits, and whose deliveries can be settled in no way."""
    with monkeypatch.context() as patched:
        for call in ("ack", "nak"):
            patched.setattr(MemoryDelivery, call, refuse_settlement)
        with pytest.raises(MessagingUnavailable):
            world.run(world.planner.run_turn())


def test_a_timer_is_set_though_an_earlier_delivery_of_its_turn_is_not_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_ids = [world.begin("waits"), world.begin("waits")]
    for execution_id in execution_ids:
        tell_parked(world, execution_id, wait_s=WAIT_S - 2)
    fail_settlements(world, monkeypatch)

    # Before the broker brings anything again.
    world.clock.advance_by(WAIT_S - 1)
    world.run(world.planner.run_turn())

    for execution_id in execution_ids:
        assert_sound(world, execution_id)
        assert list_kinds(world, execution_id)[-1] == "command.resumed"


def test_timers_are_kept_where_executions_of_a_turn_are_committed_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = park_command(world), park_command(world)
    append = MemoryLedger.append

    async def append_one(ledger: MemoryLedger, change: Append) -> AppendResult:
        if len(change.streams) > 1:
            raise VersionConflict("one of them moved")
        return await append(ledger, change)

    world.clock.advance_by(WAIT_S + 1)
    world.send(codec.encode_json(world.batch(first, facts.TimerDue())))
    with monkeypatch.context() as patched:
        patched.setattr(MemoryLedger, "append", append_one)
        fail_settlements(world, monkeypatch)
    assert list_kinds(world, second)[-1] == "command.parked"
    world.clock.advance_by(fact_intake.OWN_DELAY_S)
    world.run(world.planner.run_turn())

    for execution_id in (first, second):
        assert_sound(world, execution_id)
        assert list_kinds(world, execution_id)[-1] == "command.resumed"
