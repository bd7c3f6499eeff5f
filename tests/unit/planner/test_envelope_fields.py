"""Each event says who wrote it, what caused it, and the flow that it belongs to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.one_shard import World

from noetl_chassis.observability import span_recording
from noetl_contracts import codec, locators
from noetl_contracts.commands.waits import ChildWait
from noetl_contracts.events import command_events, execution_events, get_event_type, step_events
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId, WorkerId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_replay import snapshot
from noetl_replay.state import ExecutionState
from noetl_storage.ports import history_ports

WORKFLOW = (
    "  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}\n"
    "  - {step: b, tool: {kind: noop}}\n"
)
CALLER = "  - {step: call, tool: {kind: playbook, path: two}}\n"
PLACE = {"cluster": "prod-1", "node": "n7"}
LOCATOR = locators.build_worker_locator(TenantId("default"), OrganizationId("default"), PLACE, "w1")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path, {"two": WORKFLOW, "caller": CALLER})
    yield opened
    opened.close()


def issued(world: World, execution_id: ExecutionId) -> command_events.CommandIssued:
    return [
        item.event
        for item in world.history(execution_id)
        if isinstance(item.event, command_events.CommandIssued)
    ][-1]


def report(world: World, execution_id: ExecutionId, *told: facts.Fact, key: str) -> list[Envelope]:
    """Have a worker report; return the events that this led to."""
    before = len(world.history(execution_id))
    world.send(codec.encode_json(world.batch(execution_id, *told, key=key, producer="w1")))
    world.settle()
    return world.history(execution_id)[before:]


def started(
    work: command_events.CommandIssued, locator: str | None = LOCATOR
) -> facts.CommandStarted:
    return facts.CommandStarted(
        command_id=work.command_id, attempt=1, worker_id=WorkerId("w1"), worker_locator=locator
    )


def completed(work: command_events.CommandIssued) -> facts.CommandCompleted:
    result = ResultEnvelope(status="ok")
    return facts.CommandCompleted(
        command_id=work.command_id, attempt=1, worker_id=WorkerId("w1"), result=result
    )


def by_type(events: list[Envelope]) -> dict[str, Envelope]:
    return {get_event_type(event.event): event for event in events}


def test_what_a_worker_reported_bears_its_locator_and_what_was_decided_the_planners(
    world: World,
) -> None:
    execution_id = world.begin("two")
    work = issued(world, execution_id)
    report(world, execution_id, started(work), key="k-started")
    told = by_type(report(world, execution_id, completed(work), key="k-completed"))
    assert told["command.completed"].producer == "cluster/prod-1/node/n7/worker/w1"
    assert history_ports.build_shown_event(told["command.completed"]).producer == LOCATOR
    assert {told[kind].producer for kind in ("call.done", "step.exit", "command.issued")} == {"p"}


@pytest.mark.parametrize(
    "locator",
    [
        *(None, "w1", "noetl://a b", "noetl://" + "x" * 3000, "\0"),
        "noetl://tenant/default/org/default/planner/p",
        "noetl://tenant/default/org/default/worker/w2",
    ],
)
def test_a_worker_that_says_no_place_is_named_by_its_id(world: World, locator: str | None) -> None:
    execution_id = world.begin("two")
    told = report(world, execution_id, started(issued(world, execution_id), locator), key="k")
    assert told[0].producer == "worker/w1"


def test_an_event_names_the_message_that_caused_it_or_the_event_that_took_it_up(
    world: World,
) -> None:
    execution_id = world.begin("two")
    work = issued(world, execution_id)
    first, *rest = report(world, execution_id, started(work), completed(work), key="k-both")
    second = next(item for item in rest if isinstance(item.event, command_events.CommandCompleted))
    assert (first.causation_id, second.causation_id) == ("k-both", "k-both")
    after = [item for item in rest if item.stream_version > second.stream_version]
    assert len(after) > 2
    assert {item.causation_id for item in after} == {second.event_id}


def test_the_first_event_names_the_trace(world: World) -> None:
    with span_recording.suspend_span_recording():
        execution_id = world.begin("two")
    first, *rest = world.history(execution_id)
    assert isinstance(first.event, execution_events.PlaybookInitialized)
    assert first.meta["traceparent"].startswith("00-")
    assert [item.meta for item in rest] == [{}] * len(rest)


def test_an_execution_is_a_flow_of_its_own_unless_its_request_names_one(world: World) -> None:
    own = world.begin("two")
    assert {item.correlation_id for item in world.history(own)} == {own}
    named = ExecutionId(str(world.adapters.snowflake.next_id()))
    request = ExecutionRequested(path="two", correlation_id="order-7")
    world.send(codec.encode_json(world.batch(named, request)))
    world.settle()
    report(world, named, started(issued(world, named)), key="k")
    assert {item.correlation_id for item in world.history(named)} == {"order-7"}


@pytest.mark.parametrize("name", ["", "a" * 201, "a\nb", "a\0"])
def test_a_request_whose_flow_has_no_usable_name_becomes_a_dead_letter(
    world: World, name: str
) -> None:
    execution_id = ExecutionId(str(world.adapters.snowflake.next_id()))
    request = ExecutionRequested(path="two", correlation_id=name)
    world.send(codec.encode_json(world.batch(execution_id, request)))
    world.settle()
    (dead_letter,) = world.run(world.letters.list_letters(letters_max=9))
    assert "correlation_id is no name of a flow" in dead_letter.reason


def test_a_child_and_its_children_belong_to_the_flow_of_the_root(world: World) -> None:
    root = world.begin("caller")
    work = issued(world, root)
    wait = ChildWait(key="c", task="t", path="two", timeout_s=9)
    ref = PayloadRef(uri="noetl://x", sha256="0" * 64, media_type="m", payload_bytes=1)
    parks = facts.CommandParked(
        command_id=work.command_id,
        attempt=1,
        worker_id=WorkerId("w1"),
        resume_ref=ref,
        wait=wait,
    )
    report(world, root, started(work), parks, key="k")
    (child,) = world.state(root).children
    world.settle()
    history = world.history(child)
    assert isinstance(history[0].event, execution_events.PlaybookInitialized)
    assert {item.correlation_id for item in history} == {root}


def test_a_flow_outlives_a_snapshot_and_a_state_without_one_has_the_checksum_that_it_had(
    world: World,
) -> None:
    named = ExecutionId(str(world.adapters.snowflake.next_id()))
    request = ExecutionRequested(path="two", correlation_id="order-7")
    world.send(codec.encode_json(world.batch(named, request)))
    world.settle()
    restored = snapshot.restore_state(snapshot.build_snapshot(world.state(named)))
    assert restored is not None
    assert restored.correlation_id == "order-7"
    plain: ExecutionState = world.state(world.begin("two"))
    assert b"correlation_id" not in snapshot.build_snapshot(plain).state


def test_steps_follow_each_other_whatever_caused_them(world: World) -> None:
    execution_id = world.begin("two")
    work = issued(world, execution_id)
    report(world, execution_id, started(work), completed(work), key="k")
    entered = [
        item.event.step
        for item in world.history(execution_id)
        if isinstance(item.event, step_events.StepEnter)
    ]
    assert entered == ["a", "b"]
