"""Whatever a template gives, wherever the planner renders one: the decision stands.

The execution ends, an error that it ends with is of a size to be read, and what its history says of
it is what was known of it while it ran.
"""

from collections.abc import Iterator

import pytest
from tests.support.attacks import TEMPLATES
from tests.support.planning import PlannerHarness, closed, done, dry, opened
from tests.support.registered import registered
from tests.support.slices import frame_done, gathered, level_gathered
from tests.support.streams import chunk

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command, FrameWork, ReduceWork, SlotWork
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.requests import facts
from noetl_replay.fold import fold_history
from noetl_replay.state import build_empty_state

TURNS_MAX = 30
MESSAGE_CHARACTERS_MAX = 4_000
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
PLAIN = f"""{HEAD}
workload: {{w: 1, m: {{x: 1}}}}
workflow:
  - step: s
    spec:
      policy:
        admit: {{rules: [{{when: true, then: {{allow: true}}}}]}}
        emit: {{objects: [{{type: t, id: 1, attributes: {{a: 1}}}}]}}
    tool: {{kind: noop}}
    set: {{ctx.a: 1}}
    next: {{arcs: [{{step: u, set: {{ctx.b: 1, ctx.c.d: 1}}}}]}}
  - {{step: u, tool: {{kind: noop}}}}
"""
LOOP = f"""{HEAD}
workflow:
  - step: s
    loop:
      in: [1, 2]
      iterator: i
      spec: {{mode: %s, policy: {{exec: %s, failure: {{mode: %s}}}}}}
    tool: {{kind: noop}}
"""
CURSOR = f"""{HEAD}
workflow:
  - step: s
    loop:
      cursor: {{kind: postgres, auth: db, claim: SELECT 1}}
      iterator: i
      spec: {{max_in_flight: 2, policy: {{failure: {{mode: drain}}}}}}
    tool: {{kind: noop}}
"""
REDUCE = f"""{HEAD}
workflow:
  - step: s
    reduce: {{from: f, iterator: p, spec: {{mode: tree, fan_in: 2}}}}
    tool: {{kind: noop}}
  - {{step: f, loop: {{in: [1, 2, 3], iterator: i, spec: {{mode: fanout}}}}, tool: {{kind: noop}},
     next: {{arcs: [{{step: s}}]}}}}
executor: {{spec: {{entry_step: f}}}}
"""
STREAM = f"""{HEAD}
workflow:
  - step: s
    spec: {{policy: {{failure: {{mode: drain}}}}}}
    tool: {{kind: python, code: "yield 1", stream: {{}}}}
    next: {{arcs: [{{step: u, on: call.partial, set: {{ctx.a: 1}}}}, {{step: v}}]}}
  - {{step: u, tool: {{kind: noop}}, set: {{ctx.b: 1}}}}
  - {{step: v, tool: {{kind: noop}}}}
"""
S, SPEC, POLICY = "workflow/0", "workflow/0/loop/spec", "workflow/0/spec/policy"
OBJECT = f"{POLICY}/emit/objects/0"
FRAME = ("max_rows", "max_seconds", "max_bytes", "lease_seconds", "heartbeat_seconds",
         "row_concurrency", "max_attempts", "engine", "transaction")  # fmt: skip
