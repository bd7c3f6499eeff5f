"""Histories as the planner itself decides them, for the parts that are long to write by hand."""

from collections.abc import Iterator

from msgspec import UNSET, structs
from tests.support.builders import History
from tests.support.planning import PlannerHarness, done
from tests.support.slices import an_error, frame_done, frame_failed, gathered, level_gathered, lost
from tests.support.streams import begun, chunk, failed, gather, playbook

from noetl_contracts.commands.command_work import BatchWork
from noetl_contracts.commands.loop_collections import UnitsEnd
from noetl_contracts.commands.state_values import ProposedState, StateType, StateValue
from noetl_contracts.commands.task_metrics import ELAPSED_MS
from noetl_contracts.commands.worker_pools import Priority, WorkerHeartbeat
from noetl_contracts.ids import ExecutionId, WorkerId
from noetl_contracts.requests import facts

SHARDS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: each
    loop:
      in: "{{ 7 }}"
      iterator: it
      spec: {mode: fanout, max_in_flight: 9, fanout: {max_shard_retries: 1, allow_partial: true}}
    tool: {kind: noop}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: each, iterator: parts, spec: {mode: tree, fan_in: 4, accept_partial: true}}
    tool: {kind: noop}
"""
CHUNKS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: each
    loop: {in: "{{ none }}", iterator: it, spec: {mode: chunked}}
    tool: {kind: noop}
    next: {arcs: [{step: again}]}
  - step: again
    loop: {in: "{{ 9 }}", iterator: it, spec: {mode: chunked, chunk_size: 5, max_in_flight: 2}}
    tool: {kind: noop}
"""
RESIZED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: each
    loop:
      in: "{{ 5 }}"
      iterator: it
      spec: {mode: parallel, max_in_flight: "{{ ctx.width | default(2) }}"}
    tool: {kind: noop}
    next: {arcs: [{step: local}]}
  - step: local
    loop:
      in: "{{ 6 }}"
      iterator: it
      spec: {mode: fanout, fanout: {shard_size: 2, allow_partial: true}, policy: {exec: local}}
    tool: {kind: noop}
"""


def shards() -> PlannerHarness:
    """A fan-out with a shard that fails once and one that fails for good; then a tree."""
    harness = PlannerHarness(SHARDS)
    harness.start()
    once, twice, *rest = harness.sent()
    harness.tell(frame_failed(once), frame_failed(twice), *(frame_done(item) for item in rest))
    harness.wait(1)
    harness.tell(facts.TimerDue())
    once, twice = harness.sent()
    harness.tell(frame_done(once, patch={"seen": 1}), frame_failed(twice))
    harness.tell(gathered(harness))
    harness.tell(*(frame_done(item) for item in harness.sent()))
    harness.tell(level_gathered(harness))
    harness.tell(*(frame_done(item) for item in harness.sent()))
    return harness


def stream() -> PlannerHarness:
    """A stream whose producer is lost once, and of whose chunks one fails."""
    arc = ', when: "{{ chunk.index != 1 }}", set: {ctx.seen: "{{ chunk.index }}"}'
    harness, producer = begun(playbook(arc=arc, in_flight=1))
    harness.tell(*(chunk(producer, index) for index in range(3)))
    (first,) = harness.sent()
    harness.tell(facts.CommandLost(command_id=producer.command_id, attempt=1, reason="lease"))
    (again,) = harness.sent()
    harness.tell(chunk(again, 3, more=False), done(again, {"row_count": 8}))
    harness.tell(failed(first))
    while harness.sent():
        harness.tell(*(done(item) for item in harness.sent()))
    gather(harness, ["a", "b", "c"])
    while harness.sent():
        harness.tell(*(done(item) for item in harness.sent()))
    return harness


def stopped_stream() -> PlannerHarness:
    """A stream that ends with its first failed chunk."""
    harness, producer = begun(playbook(spec="spec: {policy: {failure: {mode: fail_fast}}}"))
    harness.tell(*(chunk(producer, index) for index in range(4)))
    harness.tell(failed(harness.sent()[0]))
    gather(harness)
    while harness.sent():
        harness.tell(*(done(item) for item in harness.sent()))
    return harness


def chunks() -> PlannerHarness:
    """Chunks: one lost and replayed, one cut short and continued; and a loop over nothing."""
    harness = PlannerHarness(CHUNKS)
    harness.start()
    one, two = harness.sent()
    harness.tell(lost(one), frame_done(two, row_count=1, rows_left=3, notes=["frame_oversize"]))
    harness.tell(*(frame_done(item) for item in harness.sent()))
    harness.tell(gathered(harness))
    return harness


def resized() -> PlannerHarness:
    """A loop that is given more lanes, then fewer, while it runs; and one that is one command."""
    harness = PlannerHarness(RESIZED)
    harness.start()
    harness.tell(facts.CtxWriteRequested(patch={"width": 3}, request_id="more"))
    harness.tell(facts.CtxWriteRequested(patch={"width": 1}, request_id="fewer"))
    while commands := list(harness.state.commands):
        harness.tell(*(done(harness.commands[command]) for command in commands))
    harness.tell(gathered(harness))
    (whole,) = harness.sent()
    units = UnitsEnd(ok=2, failed=1, retried=1)
    harness.tell(frame_done(whole, rows_failed=1, error=an_error("policy"), units=units))
    harness.tell(gathered(harness))
    return harness


POOLS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
executor: {spec: {pool: reports, priority: low}}
workflow:
  - step: train
    spec: {pool: gpu}
    tool: {kind: noop}
    next: {arcs: [{step: tell}]}
  - step: tell
    tool: {kind: noop}
"""


