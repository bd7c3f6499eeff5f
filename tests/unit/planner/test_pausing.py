import pytest
from tests.support.planning import PlannerHarness, closed, done, dry, opened

from noetl_contracts.requests import facts
from noetl_contracts.status import ExecutionStatus

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
CHAIN = (
    HEAD
    + """
workflow:
  - {step: one, tool: {kind: noop}, next: {arcs: [{step: two}]}}
  - {step: two, tool: {kind: noop}}
"""
)
ITEMS = (
    HEAD
    + """
workflow:
  - step: each
    loop: {in: [1, 2, 3, 4], iterator: i, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop}
"""
)
CURSOR = (
    HEAD
    + """
workflow:
  - step: drain
    loop:
      cursor: {kind: postgres, auth: db, claim: "SELECT 1"}
      iterator: row
      spec: {mode: cursor, max_in_flight: 2, frame: {max_rows: 5}}
    tool: {kind: noop}
"""
)


def pause(request_id: str = "p1") -> facts.PauseRequested:
    return facts.PauseRequested(request_id=request_id, reason="a look", requested_by="test")


def resume(request_id: str = "r1") -> facts.ResumeRequested:
    return facts.ResumeRequested(request_id=request_id)


def lost(command_id: str, attempt: int = 1, *, is_release: bool = False) -> facts.CommandLost:
    return facts.CommandLost(
        command_id=command_id,  # type: ignore[arg-type]  # an identity is text
        attempt=attempt,
        reason="gone",
        is_release=is_release,
    )


def begun(text: str) -> PlannerHarness:
    harness = PlannerHarness(text)
    harness.start()
    return harness


def test_what_runs_finishes_and_nothing_follows_until_it_is_resumed() -> None:
    harness = begun(CHAIN)
    (first,) = harness.sent()
    assert harness.tell(pause()) == ["execution.paused"]
    assert harness.state.status is ExecutionStatus.PAUSED
    assert harness.tell(done(first)) == ["command.completed", "call.done", "step.exit"]
    assert harness.tell(facts.TimerDue()) == []
    assert harness.tell(resume()) == ["execution.resumed", "step.enter", "command.issued"]
    assert harness.state.status is ExecutionStatus.RUNNING
    harness.tell(done(harness.sent()[0]))
    assert harness.types()[-1] == "playbook.completed"


def test_pausing_and_resuming_twice_is_doing_it_once() -> None:
    harness = begun(CHAIN)
    harness.tell(pause())
    assert harness.tell(pause(), pause("p2")) == []
    assert harness.tell(resume()) == ["execution.resumed"]
    assert harness.tell(resume(), resume("r2")) == []


def test_a_pause_that_comes_again_after_it_was_undone_holds_nothing() -> None:
    harness = begun(CHAIN)
    harness.tell(pause())
    harness.tell(resume())
    assert harness.tell(pause()) == []
    assert harness.tell(pause("p2")) == ["execution.paused"]
    assert harness.tell(resume()) == []


def test_no_further_item_starts_while_a_loop_is_held() -> None:
    harness = begun(ITEMS)
    item, two = harness.sent()
    harness.tell(pause())
    assert harness.tell(done(item), done(two)).count("command.issued") == 0
    assert harness.tell(resume()) == ["execution.resumed", "command.issued", "command.issued"]
    assert [command.work.index for command in harness.sent()] == [2, 3]  # type: ignore[union-attr]  # items


def test_slots_are_told_to_end_and_go_on_with_the_next_frame_afterwards() -> None:
    harness = begun(CURSOR)
    item, two = harness.sent()
    harness.tell(opened(item, 0))
    harness.tell(pause())
    assert harness.last is not None
    assert harness.last.to_pause == [item.command_id, two.command_id]
    assert harness.tell(closed(item, 0), lost(item.command_id, is_release=True)) == [
        "frame.committed",
        "command.reissued",
    ]
    assert harness.sent() == []
    harness.tell(lost(two.command_id, is_release=True))
    harness.tell(resume())
    assert [command.attempt for command in harness.sent()] == [3, 3]
    assert harness.sent()[0].work.next_index == 1  # type: ignore[union-attr]  # a slot


