"""The graph: entry, end, implicit arcs, reachability, and arcs that see failures."""

import pytest
from tests.support.playbooks import a_playbook

from noetl_playbook.model.language_names import alias_event_name
from noetl_playbook.model.playbook import Arc
from noetl_playbook.plan import WorkflowGraph, is_failure_aware

NOOP = "tool: {kind: noop}"


def graph(workflow: str, *, root: str = "") -> WorkflowGraph:
    return WorkflowGraph.from_playbook(a_playbook(workflow, root=root))


SPLIT = f"""
    - {{step: split, {NOOP}, next: {{arcs: [{{step: left}}, {{step: right}}]}}}}
    - {{step: left, {NOOP}, next: {{arcs: [{{step: merge}}]}}}}
    - {{step: right, {NOOP}, next: {{arcs: [{{step: merge}}, {{step: right}}]}}}}
    - {{step: merge, {NOOP}}}
    - {{step: end, {NOOP}}}
    """


def test_the_entry_is_named_or_start_or_first() -> None:
    assert graph(SPLIT).entry == "split"
    assert graph(SPLIT, root="executor: {spec: {entry_step: left}}\n").entry == "left"
    assert graph(f"- {{step: a, {NOOP}}}\n- {{step: start, {NOOP}}}").entry == "start"


def test_a_step_without_next_leads_to_the_final_step() -> None:
    found = graph(SPLIT)
    assert found.final == "end"
    assert found.arcs["merge"] == (Arc(step="end"),)
    assert found.arcs["end"] == ()
    assert graph(SPLIT, root="executor: {spec: {final_step: merge}}\n").arcs["end"] == (
        Arc(step="merge"),
    )
    assert graph(f"- {{step: a, {NOOP}}}").arcs["a"] == ()


def test_a_stream_target_has_no_implicit_arc() -> None:
    found = graph(f"""
        - {{step: a, {NOOP}, next: {{arcs: [{{step: b, on: call.partial}}, {{step: end}}]}}}}
        - {{step: b, {NOOP}}}
        - {{step: end, {NOOP}}}
        """)
    assert found.arcs["b"] == ()


def test_reachability_counts_implicit_arcs_and_cycles() -> None:
    found = graph(SPLIT)
    assert found.list_reachable("left") == {"merge", "end"}
    assert found.can_reach("split", "end")
    assert found.can_reach("right", "right")
    assert not found.can_reach("left", "left")
    assert not found.can_reach("end", "split")


def test_a_long_chain_is_settled_quickly() -> None:
    steps = "\n".join(
        f"- {{step: s{i}, {NOOP}, next: {{arcs: [{{step: s{(i + 1) % 300}}}]}}}}"
        for i in range(300)
    )
    found = graph(steps)
    assert all(found.can_reach(f"s{i}", f"s{i}") for i in (0, 150, 299))


@pytest.mark.parametrize(
    ("arc", "expected"),
    [
        (Arc(step="t"), False),
        (Arc(step="t", on="call.error"), True),
        (Arc(step="t", on="loop.done"), True),
        (Arc(step="t", when="{{ event.name == 'x' }}"), True),
        (Arc(step="t", when="{{ error is defined }}"), True),
        (Arc(step="t", when="{{ fanin.status != 'complete' }}"), True),
        (Arc(step="t", when="{{ output.status == 'error' }}"), True),
        (Arc(step="t", when="{{ output.error.kind == 'x' }}"), True),
        (Arc(step="t", when="{{ output.data.status_code == 404 }}"), True),
        (Arc(step="t", when="{{ s.error is defined }}"), True),
        (Arc(step="t", when="{{ s.http.status == 404 }}"), True),
        (Arc(step="t", when="{{ result.status_code == 404 }}"), True),
        (Arc(step="t", when="{{ output.data.n | default(0) > 1 }}"), False),
        (Arc(step="t", when="{{ other.error is defined }}"), False),
        (Arc(step="t", when="{{ s.status == 'x' }}"), False),
        (Arc(step="t", when=True), False),
    ],
)
def test_arcs_that_look_at_the_failure_see_failures(arc: Arc, expected: object) -> None:
    assert is_failure_aware(arc, step="s") is expected


def test_boundary_events_equal_their_aliases() -> None:
    assert alias_event_name("loop.done") == "call.done"
    assert alias_event_name("loop.done") != "call.error"
    assert alias_event_name("loop.failed") != "loop.done"
    assert alias_event_name("call.error") == "step.failed"
    assert alias_event_name("loop.failed") == "call.error"
    assert alias_event_name("call.done") != "loop.done"