def pools() -> PlannerHarness:
    """Steps of two pools, with what the request says; a lost command goes to its pool again."""
    harness = PlannerHarness(POOLS)
    harness.tell(facts.ExecutionRequested(path="p", pool="edge", priority=Priority.HIGH))
    (train,) = harness.sent()
    harness.tell(lost(train))
    (train,) = harness.sent()
    harness.tell(done(train))
    (told,) = harness.sent()
    harness.tell(done(told))
    return harness


INCREMENTS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: load
    incremental: {cursor: at, from: state.orders, lag: 2h, initial: "2024-01-01"}
    tool: {kind: postgres, auth: a, query: select 1}
    next: {arcs: [{step: again}]}
  - step: again
    incremental: {cursor: at, from: state.orders, lag: 2h, initial: "2024-01-01"}
    tool: {kind: postgres, auth: a, query: select 1}
"""


def increments() -> PlannerHarness:
    """Two steps that read increments: the first moves the state, the second finds nothing new."""
    harness = PlannerHarness(INCREMENTS)
    harness.values["orders"] = None
    harness.start()
    value = StateValue(type=StateType.TIMESTAMP, value="2024-01-05T10:00:00+00:00")
    for proposed in (value, None):
        (command,) = harness.sent()
        state = ProposedState(name="orders", value=proposed, rows=7)
        harness.tell(structs.replace(done(command), state=state))
    return harness


BATCHES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: each
    loop: {in: "{{ 30 }}", iterator: it, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: noop}
"""


def batches() -> PlannerHarness:
    """Quick items that share commands: one is lost, one fails, and some are given back."""
    harness = PlannerHarness(BATCHES)
    harness.workers = (
        WorkerHeartbeat(
            worker_id=WorkerId("w-1"),
            pool="default",
            lanes=("io",),
            running=0,
            capacity=2,
            takes_batches=True,
        ),
    )
    harness.start()
    waiting = harness.sent()
    harness.tell(structs.replace(done(waiting.pop(0)), metrics={ELAPSED_MS: 1}))
    waiting += harness.sent()
    first = next(command for command in waiting if isinstance(command.work, BatchWork))
    waiting.remove(first)
    harness.tell(lost(first))
    (again,) = harness.sent()
    assert isinstance(again.work, BatchWork)
    indexes = again.work.indexes
    failure = structs.replace(failed(again), item_index=indexes[0])
    returned = facts.ItemsReturned(
        command_id=again.command_id,
        attempt=again.attempt,
        worker_id=WorkerId("w-1"),
        items=indexes[2:],
    )
    harness.tell(failure, returned)
    waiting += harness.sent()
    harness.tell(structs.replace(done(again), item_index=indexes[1]))
    waiting += harness.sent()
    while waiting:
        command = waiting.pop(0)
        places = command.work.indexes if isinstance(command.work, BatchWork) else [UNSET]
        harness.tell(*[structs.replace(done(command), item_index=place) for place in places])
        waiting += harness.sent()
    harness.tell(gathered(harness))
    return harness


LATE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
executor: {spec: {deadline: 2m}}
workflow:
  - {step: slow, spec: {deadline: 1m}, tool: {kind: noop}, next: {arcs: [{step: then}]}}
  - {step: then, spec: {deadline: 1h}, tool: {kind: noop}}
"""


def late() -> PlannerHarness:
    """A step that is late, and then its execution; both go on to their end."""
    harness = PlannerHarness(LATE)
    harness.start()
    (command,) = harness.sent()
    harness.wait(60)
    harness.tell(facts.TimerDue())
    harness.tell(done(command))
    (command,) = harness.sent()
    harness.wait(60)
    harness.tell(facts.TimerDue())
    harness.tell(done(command))
    return harness


def decided() -> Iterator[tuple[str, History]]:
    """Every story with its name."""
    for name, tell in (
        ("shards-and-tree", shards),
        ("chunks", chunks),
        ("stream", stream),
        ("stopped-stream", stopped_stream),
        ("resized-and-local", resized),
        ("pools", pools),
        ("increments", increments),
        ("batches", batches),
        ("late", late),
    ):
        harness = tell()
        assert harness.state.is_terminal(), harness.types()
        history = History(ExecutionId(harness.state.execution_id))
        history.envelopes = harness.history
        yield name, history