def test_a_slot_that_begins_during_a_pause_is_told_again() -> None:
    harness = begun(CURSOR)
    item, _ = harness.sent()
    harness.tell(pause())
    started = facts.CommandStarted(
        command_id=item.command_id,
        attempt=1,
        worker_id="w",  # type: ignore[arg-type]  # an identity is text
    )
    harness.tell(started)
    assert harness.last is not None
    assert harness.last.to_pause == [item.command_id]


def test_dry_slots_are_not_asked_again_while_held() -> None:
    harness = begun(CURSOR)
    item, two = harness.sent()
    harness.tell(opened(item, 0))
    harness.tell(dry(two, frames=0, next_index=0))
    harness.tell(pause())
    harness.tell(closed(item, 0), dry(item, frames=1, next_index=1))
    assert harness.last is not None
    assert harness.last.wake_at is None
    harness.wait(60)
    assert harness.tell(facts.TimerDue()) == []
    harness.tell(resume())
    assert [command.work.slot for command in harness.sent()] == [1]  # type: ignore[union-attr]  # slots


def test_a_command_lost_during_a_pause_is_sent_again_afterwards_and_once() -> None:
    harness = begun(CHAIN)
    (first,) = harness.sent()
    harness.tell(pause())
    assert harness.tell(lost(first.command_id)) == ["command.reissued"]
    assert harness.sent() == []
    # The reaper finds the held attempt overdue: nobody has lost it.
    assert harness.tell(lost(first.command_id, 2)) == []
    # What is sent afterwards bears a fence that nobody has called lost.
    assert harness.tell(resume()) == ["execution.resumed", "command.reissued"]
    assert [command.attempt for command in harness.sent()] == [3]
    assert harness.tell(lost(first.command_id, 2)) == []
    assert harness.state.commands[first.command_id].losses == 1


def test_bounds_go_on_counting_during_a_pause() -> None:
    harness = begun(CHAIN.replace("{step: one,", "{step: one, spec: {timeout: 5},"))
    harness.tell(pause())
    assert harness.last is not None
    assert harness.last.wake_at is not None
    harness.wait(5)
    harness.tell(facts.TimerDue())
    assert harness.events("playbook.failed")[0].error.kind == "timeout"


def test_a_held_execution_can_be_cancelled_and_waits_for_nobody() -> None:
    harness = begun(CHAIN)
    (first,) = harness.sent()
    harness.tell(pause())
    harness.tell(lost(first.command_id))
    types = harness.tell(facts.CancelRequested(reason="enough", cascade=False))
    assert types == [
        "execution.cancelling",
        "command.cancelled",
        "step.exit",
        "execution.cancelled",
    ]
    assert harness.events("execution.cancelling")[0].cascade is False
    assert harness.tell(resume()) == []


def test_a_pause_survives_the_planner() -> None:
    harness = begun(CHAIN)
    (first,) = harness.sent()
    harness.tell(pause())
    harness.tell(lost(first.command_id))
    again = PlannerHarness(CHAIN)
    again.replay(harness.history)
    assert again.state.status is ExecutionStatus.PAUSED
    again.tell(resume())
    assert [command.attempt for command in again.sent()] == [3]


def test_writes_from_outside_reach_the_next_render_once() -> None:
    harness = begun(CHAIN)
    (first,) = harness.sent()
    write = facts.CtxWriteRequested(request_id="w1", patch={"a": 1, "b": 2})
    assert harness.tell(write) == ["ctx.patched"]
    assert harness.tell(write) == []
    assert harness.tell(facts.CtxWriteRequested(request_id="w2", removed=["a", "no"])) == [
        "ctx.patched"
    ]
    assert harness.tell(facts.CtxWriteRequested(request_id="w3", removed=["a"])) == []
    harness.tell(done(first))
    assert harness.sent()[0].slice.ctx == {"b": 2}


@pytest.mark.parametrize("fact", [pause(), resume()])
def test_a_wish_about_nothing_changes_nothing(fact: facts.Fact) -> None:
    assert PlannerHarness(CHAIN).tell(fact) == []
