import pytest
from tests.support.planning import PlannerHarness, done

from noetl_contracts.requests import facts

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def harness_of(step: str, *, executor: str = "{}") -> PlannerHarness:
    return PlannerHarness(
        f"{HEAD}executor: {executor}\nworkload: {{n: 3}}\nworkflow:\n"
        f"  - {{step: first, tool: {{kind: noop}}, next: {{arcs: [{{step: slow}}]}}}}\n"
        f"  - {step}\n"
    )


SLOW = "{step: slow, tool: {kind: noop}}"


def at_slow(step: str = SLOW, *, executor: str = "{}", after_s: float = 0) -> PlannerHarness:
    harness = harness_of(step, executor=executor)
    harness.start()
    harness.wait(after_s)
    harness.tell(done(harness.sent()[0]))
    return harness


def test_an_execution_that_exceeds_its_time_fails_and_its_work_is_called_off() -> None:
    harness = at_slow(executor="{spec: {timeout: 5m}}", after_s=200)
    command = harness.sent()[0].command_id
    assert harness.last is not None
    assert harness.last.wake_at == harness.state.expires_at
    harness.wait(99)
    assert harness.tell(facts.TimerDue()) == []
    harness.wait(1)
    assert harness.tell(facts.TimerDue()) == ["command.cancelled", "step.exit", "playbook.failed"]
    assert harness.last.to_stop == [command]
    (failed,) = harness.events("playbook.failed")
    assert (failed.error.kind, failed.error.code) == ("timeout", "TIMEOUT")
    assert "300 s" in failed.error.message
    assert harness.events("command.cancelled")[0].error.kind == "cancelled"


def test_the_bound_of_an_execution_may_be_a_template_of_its_inputs() -> None:
    harness = harness_of(SLOW, executor='{spec: {timeout: "{{ workload.n * 10 }}"}}')
    harness.start(n=2)
    assert harness.state.expires_at is not None
    assert (harness.state.expires_at - harness.now).total_seconds() == 20


@pytest.mark.parametrize(
    ("bound", "kind"), [("{{ ctx.nothing }}", "template"), ("{{ 'soon' }}", "validation")]
)
def test_an_unusable_bound_fails_the_execution_at_its_start(bound: str, kind: str) -> None:
    harness = harness_of(SLOW, executor=f'{{spec: {{timeout: "{bound}"}}}}')
    assert harness.start() == ["playbook.initialized", "playbook.failed"]
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == (kind, "(executor)")


def test_an_unusable_bound_of_a_step_fails_the_step() -> None:
    harness = at_slow('{step: slow, spec: {timeout: "{{ workload.no }}"}, tool: {kind: noop}}')
    assert harness.types()[-3:] == ["step.failed", "step.exit", "playbook.failed"]
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("template", "slow")


def test_a_step_that_exceeds_its_time_fails_and_an_arc_may_handle_it() -> None:
    harness = at_slow(
        "{step: slow, spec: {timeout: 2}, tool: {kind: noop},"
        " next: {arcs: [{step: first, on: call.error}]}}"
    )
    harness.wait(2)
    types = harness.tell(facts.TimerDue())
    assert types == [
        "command.cancelled",
        "step.failed",
        "step.exit",
        "step.enter",
        "command.issued",
    ]
    assert harness.events("step.exit")[-1].targets == ["first"]


def test_a_deadline_counts_from_the_start_of_the_execution() -> None:
    step = "{step: slow, spec: {policy: {lifecycle: {deadline_s: 60}}}, tool: {kind: noop}}"
    harness = at_slow(step, after_s=50)
    harness.wait(9)
    assert harness.tell(facts.TimerDue()) == []
    harness.wait(1)
    harness.tell(facts.TimerDue())
    assert harness.events("playbook.failed")[0].error.kind == "timeout"


def test_a_step_entered_after_its_deadline_is_not_dispatched() -> None:
    step = "{step: slow, spec: {policy: {lifecycle: {deadline_s: 60}}}, tool: {kind: noop}}"
    harness = at_slow(step, after_s=61)
    assert harness.sent() == []
    assert harness.events("playbook.failed")[0].error.kind == "timeout"


def test_the_bound_of_a_loop_covers_all_of_its_items() -> None:
    harness = at_slow(
        "{step: slow, spec: {timeout: 30}, loop: {in: [1, 2], iterator: i}, tool: {kind: noop}}"
    )
    harness.wait(20)
    harness.tell(done(harness.sent()[0]))
    harness.wait(10)
    harness.tell(facts.TimerDue())
    assert harness.events("playbook.failed")[0].error.kind == "timeout"
    assert len(harness.events("command.cancelled")) == 1


def test_a_planner_that_starts_anew_knows_the_bounds_from_the_history() -> None:
    harness = at_slow(executor="{spec: {timeout: 10}}")
    again = harness_of(SLOW, executor="{spec: {timeout: 10}}")
    again.replay(harness.history)
    again.wait(10)
    again.tell(facts.TimerDue())
    assert again.types()[-1] == "playbook.failed"