FRAMED = [f"{SPEC}/frame/{key}" for key in FRAME]
BOUNDS = [f"{SPEC}/policy/failure/max_failed", f"{SPEC}/policy/failure/min_success"]
NUMBERS = [f"{SPEC}/max_in_flight", *BOUNDS]
PLACES = [
    (PLAIN, ["workload/w", "workload/m/x", "vars/v", "executor/spec/timeout"]),
    (PLAIN, [f"{POLICY}/lifecycle/timeout_s", f"{POLICY}/lifecycle/deadline_s"]),
    (PLAIN, [f"{POLICY}/admit/rules/0/when", f"{S}/next/arcs/0/when", f"{OBJECT}/when"]),
    (PLAIN, [f"{OBJECT}/id", f"{OBJECT}/status", f"{OBJECT}/attributes", f"{OBJECT}/attributes/a"]),
    (PLAIN, [f"{S}/set/ctx.a", f"{S}/next/arcs/0/set/ctx.b", f"{S}/next/arcs/0/set/ctx.c.d"]),
    (LOOP % ("parallel", "distributed", "drain"), [f"{S}/loop/in", *NUMBERS]),
    (LOOP % ("parallel", "local", "fail_fast"), [f"{S}/loop/in", *NUMBERS]),
    (LOOP % ("chunked", "distributed", "fail_fast"), [f"{S}/loop/in", *NUMBERS, *FRAMED]),
    (LOOP % ("chunked", "local", "drain"), [*NUMBERS, *FRAMED]),
    (LOOP % ("fanout", "distributed", "drain"), [f"{S}/loop/in", *NUMBERS, *FRAMED]),
    (
        LOOP % ("fanout", "distributed", "fail_fast"),
        [f"{SPEC}/fanout/{key}" for key in ("shard_size", "partitions", "max_shard_retries")],
    ),
    (CURSOR, [*NUMBERS, *FRAMED, f"{S}/loop/cursor/options/poll_interval_ms"]),
    (REDUCE, [f"{S}/reduce/spec/{key}" for key in ("fan_in", "max_in_flight")]),
    (REDUCE, [f"{S}/reduce/spec/frame/{key}" for key in FRAME]),
    (STREAM, [f"{POLICY}/failure/max_failed", f"{POLICY}/failure/min_success"]),
    (STREAM, [f"{S}/next/arcs/0/when", f"{S}/next/arcs/0/set/ctx.a", "workflow/1/set/ctx.b"]),
]


def answers(harness: PlannerHarness) -> Iterator[facts.Fact]:
    """Say that all that was asked for has been done."""
    assert harness.last is not None
    for command in harness.sent():
        yield from _ended(harness, command)
    for run_id in harness.last.to_collect:
        run = harness.state.runs.get(run_id)  # type: ignore[call-overload]  # a run's id
        if run is None or run.loop is None:
            continue
        is_reduce = run.loop.mode == "reduce"
        yield (level_gathered if is_reduce else gathered)(harness, run_id=run_id)


def _ended(harness: PlannerHarness, command: Command) -> Iterator[facts.Fact]:
    match command.work:
        case FrameWork() | ReduceWork():
            yield frame_done(command)
        case SlotWork(next_index=0, slot=0):
            yield opened(command, 0)
            yield closed(command, 0)
            yield dry(command, frames=1, next_index=1)
        case SlotWork() as work:
            yield dry(command, frames=0, next_index=work.next_index)
        case _:
            task = harness.program.steps[command.step].tool[0]
            if task.stream is not None:
                yield chunk(command, 0)
                yield chunk(command, 1, more=False)
            yield done(command, {"n": 1})


def played(harness: PlannerHarness) -> None:
    """Let workers answer, and time pass, until the execution ends."""
    harness.start()
    for _ in range(TURNS_MAX):
        if harness.state.is_terminal():
            return
        answer = list(answers(harness))
        if not answer:
            harness.wait(3600)
        harness.tell(*answer, facts.TimerDue(reason=facts.STALLED))


def check(harness: PlannerHarness) -> None:
    assert harness.state.is_terminal(), harness.types()
    for event in harness.events("playbook.failed"):
        assert event.error.message
        assert len(event.error.message) <= MESSAGE_CHARACTERS_MAX
    state = harness.state
    empty_state = build_empty_state(state.execution_id, state.tenant_id, state.organization_id)
    kept = [codec.decode_as(codec.encode_json(item), Envelope) for item in harness.history]
    again = fold_history(empty_state, kept)
    assert again.checksum == state.checksum
    assert (again.ctx, again.workload, again.objects) == (state.ctx, state.workload, state.objects)


@pytest.mark.parametrize(
    ("text", "place"), [(text, place) for text, places in PLACES for place in places]
)
def test_no_template_keeps_an_execution_from_its_end(text: str, place: str) -> None:
    for template in TEMPLATES:
        harness = PlannerHarness(registered(text, (place, template)))
        try:
            played(harness)
            check(harness)
        except Exception as failure:
            raise AssertionError(f"{template!r} at {place}: {failure!r}") from failure
