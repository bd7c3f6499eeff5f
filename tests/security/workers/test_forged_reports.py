"""A worker speaks for what it holds, and for nothing else, whatever its messages say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs
from tests.support import informers
from tests.support.one_shard import ORGANIZATION, TENANT, World

from noetl_contracts import codec, subjects
from noetl_contracts.events import get_event_type
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.ids import ExecutionId, WorkerId
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import Fact
from noetl_contracts.subjects import Reporter
from noetl_messaging.streams.ports import DeadLetter
from noetl_replay.state import CommandState

HOLDER, THIEF = Reporter("default", "ann"), Reporter("default", "bob")
OTHER_POOL = Reporter("gpu", "ann")
PLAYBOOKS = {
    "step": "  - {step: s, tool: {kind: noop}}\n",
    "rows": (
        "  - step: r\n    loop: {in: '{{ [1, 2, 3] }}', iterator: x, spec: {frame: {size: 2}}}\n"
        "    tool: {kind: python, code: 'def main(): return 1'}\n"
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path, PLAYBOOKS)
    yield opened
    opened.close()


def report(
    world: World, execution_id: ExecutionId, reporter: Reporter, *told: Fact, **changes: Any
) -> list[DeadLetter]:
    """Publish facts as the broker lets a worker publish them; return what was buried."""
    before = len(world.buried())
    batch = world.batch(execution_id, *told, **changes)
    subject = subjects.build_report_subject(0, TENANT, ORGANIZATION, reporter)
    world.send(codec.encode_json(batch), subject=subject)
    world.settle()
    return world.buried()[before:]


def held(world: World, playbook: str = "step") -> tuple[ExecutionId, CommandState]:
    """Begin an execution whose first command the holder has started."""
    execution_id = world.begin(playbook)
    live = next(iter(world.state(execution_id).commands.values()))
    started = facts.CommandStarted(
        command_id=live.command_id, attempt=live.attempt, worker_id=WorkerId("ann.1")
    )
    assert report(world, execution_id, HOLDER, started) == []
    (holding,) = [
        command
        for command in world.state(execution_id).commands.values()
        if command.command_id == live.command_id
    ]
    assert holding.worker_id == "ann.1"
    return execution_id, holding


def in_name_of(fact: Fact, worker_id: str) -> Fact:
    has_name = "worker_id" in fact.__struct_fields__
    return structs.replace(fact, worker_id=worker_id) if has_name else fact


REPORTS = (
    *("CommandStarted", "CommandHeartbeat", "CommandCompleted", "CommandFailed", "CommandStopped"),
    *("ChunkEmitted", "CommandParked", "FrameOpened", "FrameClosed", "SlotDry"),
)
REQUESTS = (
    *("CancelRequested", "PauseRequested", "ResumeRequested", "CtxWriteRequested", "TimerDue"),
    *("ExecutionRequested", "ItemsCollected", "PartsCollected", "MessageArrived", "ChildEnded"),
)


@pytest.mark.parametrize("playbook", PLAYBOOKS)
@pytest.mark.parametrize("name", ["ann.1", "bob.1"])
def test_nobody_reports_what_another_worker_holds(world: World, playbook: str, name: str) -> None:
    """In the holder's name, or in the thief's own."""
    execution_id, _ = held(world, playbook)
    before = world.history(execution_id)
    state = world.state(execution_id)
    running = {command.command_id for command in state.commands.values() if command.worker_id}
    forged = [
        in_name_of(fact, name)
        for fact in informers.all_facts(state)
        if type(fact).__name__ in REPORTS and getattr(fact, "command_id", None) in running
    ]
    assert {type(fact).__name__ for fact in forged} >= {*REPORTS} - {"FrameOpened", "FrameClosed"}
    for fact in forged:
        (dead_letter,) = report(world, execution_id, THIEF, fact)
        assert dead_letter.reason.startswith("ReportRefused: worker 'bob'")
        assert dead_letter.subject.endswith(".worker.default.bob")
    assert world.history(execution_id) == before


def test_a_worker_of_another_pool_reports_nothing(world: World) -> None:
    execution_id = world.begin("step")
    before = world.history(execution_id)
    for fact in informers.all_facts(world.state(execution_id)):
        if type(fact).__name__ in REPORTS:
            (dead_letter,) = report(world, execution_id, OTHER_POOL, in_name_of(fact, "ann.1"))
            assert "pool 'default'" in dead_letter.reason
    assert world.history(execution_id) == before


def test_a_worker_asks_for_nothing(world: World) -> None:
    execution_id, _ = held(world)
    before = world.history(execution_id)
    facts = [
        fact
        for fact in informers.all_facts(world.state(execution_id))
        if type(fact).__name__ in REQUESTS
    ]
    assert {type(fact).__name__ for fact in facts} == {*REQUESTS}
    for fact in facts:
        (dead_letter,) = report(world, execution_id, HOLDER, fact)
        assert (
            "is a service's to ask" in dead_letter.reason
            or "the planner's own" in dead_letter.reason
        )
    assert world.history(execution_id) == before


def test_a_worker_settles_no_request(world: World) -> None:
    """A start that somebody waits for would count as begun."""
    execution_id, live = held(world)
    beat = facts.CommandHeartbeat(
        command_id=live.command_id, attempt=live.attempt, worker_id=WorkerId("ann.1")
    )
    (dead_letter,) = report(world, execution_id, HOLDER, beat, request_id="r-1")
    assert "settles a request" in dead_letter.reason


def test_a_worker_reports_in_nobodys_name(world: World) -> None:
    """The history would say that a person did it."""
    execution_id, live = held(world)
    beat = facts.CommandHeartbeat(
        command_id=live.command_id, attempt=live.attempt, worker_id=WorkerId("ann.1")
    )
    actor = Actor(kind=ActorKind.PERSON, id="boss", via=Via.CONSOLE)
    (dead_letter,) = report(world, execution_id, HOLDER, beat, actor=actor)
    assert "names an actor" in dead_letter.reason


def test_a_loss_is_believed_of_the_holder_and_of_others_once_it_is_silent(world: World) -> None:
    execution_id, live = held(world)
    lost = facts.CommandLost(command_id=live.command_id, attempt=1, reason="redelivered")
    before = world.history(execution_id)
    assert report(world, execution_id, THIEF, lost) == []
    assert world.history(execution_id) == before
    world.clock.advance_by(30)
    assert report(world, execution_id, THIEF, lost) == []
    assert get_event_type(world.history(execution_id)[-1].event) == "command.reissued"

    execution_id, live = held(world)
    lost = facts.CommandLost(
        command_id=live.command_id, attempt=1, reason="released", is_release=True
    )
    report(world, execution_id, HOLDER, lost)
    assert get_event_type(world.history(execution_id)[-1].event) == "command.reissued"


def test_changed_files_are_the_holders_to_report(world: World) -> None:
    execution_id, live = held(world)
    changed = facts.FilesChanged(command_id=live.command_id, attempt=live.attempt, entries=9)
    (dead_letter,) = report(world, execution_id, THIEF, changed)
    assert "ReportRefused" in dead_letter.reason
    late = structs.replace(changed, attempt=live.attempt + 1)
    assert report(world, execution_id, THIEF, late) == []
    assert world.state(execution_id).file_entries == 0
    assert report(world, execution_id, HOLDER, changed) == []
    assert world.state(execution_id).file_entries == 9


def test_true_facts_of_a_message_count_beside_a_forged_one(world: World) -> None:
    execution_id, live = held(world)
    mine = {"command_id": live.command_id, "attempt": live.attempt, "worker_id": WorkerId("ann.1")}
    forged = facts.CtxWriteRequested(request_id="c", patch={"k": 1})
    done = facts.CommandCompleted(**mine, result=informers.RESULT)
    (dead_letter,) = report(world, execution_id, HOLDER, forged, done)
    assert "CtxWriteRequested" in dead_letter.reason
    assert get_event_type(world.history(execution_id)[-1].event) == "playbook.completed"
    assert world.state(execution_id).ctx == {}


def test_refused_reports_are_logged_once_a_minute(world: World) -> None:
    execution_id, live = held(world)
    forged = facts.CommandFailed(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=WorkerId("bob"),
        error=informers.ERROR,
    )
    with capture_logs() as logged:
        for _ in range(5):
            report(world, execution_id, THIEF, forged)
        world.clock.advance_by(61)
        report(world, execution_id, THIEF, forged)
    lines = [line for line in logged if line["event"] == "reports refused"]
    assert [line["reports"] for line in lines] == [1, 5]
    assert [line for line in logged if line["event"] == "fact moved to the dead letters"] == []
