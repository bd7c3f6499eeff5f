"""Lists of a registered playbook that hold nothing, where the language wants at least one."""

import pytest
from tests.support.planning import PlannerHarness, done, run_all
from tests.support.registered import registered
from tests.support.slices import gathered

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: each
    spec: {policy: {admit: {on_deny: ON_DENY, rules: [{when: false, then: {allow: true}}]}}}
    loop: {in: [1, 2], iterator: i, spec: {mode: parallel}}
    tool: {kind: noop}
    next: {arcs: [{step: total}]}
  - {step: total, reduce: {from: each}, tool: {kind: noop}}
"""
RULES = "workflow/0/spec/policy/admit/rules"


@pytest.mark.parametrize("on_deny", ["skip", "fail"])
def test_an_admission_without_rules_denies_nothing(on_deny: str) -> None:
    harness = PlannerHarness(registered(PLAYBOOK.replace("ON_DENY", on_deny), (RULES, [])))
    harness.start()
    assert [command.step for command in harness.sent()] == ["each", "each"]


def test_a_reduce_without_a_source_fails_its_step_and_says_what_to_write() -> None:
    text = PLAYBOOK.replace("ON_DENY", "skip")
    harness = PlannerHarness(registered(text, (RULES, []), ("workflow/1/reduce/from", [])))
    harness.start()
    harness.tell(*(done(item) for item in harness.sent()))
    harness.tell(gathered(harness))
    run_all(harness)
    (failed,) = harness.events("playbook.failed")
    assert (failed.error.kind, failed.step) == ("validation", "total")
    assert "field 'reduce.from': it names no step" in failed.error.message
