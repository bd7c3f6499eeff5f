import pytest
from tests.support.planning import Desk, closed, done, dry, opened

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


def begun(text: str) -> Desk:
    desk = Desk(text)
    desk.start()
    return desk


def test_what_runs_finishes_and_nothing_follows_until_it_is_resumed() -> None:
    desk = begun(CHAIN)
    (first,) = desk.sent()
    assert desk.tell(pause()) == ["execution.paused"]
    assert desk.state.status is ExecutionStatus.PAUSED
    assert desk.tell(done(first)) == ["command.completed", "call.done", "step.exit"]
    assert desk.tell(facts.TimerDue()) == []
    assert desk.tell(resume()) == ["execution.resumed", "step.enter", "command.issued"]
    assert desk.state.status is ExecutionStatus.RUNNING
    desk.tell(done(desk.sent()[0]))
    assert desk.types()[-1] == "playbook.completed"


def test_pausing_and_resuming_twice_is_doing_it_once() -> None:
    desk = begun(CHAIN)
    desk.tell(pause())
    assert desk.tell(pause(), pause("p2")) == []
    assert desk.tell(resume()) == ["execution.resumed"]
    assert desk.tell(resume(), resume("r2")) == []


def test_a_pause_that_comes_again_after_it_was_undone_holds_nothing() -> None:
    desk = begun(CHAIN)
    desk.tell(pause())
    desk.tell(resume())
    assert desk.tell(pause()) == []
    assert desk.tell(pause("p2")) == ["execution.paused"]
    assert desk.tell(resume()) == []


def test_no_further_item_starts_while_a_loop_is_held() -> None:
    desk = begun(ITEMS)
    one, two = desk.sent()
    desk.tell(pause())
    assert desk.tell(done(one), done(two)).count("command.issued") == 0
    assert desk.tell(resume()) == ["execution.resumed", "command.issued", "command.issued"]
    assert [command.work.index for command in desk.sent()] == [2, 3]  # type: ignore[union-attr]  # items


def test_slots_are_told_to_end_and_go_on_with_the_next_frame_afterwards() -> None:
    desk = begun(CURSOR)
    one, two = desk.sent()
    desk.tell(opened(one, 0))
    desk.tell(pause())
    assert desk.last is not None
    assert desk.last.to_pause == [one.command_id, two.command_id]
    assert desk.tell(closed(one, 0), lost(one.command_id, is_release=True)) == [
        "frame.committed",
        "command.reissued",
    ]
    assert desk.sent() == []
    desk.tell(lost(two.command_id, is_release=True))
    desk.tell(resume())
    assert [command.attempt for command in desk.sent()] == [3, 3]
    assert desk.sent()[0].work.next_index == 1  # type: ignore[union-attr]  # a slot


def test_a_slot_that_begins_during_a_pause_is_told_again() -> None:
    desk = begun(CURSOR)
    one, _ = desk.sent()
    desk.tell(pause())
    started = facts.CommandStarted(
        command_id=one.command_id,
        attempt=1,
        worker_id="w",  # type: ignore[arg-type]  # an identity is text
    )
    desk.tell(started)
    assert desk.last is not None
    assert desk.last.to_pause == [one.command_id]


def test_dry_slots_are_not_asked_again_while_held() -> None:
    desk = begun(CURSOR)
    one, two = desk.sent()
    desk.tell(opened(one, 0))
    desk.tell(dry(two, frames=0, next_index=0))
    desk.tell(pause())
    desk.tell(closed(one, 0), dry(one, frames=1, next_index=1))
    assert desk.last is not None
    assert desk.last.wake_at is None
    desk.wait(60)
    assert desk.tell(facts.TimerDue()) == []
    desk.tell(resume())
    assert [command.work.slot for command in desk.sent()] == [1]  # type: ignore[union-attr]  # slots


def test_a_command_lost_during_a_pause_is_sent_again_afterwards_and_once() -> None:
    desk = begun(CHAIN)
    (first,) = desk.sent()
    desk.tell(pause())
    assert desk.tell(lost(first.command_id)) == ["command.reissued"]
    assert desk.sent() == []
    # The reaper finds the held attempt overdue: nobody has lost it.
    assert desk.tell(lost(first.command_id, 2)) == []
    # What is sent afterwards bears a fence that nobody has called lost.
    assert desk.tell(resume()) == ["execution.resumed", "command.reissued"]
    assert [command.attempt for command in desk.sent()] == [3]
    assert desk.tell(lost(first.command_id, 2)) == []
    assert desk.state.commands[first.command_id].losses == 1


def test_bounds_go_on_counting_during_a_pause() -> None:
    desk = begun(CHAIN.replace("{step: one,", "{step: one, spec: {timeout: 5},"))
    desk.tell(pause())
    assert desk.last is not None
    assert desk.last.wake_at is not None
    desk.wait(5)
    desk.tell(facts.TimerDue())
    assert desk.events("playbook.failed")[0].error.kind == "timeout"


def test_a_held_execution_can_be_cancelled_and_waits_for_nobody() -> None:
    desk = begun(CHAIN)
    (first,) = desk.sent()
    desk.tell(pause())
    desk.tell(lost(first.command_id))
    types = desk.tell(facts.CancelRequested(reason="enough", cascade=False))
    assert types == [
        "execution.cancelling",
        "command.cancelled",
        "step.exit",
        "execution.cancelled",
    ]
    assert desk.events("execution.cancelling")[0].cascade is False
    assert desk.tell(resume()) == []


def test_a_pause_survives_the_planner() -> None:
    desk = begun(CHAIN)
    (first,) = desk.sent()
    desk.tell(pause())
    desk.tell(lost(first.command_id))
    again = Desk(CHAIN)
    again.replay(desk.history)
    assert again.state.status is ExecutionStatus.PAUSED
    again.tell(resume())
    assert [command.attempt for command in again.sent()] == [3]


def test_writes_from_outside_reach_the_next_render_once() -> None:
    desk = begun(CHAIN)
    (first,) = desk.sent()
    write = facts.CtxWriteRequested(request_id="w1", patch={"a": 1, "b": 2})
    assert desk.tell(write) == ["ctx.patched"]
    assert desk.tell(write) == []
    assert desk.tell(facts.CtxWriteRequested(request_id="w2", removed=["a", "no"])) == [
        "ctx.patched"
    ]
    assert desk.tell(facts.CtxWriteRequested(request_id="w3", removed=["a"])) == []
    desk.tell(done(first))
    assert desk.sent()[0].slice.ctx == {"b": 2}


@pytest.mark.parametrize("fact", [pause(), resume()])
def test_a_wish_about_nothing_changes_nothing(fact: facts.Fact) -> None:
    assert Desk(CHAIN).tell(fact) == []
