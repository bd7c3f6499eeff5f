"""Hostile templates where the planner renders: the step fails, the decision stands."""

import pytest
from tests.support.attacks import INJECTIONS, playbook
from tests.support.planning import Desk, done

from noetl_playbook.parse.playbook import parse_playbook


@pytest.mark.parametrize("template", INJECTIONS)
def test_an_injection_in_a_set_fails_the_step(template: str) -> None:
    text = playbook({"tool": {"kind": "noop"}, "set": {"ctx.k": template}})
    if parse_playbook(text).playbook is None:
        return
    desk = Desk(text)
    desk.start()
    desk.tell(done(desk.sent()[0]))
    error = desk.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("template", "s")
    assert desk.state.ctx == {}
