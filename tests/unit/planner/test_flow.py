from tests.support.planning import Desk, done, run_all

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
    desk = Desk(CHAIN)
    assert desk.start() == ["playbook.initialized", "step.enter", "command.issued"]
    assert desk.state.workload == {"n": 3, "tag": "3-42"}
    (first,) = desk.sent()
    assert desk.tell(done(first, {})) == [
        "command.completed",
        "call.done",
        "step.exit",
        "step.enter",
        "command.issued",
    ]
    (second,) = desk.sent()
    desk.tell(done(second, {"v": 4}))
    assert desk.state.ctx == {"x": 7}
    assert desk.types()[-1] == "playbook.completed"


def test_a_join_runs_once_after_both_branches() -> None:
    desk = Desk(SPLIT)
    desk.start()
    run_all(desk)
    entered = [event.step for event in desk.events("step.enter")]
    assert entered == ["split", "left", "right", "merge"]
    assert desk.types().count("playbook.completed") == 1


def test_a_repeated_fact_changes_nothing() -> None:
    desk = Desk(CHAIN)
    desk.start()
    (first,) = desk.sent()
    desk.tell(done(first, {}))
    assert desk.tell(done(first, {})) == []
