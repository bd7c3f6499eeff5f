"""A history's outcomes decided under another version of its playbook."""

from typing import Any

import pytest
from tests.support.planning import PlannerHarness, done, program

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


def decide_under(harness: PlannerHarness, text: str) -> Counterfactual:
    decided = Counterfactual(
        program(text),
        recorded_outcomes.read_history(harness.history),
        state=build_empty_state(
            harness.state.execution_id, harness.state.tenant_id, harness.state.organization_id
        ),
        loaded=harness.loaded,
        limits=Limits(),
        make_renders=begin_renders,
    )
    while decided.decide_next():
        continue
    return decided


def compare(harness: PlannerHarness, original: str, other: str) -> dict[str, tuple[Basis, Any]]:
    recorded, decided = decide_under(harness, original), decide_under(harness, other)
    return {
        step.key.step: (step.basis, None if step.outcome is None else step.outcome.targets)
        for step in counterfactuals.compare_work(recorded, decided)
    }


def play_routed(value: int = 7) -> PlannerHarness:
    harness = PlannerHarness(ROUTED)
    harness.start()
    harness.tell(done(harness.sent()[0], value))
    harness.tell(done(harness.sent()[0], "small" if value <= 10 else "large"))
    return harness


def test_the_same_playbook_decides_as_it_did() -> None:
    harness = play_routed()
    decided = decide_under(harness, ROUTED)
    history = recorded_outcomes.read_history(harness.history)
    assert [(o.key, o.status, o.targets) for o in decided.list_steps()] == [
        (o.key, o.status, o.targets) for o in history.steps
    ]
    assert decided.status == history.status == "COMPLETED"
    assert compare(harness, ROUTED, ROUTED) == {
        "measure": (Basis.RECORDED, ("small",)),
        "small": (Basis.RECORDED, ()),
    }


def test_another_condition_leads_to_work_that_never_ran() -> None:
    harness = play_routed()
    other = ROUTED.replace("workload.limit", "5")
    assert decide_under(harness, other).status == "UNDECIDED"
    assert compare(harness, ROUTED, other) == {
        "measure": (Basis.RECORDED, ("large",)),
        "large": (Basis.UNKNOWN, None),
    }


def test_inputs_are_the_recorded_ones_with_the_defaults_of_then() -> None:
    harness = play_routed()
    assert decide_under(harness, ROUTED.replace("limit: 10", "limit: 5")).status == "COMPLETED"


def test_other_code_is_not_taken_for_what_was_recorded() -> None:
    harness = play_routed()
    other = ROUTED.replace("result = 'small'", "result = 'tiny'")
    found = compare(harness, ROUTED, other)
    assert found["measure"] == (Basis.RECORDED, ("small",))
    assert found["small"] == (Basis.ASSUMED, ())


def test_what_reads_another_value_is_assumed() -> None:
    text = ROUTED.replace("result = 'small'", "result = '{{ ctx.seen }}'")
    text = text.replace("    next:\n", "    set: {ctx.seen: 1}\n    next:\n")
    harness = PlannerHarness(text)
    harness.start()
    harness.tell(done(harness.sent()[0], 7))
    harness.tell(done(harness.sent()[0], "small"))
    found = compare(harness, text, text.replace("ctx.seen: 1", "ctx.seen: 2"))
    assert found["small"] == (Basis.ASSUMED, ())


def test_a_failure_is_an_outcome_too() -> None:
    harness = PlannerHarness(ROUTED)
    harness.start()
    command = harness.sent()[0]
    harness.tell(
        facts.CommandFailed(
            command_id=command.command_id,
            attempt=1,
            worker_id=WorkerId("w"),
            error=ErrorObject(kind="http_error", message="503"),
        )
    )
    assert decide_under(harness, ROUTED).status == "FAILED"
    handled = ROUTED.replace(
        "        - {step: large,",
        "        - {step: small, on: call.error}\n        - {step: large,",
    )
    decided = decide_under(harness, handled)
    assert decided.status == "UNDECIDED"
    assert compare(harness, ROUTED, handled)["measure"] == (Basis.RECORDED, ("small",))


def play_items() -> PlannerHarness:
    harness = PlannerHarness(ITEMS)
    harness.start()
    while harness.sent():
        harness.tell(*(done(command, 1) for command in harness.sent()))
    run_id = next(iter(harness.state.runs))
    result = done(next(iter(harness.commands.values())), [1, 1, 1, 1]).result
    harness.tell(facts.ItemsCollected(run_id=run_id, result=result))
    harness.tell(*(done(command, 1) for command in harness.sent()))
    return harness


def test_items_of_a_loop_are_decided_one_by_one() -> None:
    harness = play_items()
    assert decide_under(harness, ITEMS).status == "COMPLETED"
    assert compare(harness, ITEMS, ITEMS)["each"] == (Basis.RECORDED, ("after",))


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (("range(4)", "range(5)"), "UNDECIDED"),
        (("max_in_flight: 2", "max_in_flight: 4"), "COMPLETED"),
    ],
)
def test_items_that_never_ran_stay_unknown(change: tuple[str, str], status: str) -> None:
    harness = play_items()
    assert decide_under(harness, ITEMS.replace(*change)).status == status


def test_what_came_from_outside_is_not_decided_again() -> None:
    harness = PlannerHarness(ROUTED)
    harness.start()
    harness.tell(facts.CtxWriteRequested(request_id="1", patch={"a": 1}))
    history = recorded_outcomes.read_history(harness.history)
    assert history.unusable == "somebody wrote to its variables from outside"


def test_another_credential_or_limit_is_other_work() -> None:
    text = ROUTED.replace(
        "workload: {limit: 10}",
        "keychain: [{name: db, kind: credential, credential: prod}]\nworkload: {limit: 10}",
    ).replace("result = 'small'", "result = '{{ keychain.db.user }}'")
    harness = PlannerHarness(text)
    harness.start()
    harness.tell(done(harness.sent()[0], 7))
    harness.tell(done(harness.sent()[0], "small"))
    other = text.replace("credential: prod", "credential: staging")
    assert compare(harness, text, text)["small"] == (Basis.RECORDED, ())
    assert compare(harness, text, other)["small"] == (Basis.ASSUMED, ())


def test_the_timeout_of_the_other_version_holds() -> None:
    harness = PlannerHarness(ROUTED)
    harness.start()
    harness.wait(100)
    harness.tell(done(harness.sent()[0], 7))
    harness.tell(done(harness.sent()[0], "small"))
    other = ROUTED.replace("workload:", "executor: {spec: {timeout: 10}}\nworkload:")
    assert decide_under(harness, ROUTED).status == "COMPLETED"
    assert decide_under(harness, other).status == "FAILED"
