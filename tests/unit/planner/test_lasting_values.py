"""What templates write to the state: at once what the history will tell of it."""

from typing import Any

import pytest
from tests.support.planning import PlannerHarness, run_all

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def written(value: str) -> PlannerHarness:
    harness = PlannerHarness(
        f"{HEAD}workflow:\n  - step: a\n    tool: {{kind: noop}}\n"
        f'    set: {{ctx.k: "{{{{ {value} }}}}"}}\n    next: {{arcs: [{{step: b}}]}}\n'
        '  - {step: b, tool: {kind: noop}, set: {ctx.seen: "{{ ctx.k }}"}}\n'
    )
    harness.start()
    run_all(harness)
    return harness


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("{1: 'a', 2.5: {3: 4}}", {"1": "a", "2.5": {"3": 4}}),
        ("dict([[1, 2]])", {"1": 2}),
        ("'inf' | float", None),
        ("['nan' | float, 1]", [None, 1]),
        ("2 ** 70", 2**70),
        ("'grüße\\U0001f600'", "grüße😀"),
        ("(1, [2])", [1, [2]]),
    ],
)
def test_the_next_step_sees_what_is_kept(value: str, kept: Any) -> None:
    harness = written(value)
    assert harness.state.ctx == {"k": kept, "seen": kept}
    anew = PlannerHarness(harness.program)
    anew.replay(harness.history)
    assert anew.state.ctx == harness.state.ctx


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{none: 1}", "a mapping has a key that is neither text nor a number"),
        ("[{(1, 2): 3}]", "a mapping has a key that is neither text nor a number"),
        ("'\\\\ud800'", "a text holds a part of a character alone"),
        ("{'k': ['%c' | format(55296)]}", "a text holds a part of a character alone"),
    ],
)
def test_what_nothing_can_keep_fails_the_step_and_names_the_place(value: str, why: str) -> None:
    error = written(value).events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("template", "a")
    assert error.message.startswith(f"step 'a', field 'set.ctx.k': {why} in {{{{ ")
