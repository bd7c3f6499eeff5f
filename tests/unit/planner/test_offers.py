"""Commands with large inputs are offered to the nearest worker first, and lost by nobody."""

from collections.abc import Iterable
from typing import Any

from msgspec import structs
from tests.support.planning import ROWS, PlannerHarness, done

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.ids import WorkerId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - {step: make, tool: {kind: noop}, next: {arcs: [{step: use}]}}
  - {step: use, tool: {kind: noop, input: {rows: "{{ make.rows }}"}}}
"""
FANOUT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - {step: make, tool: {kind: noop}, next: {arcs: [{step: each}]}}
  - step: each
    loop:
      in: "{{ range(2) | list }}"
      iterator: it
      spec: {mode: fanout, fanout: {max_shard_retries: 1}}
    tool: {kind: noop, input: {rows: "{{ make.rows }}"}}
"""
QUEUE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - {step: make, tool: {kind: noop}, next: {arcs: [{step: drain}]}}
  - step: drain
    loop:
      cursor: {kind: postgres, auth: db, claim: "select 1"}
      iterator: it
      spec: {mode: cursor, max_in_flight: 2}
    tool: {kind: noop, input: {rows: "{{ make.rows }}"}}
"""
WAVES = FANOUT.replace("fanout: {", "frame: {engine: spark}, fanout: {")
NEAR, FAR = WorkerId("near"), WorkerId("far")
HERE = {"zone": "z1", "node": "n1"}
THERE = {"zone": "z2", "node": "n2"}


def worker(
    name: WorkerId,
    locality: dict[str, str],
    *,
    free: int = 2,
    lane: str = "io",
    max_distance: str = "any",
) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker_id=name,
        pool="default",
        lanes=(lane,),
        running=0,
        capacity=free,
        locality=locality,
        max_distance=max_distance,
    )


def harness_of(text: str = PLAYBOOK, *, offer_s: float = 1.0) -> PlannerHarness:
    return PlannerHarness(text, limits=Limits(offer_s=offer_s))


def made(harness: PlannerHarness, workers: Iterable[WorkerHeartbeat]) -> None:
    """Make a large result on node n1, with these workers about."""
    harness.start()
    harness.workers = tuple(workers)
    (command,) = harness.sent()
    begun = facts.CommandStarted(
        command_id=command.command_id, attempt=1, worker_id=NEAR, locality=HERE
    )
    large = ResultEnvelope(status="ok", reference=ROWS)
    harness.tell(begun, structs.replace(done(command), result=large))


def started(command: Command, name: WorkerId, locality: dict[str, str]) -> facts.CommandStarted:
    return facts.CommandStarted(
        command_id=command.command_id, attempt=command.attempt, worker_id=name, locality=locality
    )


def offered(harness: PlannerHarness) -> list[tuple[WorkerId, Command]]:
    assert harness.last is not None
    return [(offer.worker_id, offer.command) for offer in harness.last.offers]


def issued(harness: PlannerHarness) -> Any:
    return harness.events("command.issued")[-1]


def test_a_command_is_offered_where_its_inputs_are_and_granted_once_it_is_taken() -> None:
    harness = harness_of()
    made(harness, [worker(FAR, THERE), worker(NEAR, HERE)])
    ((name, command),) = offered(harness)
    assert (name, harness.sent(), issued(harness).source_locality) == (NEAR, [], HERE)
    harness.tell(started(command, NEAR, HERE))
    assert harness.last is not None
    assert harness.last.granted == {command.command_id: 1}
    assert harness.events("command.started")[-1].placement.distance == "node"
    # The hint was lost: whoever asks again hears it again, and nothing else happens.
    assert harness.tell(started(command, NEAR, HERE)) == []
    assert harness.last.granted == {command.command_id: 1}
    harness.wait(60)
    assert harness.tell(facts.TimerDue()) == []
    assert harness.tell(done(command))[-1] == "playbook.completed"


def test_what_is_not_taken_in_time_goes_to_the_pool_and_the_late_worker_is_not_granted() -> None:
    harness = harness_of()
    made(harness, [worker(FAR, THERE), worker(NEAR, HERE)])
    ((_, command),) = offered(harness)
    assert harness.last is not None
    assert harness.last.wake_at is not None
    harness.tell(facts.TimerDue())
    assert harness.sent() == []
    harness.wait(1)
    assert harness.tell(facts.TimerDue()) == ["command.reissued"]
    (again,) = harness.sent()
    assert (again.command_id, again.attempt, offered(harness)) == (command.command_id, 2, [])
    assert harness.tell(started(command, NEAR, HERE)) == ["command.rejected"]
    assert harness.last.granted == {}
    harness.tell(started(again, FAR, THERE))
    assert harness.events("command.started")[-1].placement.distance == "any"
    assert harness.last.granted == {}
    # An attempt that nobody took costs none.
    lost = facts.CommandLost(command_id=command.command_id, attempt=2, reason="lease_expired")
    harness.tell(lost)
    assert harness.state.commands[command.command_id].losses == 1


def test_a_withdrawn_offer_costs_a_shard_none_of_its_attempts() -> None:
    harness = harness_of(FANOUT)
    made(harness, [worker(FAR, THERE), worker(NEAR, HERE, free=1)])
    ((name, command),) = offered(harness)
    # The second shard found no room at the nearest worker, so the next one is asked, or nobody.
    assert (name, len(harness.sent())) == (NEAR, 1)
    harness.wait(1)
    harness.tell(facts.TimerDue())
    (again,) = harness.sent()
    assert (again.command_id, again.attempt) == (command.command_id, 2)
    assert [frame.attempts for frame in harness.state.frames.values()] == [1, 1]
    assert "frame.abandoned" not in harness.types()
    (run,) = [run for run in harness.state.runs.values() if run.loop is not None]
    assert run.loop is not None
    assert run.loop.retried == 0


def test_nothing_is_offered_where_no_worker_is_nearer_or_no_input_is_large() -> None:
    for workers, offer_s in (
        ([worker(NEAR, HERE)], 1.0),
        ([worker(FAR, THERE)], 1.0),
        ([worker(FAR, HERE), worker(NEAR, HERE)], 1.0),
        ([worker(FAR, THERE), worker(NEAR, HERE, free=0)], 1.0),
        ([worker(FAR, THERE), worker(NEAR, HERE)], 0.0),
    ):
        harness = harness_of(offer_s=offer_s)
        made(harness, workers)
        assert offered(harness) == []
        assert len(harness.sent()) == 1
    small = harness_of()
    small.workers = (worker(FAR, THERE), worker(NEAR, HERE))
    small.start()
    (command,) = small.sent()
    small.tell(started(command, NEAR, HERE), done(command, 1))
    assert offered(small) == []
    assert issued(small).source_locality == {}


def test_nobody_is_offered_what_is_farther_than_it_wants() -> None:
    zone = {"zone": "z1", "node": "n3"}
    for max_distance, offers in (("node", 0), ("zone", 1), ("region", 1), ("any", 1)):
        harness = harness_of()
        made(harness, [worker(FAR, THERE), worker(NEAR, zone, max_distance=max_distance)])
        assert len(offered(harness)) == offers, max_distance
        # What is not offered is the pool's.
        assert len(harness.sent()) == 1 - offers


def test_slots_are_offered_where_the_inputs_of_their_bodies_are_as_far_as_there_is_room() -> None:
    harness = harness_of(QUEUE)
    made(harness, [worker(FAR, THERE), worker(NEAR, HERE, free=1)])
    ((name, command),) = offered(harness)
    assert (name, len(harness.sent())) == (NEAR, 1)
    harness.tell(started(command, NEAR, HERE))
    assert harness.last is not None
    assert harness.last.granted == {command.command_id: 1}
    assert harness.events("command.started")[-1].placement.distance == "node"
    # The one that took it dies: whoever has it next goes on, and nothing was lost by the offer.
    lost = facts.CommandLost(command_id=command.command_id, attempt=1, reason="lease_expired")
    assert harness.tell(lost) == ["command.reissued"]
    assert offered(harness) == []
    (again,) = harness.sent()
    assert (again.command_id, again.attempt) == (command.command_id, 2)


def test_a_slot_that_nobody_took_goes_to_the_pool_and_has_lost_nothing() -> None:
    harness = harness_of(QUEUE)
    made(harness, [worker(FAR, THERE), worker(NEAR, HERE, free=1)])
    ((_, command),) = offered(harness)
    harness.wait(1)
    assert harness.tell(facts.TimerDue()) == ["command.reissued"]
    assert [item.attempt for item in harness.sent()] == [2]
    assert harness.state.commands[command.command_id].losses == 0


def test_frames_of_the_spark_lane_are_offered_to_workers_that_have_one_with_room() -> None:
    harness = harness_of(WAVES)
    seen = [
        worker(FAR, THERE, lane="spark"),
        worker(NEAR, HERE, lane="spark", free=1),
        worker(NEAR, HERE, free=9),
    ]
    made(harness, seen)
    ((name, command),) = offered(harness)
    assert (name, command.lane, len(harness.sent())) == (NEAR, "spark", 1)
    elsewhere = harness_of(WAVES)
    made(elsewhere, [worker(FAR, THERE), worker(NEAR, HERE)])
    assert offered(elsewhere) == []


def test_what_is_on_offer_when_the_planner_starts_anew_is_withdrawn_all_the_same() -> None:
    first = harness_of()
    made(first, [worker(FAR, THERE), worker(NEAR, HERE)])
    heir = harness_of()
    heir.replay(first.history)
    heir.wait(1)
    assert heir.tell(facts.TimerDue(reason=facts.STALLED)) == ["command.reissued"]
    assert len(heir.sent()) == 1


def test_a_cancelled_execution_offers_nothing_more() -> None:
    harness = harness_of()
    made(harness, [worker(FAR, THERE), worker(NEAR, HERE)])
    harness.tell(facts.CancelRequested())
    harness.wait(1000)
    harness.tell(facts.TimerDue())
    assert harness.state.is_terminal()
    assert harness.state.offered == {}
    assert harness.sent() == []
