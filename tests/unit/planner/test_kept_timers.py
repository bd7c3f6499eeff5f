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
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests import facts
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_planner.facts import fact_intake
from noetl_storage.memory.ledger import MemoryLedger
from noetl_storage.ports.errors import StorageUnavailable

WAIT_S = 5.0
KEPT = PayloadRef(uri="noetl://kept", sha256="0" * 64, media_type="m", payload_bytes=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path, {"waits": "  - {step: w, tool: {kind: noop}}\n"})
    yield opened
    opened.close()


def park_command(world: World) -> ExecutionId:
    """Have an execution wait for `WAIT_S`; return its id."""
    execution_id = world.begin("waits")
    (live,) = world.state(execution_id).commands.values()
    until = world.clock.now() + timedelta(seconds=WAIT_S)
    parked = facts.CommandParked(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=informers.WORKER,
        resume_ref=KEPT,
        wait=TimeWait(key="1/t", task="t", timeout_s=WAIT_S, until=until, reason="retry"),
    )
    world.send(codec.encode_json(world.batch(execution_id, parked)))
    world.run(world.planner.run_turn())
    return execution_id


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
    kinds = [get_event_type(item.event) for item in world.history(execution_id)]
    assert kinds[-1] == "command.resumed"
