"""A history's outcomes decided under another version of its playbook."""

from typing import Any

import pytest
from tests.support.planning import Desk, done, program

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import WorkerId
from noetl_contracts.requests import facts
from noetl_planner.domain import counterfactuals, recorded_outcomes
from noetl_planner.domain.counterfactuals import Basis, Counterfactual
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.shards.render_processes import begin_renders
from noetl_replay.state import build_empty_state

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: p}
"""
ROUTED = (
    HEAD
    + """\
workload: {limit: 10}
workflow:
  - step: measure
    tool: {kind: python, code: "result = 7"}
    next:
      arcs:
        - {step: large, when: "{{ measure.data > workload.limit }}"}
        - {step: small, when: "{{ measure.data <= workload.limit }}"}
  - {step: large, tool: {kind: python, code: "result = 'large'"}}
  - {step: small, tool: {kind: python, code: "result = 'small'"}}
"""
)
ITEMS = (
    HEAD
    + """\
workflow:
  - step: each
    loop: {in: "{{ range(4) | list }}", iterator: i, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: python, code: "result = 1"}
    next: {arcs: [{step: after}]}
  - {step: after, tool: {kind: noop, result: 1}}
"""
)


def decide_under(desk: Desk, text: str) -> Counterfactual:
    decided = Counterfactual(
        program(text),
        recorded_outcomes.read_history(desk.history),
        state=build_empty_state(
            desk.state.execution_id, desk.state.tenant_id, desk.state.organization_id
        ),
        loaded=desk.loaded,
        limits=Limits(),
        make_renders=begin_renders,
    )
    while decided.decide_next():
        continue
    return decided


def compare(desk: Desk, original: str, other: str) -> dict[str, tuple[Basis, Any]]:
    recorded, decided = decide_under(desk, original), decide_under(desk, other)
    return {
        step.key.step: (step.basis, None if step.outcome is None else step.outcome.targets)
        for step in counterfactuals.compare_work(recorded, decided)
    }


def play_routed(value: int = 7) -> Desk:
    desk = Desk(ROUTED)
    desk.start()
    desk.tell(done(desk.sent()[0], value))
    desk.tell(done(desk.sent()[0], "small" if value <= 10 else "large"))
    return desk


def test_the_same_playbook_decides_as_it_did() -> None:
    desk = play_routed()
    decided = decide_under(desk, ROUTED)
    history = recorded_outcomes.read_history(desk.history)
    assert [(o.key, o.status, o.targets) for o in decided.list_steps()] == [
        (o.key, o.status, o.targets) for o in history.steps
    ]
    assert decided.status == history.status == "COMPLETED"
    assert compare(desk, ROUTED, ROUTED) == {
        "measure": (Basis.RECORDED, ("small",)),
        "small": (Basis.RECORDED, ()),
    }


def test_another_condition_leads_to_work_that_never_ran() -> None:
    desk = play_routed()
    other = ROUTED.replace("workload.limit", "5")
    assert decide_under(desk, other).status == "UNDECIDED"
    assert compare(desk, ROUTED, other) == {
        "measure": (Basis.RECORDED, ("large",)),
        "large": (Basis.UNKNOWN, None),
    }


def test_inputs_are_the_recorded_ones_with_the_defaults_of_then() -> None:
    desk = play_routed()
    assert decide_under(desk, ROUTED.replace("limit: 10", "limit: 5")).status == "COMPLETED"


def test_other_code_is_not_taken_for_what_was_recorded() -> None:
    desk = play_routed()
    other = ROUTED.replace("result = 'small'", "result = 'tiny'")
    found = compare(desk, ROUTED, other)
    assert found["measure"] == (Basis.RECORDED, ("small",))
    assert found["small"] == (Basis.ASSUMED, ())


def test_what_reads_another_value_is_assumed() -> None:
    text = ROUTED.replace("result = 'small'", "result = '{{ ctx.seen }}'")
    text = text.replace("    next:\n", "    set: {ctx.seen: 1}\n    next:\n")
    desk = Desk(text)
    desk.start()
    desk.tell(done(desk.sent()[0], 7))
    desk.tell(done(desk.sent()[0], "small"))
    found = compare(desk, text, text.replace("ctx.seen: 1", "ctx.seen: 2"))
    assert found["small"] == (Basis.ASSUMED, ())


def test_a_failure_is_an_outcome_too() -> None:
    desk = Desk(ROUTED)
    desk.start()
    command = desk.sent()[0]
    desk.tell(
        facts.CommandFailed(
            command_id=command.command_id,
            attempt=1,
            worker_id=WorkerId("w"),
            error=ErrorObject(kind="http_error", message="503"),
        )
    )
    assert decide_under(desk, ROUTED).status == "FAILED"
    handled = ROUTED.replace(
        "        - {step: large,",
        "        - {step: small, on: call.error}\n        - {step: large,",
    )
    decided = decide_under(desk, handled)
    assert decided.status == "UNDECIDED"
    assert compare(desk, ROUTED, handled)["measure"] == (Basis.RECORDED, ("small",))


def play_items() -> Desk:
    desk = Desk(ITEMS)
    desk.start()
    while desk.sent():
        desk.tell(*(done(command, 1) for command in desk.sent()))
    run_id = next(iter(desk.state.runs))
    result = done(next(iter(desk.commands.values())), [1, 1, 1, 1]).result
    desk.tell(facts.ItemsCollected(run_id=run_id, result=result))
    desk.tell(*(done(command, 1) for command in desk.sent()))
    return desk


def test_items_of_a_loop_are_decided_one_by_one() -> None:
    desk = play_items()
    assert decide_under(desk, ITEMS).status == "COMPLETED"
    assert compare(desk, ITEMS, ITEMS)["each"] == (Basis.RECORDED, ("after",))


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (("range(4)", "range(5)"), "UNDECIDED"),
        (("max_in_flight: 2", "max_in_flight: 4"), "COMPLETED"),
    ],
)
def test_items_that_never_ran_stay_unknown(change: tuple[str, str], status: str) -> None:
    desk = play_items()
    assert decide_under(desk, ITEMS.replace(*change)).status == status


def test_what_came_from_outside_is_not_decided_again() -> None:
    desk = Desk(ROUTED)
    desk.start()
    desk.tell(facts.CtxWriteRequested(request_id="1", patch={"a": 1}))
    history = recorded_outcomes.read_history(desk.history)
    assert history.unusable == "somebody wrote to its variables from outside"
