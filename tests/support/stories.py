"""Histories as the planner itself decides them, for the parts that are long to write by hand."""

from collections.abc import Iterator

from msgspec import structs
from tests.support.builders import History
from tests.support.planning import Desk, done
from tests.support.slices import an_error, frame_done, frame_failed, gathered, level_gathered, lost
from tests.support.streams import begun, chunk, failed, gather, playbook

from noetl_contracts.commands.loop_collections import UnitsEnd
from noetl_contracts.commands.state_values import ProposedState, StateType, StateValue
from noetl_contracts.commands.worker_pools import Priority
from noetl_contracts.ids import ExecutionId
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


def shards() -> Desk:
    """A fan-out with a shard that fails once and one that fails for good; then a tree."""
    desk = Desk(SHARDS)
    desk.start()
    once, twice, *rest = desk.sent()
    desk.tell(frame_failed(once), frame_failed(twice), *(frame_done(one) for one in rest))
    desk.wait(1)
    desk.tell(facts.TimerDue())
    once, twice = desk.sent()
    desk.tell(frame_done(once, patch={"seen": 1}), frame_failed(twice))
    desk.tell(gathered(desk))
    desk.tell(*(frame_done(one) for one in desk.sent()))
    desk.tell(level_gathered(desk))
    desk.tell(*(frame_done(one) for one in desk.sent()))
    return desk


def stream() -> Desk:
    """A stream whose producer is lost once, and of whose chunks one fails."""
    arc = ', when: "{{ chunk.index != 1 }}", set: {ctx.seen: "{{ chunk.index }}"}'
    desk, producer = begun(playbook(arc=arc, in_flight=1))
    desk.tell(*(chunk(producer, index) for index in range(3)))
    (first,) = desk.sent()
    desk.tell(facts.CommandLost(command_id=producer.command_id, attempt=1, reason="lease"))
    (again,) = desk.sent()
    desk.tell(chunk(again, 3, more=False), done(again, {"row_count": 8}))
    desk.tell(failed(first))
    while desk.sent():
        desk.tell(*(done(one) for one in desk.sent()))
    gather(desk, ["a", "b", "c"])
    while desk.sent():
        desk.tell(*(done(one) for one in desk.sent()))
    return desk


def stopped_stream() -> Desk:
    """A stream that ends with its first failed chunk."""
    desk, producer = begun(playbook(spec="spec: {policy: {failure: {mode: fail_fast}}}"))
    desk.tell(*(chunk(producer, index) for index in range(4)))
    desk.tell(failed(desk.sent()[0]))
    gather(desk)
    while desk.sent():
        desk.tell(*(done(one) for one in desk.sent()))
    return desk


def chunks() -> Desk:
    """Chunks: one lost and replayed, one cut short and continued; and a loop over nothing."""
    desk = Desk(CHUNKS)
    desk.start()
    one, two = desk.sent()
    desk.tell(lost(one), frame_done(two, row_count=1, rows_left=3, notes=["frame_oversize"]))
    desk.tell(*(frame_done(each) for each in desk.sent()))
    desk.tell(gathered(desk))
    return desk


def resized() -> Desk:
    """A loop that is given more lanes, then fewer, while it runs; and one that is one command."""
    desk = Desk(RESIZED)
    desk.start()
    desk.tell(facts.CtxWriteRequested(patch={"width": 3}, request_id="more"))
    desk.tell(facts.CtxWriteRequested(patch={"width": 1}, request_id="fewer"))
    while live := list(desk.state.commands):
        desk.tell(*(done(desk.commands[one]) for one in live))
    desk.tell(gathered(desk))
    (whole,) = desk.sent()
    units = UnitsEnd(ok=2, failed=1, retried=1)
    desk.tell(frame_done(whole, rows_failed=1, error=an_error("policy"), units=units))
    desk.tell(gathered(desk))
    return desk


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


def pools() -> Desk:
    """Steps of two pools, with what the request says; a lost command goes to its pool again."""
    desk = Desk(POOLS)
    desk.tell(facts.ExecutionRequested(path="p", pool="edge", priority=Priority.HIGH))
    (train,) = desk.sent()
    desk.tell(lost(train))
    (train,) = desk.sent()
    desk.tell(done(train))
    (told,) = desk.sent()
    desk.tell(done(told))
    return desk


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


def increments() -> Desk:
    """Two steps that read increments: the first moves the state, the second finds nothing new."""
    desk = Desk(INCREMENTS)
    desk.values["orders"] = None
    desk.start()
    value = StateValue(type=StateType.TIMESTAMP, value="2024-01-05T10:00:00+00:00")
    for proposed in (value, None):
        (command,) = desk.sent()
        state = ProposedState(name="orders", value=proposed, rows=7)
        desk.tell(structs.replace(done(command), state=state))
    return desk


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
    ):
        desk = tell()
        assert desk.state.is_terminal(), desk.types()
        history = History(ExecutionId(desk.state.execution_id))
        history.envelopes = desk.history
        yield name, history
