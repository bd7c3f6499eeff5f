import pytest
from tests.support.planning import Desk, done

from noetl_contracts.requests import facts

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def desk_of(step: str, *, executor: str = "{}") -> Desk:
    return Desk(
        f"{HEAD}executor: {executor}\nworkload: {{n: 3}}\nworkflow:\n"
        f"  - {{step: first, tool: {{kind: noop}}, next: {{arcs: [{{step: slow}}]}}}}\n"
        f"  - {step}\n"
    )


SLOW = "{step: slow, tool: {kind: noop}}"


def at_slow(step: str = SLOW, *, executor: str = "{}", after_s: float = 0) -> Desk:
    desk = desk_of(step, executor=executor)
    desk.start()
    desk.wait(after_s)
    desk.tell(done(desk.sent()[0]))
    return desk


def test_an_execution_that_exceeds_its_time_fails_and_its_work_is_called_off() -> None:
    desk = at_slow(executor="{spec: {timeout: 5m}}", after_s=200)
    command = desk.sent()[0].command_id
    assert desk.last is not None
    assert desk.last.wake_at == desk.state.expires_at
    desk.wait(99)
    assert desk.tell(facts.TimerDue()) == []
    desk.wait(1)
    assert desk.tell(facts.TimerDue()) == ["command.cancelled", "step.exit", "playbook.failed"]
    assert desk.last.to_stop == [command]
    (failed,) = desk.events("playbook.failed")
    assert (failed.error.kind, failed.error.code) == ("timeout", "TIMEOUT")
    assert "300 s" in failed.error.message
    assert desk.events("command.cancelled")[0].error.kind == "cancelled"


def test_the_bound_of_an_execution_may_be_a_template_of_its_inputs() -> None:
    desk = desk_of(SLOW, executor='{spec: {timeout: "{{ workload.n * 10 }}"}}')
    desk.start(n=2)
    assert desk.state.expires_at is not None
    assert (desk.state.expires_at - desk.now).total_seconds() == 20


@pytest.mark.parametrize(
    ("bound", "kind"), [("{{ ctx.nothing }}", "template"), ("{{ 'soon' }}", "validation")]
)
def test_an_unusable_bound_fails_the_execution_at_its_start(bound: str, kind: str) -> None:
    desk = desk_of(SLOW, executor=f'{{spec: {{timeout: "{bound}"}}}}')
    assert desk.start() == ["playbook.initialized", "playbook.failed"]
    error = desk.events("playbook.failed")[0].error
    assert (error.kind, error.step) == (kind, "(executor)")


def test_an_unusable_bound_of_a_step_fails_the_step() -> None:
    desk = at_slow('{step: slow, spec: {timeout: "{{ workload.no }}"}, tool: {kind: noop}}')
    assert desk.types()[-3:] == ["step.failed", "step.exit", "playbook.failed"]
    error = desk.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("template", "slow")


def test_a_step_that_exceeds_its_time_fails_and_an_arc_may_handle_it() -> None:
    desk = at_slow(
        "{step: slow, spec: {timeout: 2}, tool: {kind: noop},"
        " next: {arcs: [{step: first, on: call.error}]}}"
    )
    desk.wait(2)
    types = desk.tell(facts.TimerDue())
    assert types == [
        "command.cancelled",
        "step.failed",
        "step.exit",
        "step.enter",
        "command.issued",
    ]
    assert desk.events("step.exit")[-1].targets == ["first"]


def test_a_deadline_counts_from_the_start_of_the_execution() -> None:
    step = "{step: slow, spec: {policy: {lifecycle: {deadline_s: 60}}}, tool: {kind: noop}}"
    desk = at_slow(step, after_s=50)
    desk.wait(9)
    assert desk.tell(facts.TimerDue()) == []
    desk.wait(1)
    desk.tell(facts.TimerDue())
    assert desk.events("playbook.failed")[0].error.kind == "timeout"


def test_a_step_entered_after_its_deadline_is_not_dispatched() -> None:
    step = "{step: slow, spec: {policy: {lifecycle: {deadline_s: 60}}}, tool: {kind: noop}}"
    desk = at_slow(step, after_s=61)
    assert desk.sent() == []
    assert desk.events("playbook.failed")[0].error.kind == "timeout"


def test_the_bound_of_a_loop_covers_all_of_its_items() -> None:
    desk = at_slow(
        "{step: slow, spec: {timeout: 30}, loop: {in: [1, 2], iterator: i}, tool: {kind: noop}}"
    )
    desk.wait(20)
    desk.tell(done(desk.sent()[0]))
    desk.wait(10)
    desk.tell(facts.TimerDue())
    assert desk.events("playbook.failed")[0].error.kind == "timeout"
    assert len(desk.events("command.cancelled")) == 1


def test_a_planner_that_starts_anew_knows_the_bounds_from_the_history() -> None:
    desk = at_slow(executor="{spec: {timeout: 10}}")
    again = desk_of(SLOW, executor="{spec: {timeout: 10}}")
    again.replay(desk.history)
    again.wait(10)
    again.tell(facts.TimerDue())
    assert again.types()[-1] == "playbook.failed"
