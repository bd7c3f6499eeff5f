"""Deadlines under any order of facts and times: told once, exactly when late, and nothing else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from tests.support.planning import PlannerHarness, done

from noetl_contracts import codec
from noetl_contracts.requests import facts
from noetl_replay.fold import fold_history
from noetl_replay.state import build_empty_state, take_changes

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p}}
executor: {{spec: {{{whole}}}}}
workflow:
  - {{step: a, tool: {{kind: noop}}, spec: {{{step}}}, next: {{arcs: [{{step: b}}]}}}}
  - {{step: b, tool: {{kind: noop}}, spec: {{timeout: 40, {step}}}}}
"""
WITHOUT = PLAYBOOK.format(whole="timeout: 90", step="priority: high")
WITH = PLAYBOOK.format(whole="timeout: 90, deadline: 20", step="priority: high, deadline: 10")
LATE = "deadline.passed"
SECONDS = st.sampled_from([0, 1, 9, 10, 11, 19, 20, 21, 45])
ACTIONS = st.sampled_from(["timer", "stalled", "done", "again", "pause", "resume", "cancel"])


def act(harness: PlannerHarness, action: str, number: int) -> None:
    """Tell a planner of one observation; a result may come again, or after everything."""
    commands = list(harness.commands.values())
    told: dict[str, list[Any]] = {
        "timer": [facts.TimerDue()],
        "stalled": [facts.TimerDue(reason=facts.STALLED)],
        "done": [done(commands[-1])],
        "again": [done(commands[0]), done(commands[0])],
        "pause": [facts.PauseRequested(request_id=str(number))],
        "resume": [facts.ResumeRequested(request_id=str(number))],
        "cancel": [facts.CancelRequested()],
    }
    harness.tell(*told[action])


def run(text: str, story: list[tuple[int, str]]) -> PlannerHarness:
    harness = PlannerHarness(text)
    harness.start()
    for number, (seconds, action) in enumerate(story):
        harness.wait(seconds)
        act(harness, action, number)
    return harness


@given(st.lists(st.tuples(SECONDS, ACTIONS), max_size=12))
def test_a_deadline_changes_nothing_but_that_it_is_told(story: list[tuple[int, str]]) -> None:
    plain, late = run(WITHOUT, story), run(WITH, story)
    assert [kind for kind in late.types() if kind != LATE] == plain.types()
    assert late.state.status == plain.state.status


@given(st.lists(st.tuples(SECONDS, ACTIONS), max_size=12))
def test_what_is_late_is_told_once_and_only_that(story: list[tuple[int, str]]) -> None:
    harness = run(WITH, story)
    told = [envelope for envelope in harness.history if envelope.event in harness.events(LATE)]
    runs = [envelope.event.run_id for envelope in told]
    assert len(set(runs)) == len(runs)
    assert all(envelope.event_time >= envelope.event.due_at for envelope in told)
    state = harness.state
    if not state.is_terminal() and state.cancelling_at is None:
        last = harness.now
        assert state.due_at is UNSET or state.due_at > last
        assert all(run.due_at is UNSET or run.due_at > last for run in state.runs.values())
    marks = [] if state.late is UNSET else state.late
    assert [(mark.run_id, mark.since) for mark in marks] == [
        (envelope.event.run_id, envelope.event.due_at) for envelope in told
    ]
    live = set(state.runs) | (set() if state.is_terminal() else {None})
    assert all((mark.ended_at is None) is (mark.run_id in live) for mark in marks)
    begun = build_empty_state(state.execution_id, state.tenant_id, state.organization_id)
    again = fold_history(begun, harness.history)
    take_changes(again)
    assert codec.encode_json(again) == codec.encode_json(state)
