"""Deadlines: what is late is recorded while it goes on, once, and changes nothing else."""

from typing import Any

import pytest
from msgspec import UNSET
from tests.support.planning import NOON, PlannerHarness, done

from noetl_contracts import codec
from noetl_contracts.requests import facts
from noetl_replay import rows
from noetl_replay.fold import fold_history
from noetl_replay.fold_deadlines import LATE_MAX
from noetl_replay.state import build_empty_state

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {n: 3}\n"
FIRST = "{step: first, tool: {kind: noop}, next: {arcs: [{step: slow}]}}"
SLOW = "{step: slow, spec: {deadline: 1m}, tool: {kind: noop}}"


def harness_of(slow: str = SLOW, *, executor: str = "{}") -> PlannerHarness:
    harness = PlannerHarness(f"{HEAD}executor: {executor}\nworkflow: [{FIRST}, {slow}]\n")
    harness.start()
    return harness


def at_slow(*, after_s: float = 0, **options: Any) -> PlannerHarness:
    harness = harness_of(**options)
    harness.wait(after_s)
    harness.tell(done(harness.sent()[0]))
    return harness


def list_marks(harness: PlannerHarness) -> list[tuple[str | None, float, bool]]:
    """Return what was late, after how many seconds of the test, and whether it has ended."""
    marks = [] if harness.state.late is UNSET else harness.state.late
    return [
        (mark.step, (mark.since - NOON).total_seconds(), mark.ended_at is not None)
        for mark in marks
    ]


def test_an_execution_is_late_after_its_deadline_and_goes_on() -> None:
    harness = at_slow(slow="{step: slow, tool: {kind: noop}}", executor="{spec: {deadline: 2h}}")
    (command,) = harness.sent()
    assert harness.last is not None
    assert (harness.last.wake_at, harness.state.due_at) == (harness.state.due_at,) * 2
    harness.wait(7199)
    assert harness.tell(facts.TimerDue()) == []
    harness.wait(1)
    assert harness.tell(facts.TimerDue()) == ["deadline.passed"]
    assert (harness.state.due_at, harness.last.wake_at) == (UNSET, None)
    assert list_marks(harness) == [(None, 7200.0, False)]
    harness.wait(60)
    assert harness.tell(facts.TimerDue()) == []
    assert harness.tell(done(command))[-1] == "playbook.completed"
    assert list_marks(harness) == [(None, 7200.0, True)]


def test_a_steps_deadline_counts_from_the_steps_start() -> None:
    harness = at_slow(after_s=1000)
    harness.wait(60)
    assert harness.tell(facts.TimerDue(reason=facts.STALLED)) == ["deadline.passed"]
    (passed,) = harness.events("deadline.passed")
    (_, entered) = harness.events("step.enter")
    assert (passed.step, passed.run_id, passed.due_at) == ("slow", entered.run_id, entered.due_at)
    assert list_marks(harness) == [("slow", 1060.0, False)]


def test_what_ends_after_its_deadline_was_late_even_if_no_timer_came() -> None:
    harness = at_slow()
    harness.wait(61)
    assert harness.tell(done(harness.sent()[0]))[0] == "deadline.passed"
    assert list_marks(harness) == [("slow", 60.0, True)]


def test_what_ends_before_its_deadline_is_never_late() -> None:
    harness = at_slow(executor="{spec: {deadline: 1m}}")
    harness.wait(59)
    harness.tell(done(harness.sent()[0]))
    assert harness.state.is_terminal()
    assert "deadline.passed" not in harness.types()
    assert harness.state.due_at is UNSET


def test_time_of_a_pause_counts() -> None:
    harness = at_slow()
    harness.tell(facts.PauseRequested(request_id="p"))
    assert harness.last is not None
    assert harness.last.wake_at is not None
    harness.wait(60)
    assert harness.tell(facts.TimerDue()) == ["deadline.passed"]
    assert harness.state.paused_at is not None


def test_what_is_being_cancelled_is_no_longer_late() -> None:
    harness = at_slow()
    harness.tell(
        facts.CommandStarted(
            command_id=harness.sent()[0].command_id, attempt=1, worker_id="worker-1"
        )
    )
    harness.tell(facts.CancelRequested())
    harness.wait(60)
    harness.tell(facts.TimerDue())
    assert "deadline.passed" not in harness.types()


def test_an_execution_that_times_out_after_its_deadline_was_late() -> None:
    harness = at_slow(
        executor="{spec: {deadline: 1m, timeout: 2m}}",
        slow=FIRST.replace("first", "slow").replace(", next: {arcs: [{step: slow}]}", ""),
    )
    harness.wait(120)
    types = harness.tell(facts.TimerDue())
    assert (types[0], types[-1]) == ("deadline.passed", "playbook.failed")


def test_a_deadline_may_be_a_template_of_the_inputs() -> None:
    harness = harness_of(executor='{spec: {deadline: "{{ workload.n * 10 }}"}}')
    assert harness.state.due_at is not UNSET
    assert (harness.state.due_at - NOON).total_seconds() == 30


@pytest.mark.parametrize(
    ("deadline", "kind"), [("{{ ctx.nothing }}", "template"), ("{{ 'soon' }}", "validation")]
)
def test_an_unusable_deadline_is_refused_where_it_is_written(deadline: str, kind: str) -> None:
    harness = harness_of(executor=f'{{spec: {{deadline: "{deadline}"}}}}')
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == (kind, "(executor)")
    harness = at_slow(
        slow=f'{{step: slow, spec: {{deadline: "{deadline}"}}, tool: {{kind: noop}}}}'
    )
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == (kind, "slow")


def test_a_cycle_that_is_late_each_time_keeps_its_latest_marks() -> None:
    slow = SLOW.replace("tool", "next: {arcs: [{step: slow}]}, tool")
    harness = at_slow(slow=slow)
    for _ in range(LATE_MAX + 2):
        (command,) = harness.sent()
        harness.wait(60)
        harness.tell(done(command))
    marks = list_marks(harness)
    assert len(marks) == LATE_MAX
    assert marks[-1] == ("slow", 60.0 * (LATE_MAX + 2), True)


def test_the_row_of_an_execution_says_what_is_late() -> None:
    harness = at_slow()
    assert "late" not in rows.build_execution_row(harness.state)
    harness.wait(60)
    harness.tell(facts.TimerDue())
    (mark,) = rows.build_execution_row(harness.state)["late"]
    assert (mark["step"], mark["ended_at"]) == ("slow", None)
    assert mark["since"] == codec.to_builtins(harness.events("step.enter")[1].due_at)


def test_a_planner_that_starts_anew_records_no_deadline_twice() -> None:
    harness = at_slow(executor="{spec: {deadline: 1m}}")
    harness.wait(60)
    harness.tell(facts.TimerDue())
    assert harness.types().count("deadline.passed") == 2
    state = harness.state
    harness.state = fold_history(
        build_empty_state(state.execution_id, state.tenant_id, state.organization_id),
        harness.history,
    )
    assert harness.tell(facts.TimerDue(), facts.TimerDue(reason=facts.STALLED)) == []
    assert len({envelope.idempotency_key for envelope in harness.history}) == len(harness.history)
