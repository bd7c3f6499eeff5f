"""Inputs that a playbook does not have, where an execution begins."""

import pytest
from tests.support.planning import PlannerHarness

from noetl_contracts.requests import facts

TEXT = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {region: eu}\n"
    "workflow:\n  - {step: a, tool: {kind: noop}}\n"
)


def begun(text: str, *, asked_by: str) -> PlannerHarness:
    harness = PlannerHarness(text)
    inputs = {"regoin": "us", "schedule": {"name": "daily"}}
    harness.tell(facts.ExecutionRequested(path="p", workload=inputs, requested_by=asked_by))
    return harness


def test_a_firing_whose_inputs_the_playbook_lacks_fails_before_its_first_step() -> None:
    harness = begun(TEXT, asked_by="schedule daily")
    assert harness.types() == ["playbook.initialized", "playbook.failed"]
    failure = harness.state.failure
    assert failure is not None
    assert (failure.kind, failure.code, failure.step) == ("validation", "VALIDATION", "(workload)")
    assert "no input 'regoin'; its workload has region (did you mean 'region'?" in failure.message


@pytest.mark.parametrize("asked_by", ["webhook orders", "trigger orders"])
def test_what_a_call_or_a_message_brings_is_judged_where_it_comes_in(asked_by: str) -> None:
    harness = begun(TEXT, asked_by=asked_by)
    assert "playbook.failed" not in harness.types()


def test_the_older_dialect_runs_with_any_input() -> None:
    harness = begun(TEXT.replace("noetl.io/v2", "noetl.io/v1"), asked_by="api")
    assert "playbook.failed" not in harness.types()
