"""Hostile templates where the planner renders: the step fails, the decision stands."""

import pytest
from tests.support.attacks import INJECTIONS, playbook
from tests.support.planning import PlannerHarness, done

from noetl_playbook.parse.playbook import parse_playbook


@pytest.mark.parametrize("template", INJECTIONS)
def test_an_injection_in_a_set_fails_the_step(template: str) -> None:
    text = playbook({"tool": {"kind": "noop"}, "set": {"ctx.k": template}})
    if parse_playbook(text).playbook is None:
        return
    harness = PlannerHarness(text)
    harness.start()
    harness.tell(done(harness.sent()[0]))
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("template", "s")
    assert harness.state.ctx == {}
