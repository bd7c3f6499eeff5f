from tests.support.planning import PlannerHarness, done, run_all

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"

CHAIN = (
    HEAD
    + """
workload: {n: 3, tag: "{{ n }}-{{ execution_id }}"}
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: two}]}}
  - {step: two, tool: {kind: python, code: "result = 1"}, set: {ctx.x: "{{ two.v + workload.n }}"}}
"""
)

SPLIT = (
    HEAD
    + """
workflow:
  - step: split
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right}]}
  - {step: left, tool: {kind: noop}, next: {arcs: [{step: merge}]}}
  - {step: right, tool: {kind: noop}, next: {arcs: [{step: merge}]}}
  - {step: merge, tool: {kind: noop}}
"""
)


def test_a_chain_runs_step_after_step_and_completes() -> None:
    harness = PlannerHarness(CHAIN)
    assert harness.start() == ["playbook.initialized", "step.enter", "command.issued"]
    assert harness.state.workload == {"n": 3, "tag": "3-42"}
    (first,) = harness.sent()
    assert harness.tell(done(first, {})) == [
        "command.completed",
        "call.done",
        "step.exit",
        "step.enter",
        "command.issued",
    ]
    (second,) = harness.sent()
    harness.tell(done(second, {"v": 4}))
    assert harness.state.ctx == {"x": 7}
    assert harness.types()[-1] == "playbook.completed"


def test_a_join_runs_once_after_both_branches() -> None:
    harness = PlannerHarness(SPLIT)
    harness.start()
    run_all(harness)
    entered = [event.step for event in harness.events("step.enter")]
    assert entered == ["split", "left", "right", "merge"]
    assert harness.types().count("playbook.completed") == 1


def test_a_repeated_fact_changes_nothing() -> None:
    harness = PlannerHarness(CHAIN)
    harness.start()
    (first,) = harness.sent()
    harness.tell(done(first, {}))
    assert harness.tell(done(first, {})) == []
