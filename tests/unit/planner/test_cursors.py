import pytest
from tests.support.planning import ROWS, PlannerHarness, closed, done, dry, opened
from tests.support.slices import gathered

from noetl_contracts import ids
from noetl_contracts.commands.command_work import Command, SlotWork
from noetl_contracts.commands.waits import ChildWait, MessageWait
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import FrameId, WorkerId
from noetl_contracts.requests import facts

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {slots: 2}
workflow:
  - step: drain
    loop:
      cursor: {kind: postgres, auth: db, claim: "SELECT 1"}
      iterator: row
      spec:
        mode: cursor
        max_in_flight: "{{ workload.slots }}"
        policy: {failure: {mode: drain}}
        frame: {max_rows: 5, max_attempts: 2}
    tool: {kind: noop}
    next: {arcs: [{step: after, on: loop.done}]}
  - {step: after, tool: {kind: noop}}
"""


def begun(**workload: object) -> tuple[PlannerHarness, list[Command]]:
    harness = PlannerHarness(PLAYBOOK)
    harness.start(**workload)
    return harness, harness.sent()


def slot_of(command: Command) -> SlotWork:
    assert isinstance(command.work, SlotWork)
    return command.work


def test_a_stage_opens_with_its_slots_and_their_rendered_policy() -> None:
    harness, (item, two) = begun()
    assert harness.types()[-4:] == [
        "stage.opened",
        "loop.started",
        "command.issued",
        "command.issued",
    ]
    assert (slot_of(item).slot, slot_of(two).slot) == (0, 1)
    assert slot_of(item).frame["max_rows"] == 5


def test_a_stage_closes_when_every_slot_asked_again_after_the_last_commit() -> None:
    harness, (item, two) = begun()
    harness.tell(opened(item, 0))
    harness.tell(dry(two, frames=0, next_index=0))
    assert harness.tell(closed(item, 0)) == ["frame.committed"]
    assert "stage.closed" not in harness.tell(dry(item, frames=1, next_index=1))
    (again,) = harness.sent()
    assert slot_of(again).slot == 1
    events = harness.tell(dry(again, frames=0, next_index=0))
    assert events[2:6] == ["stage.closed", "loop.done", "step.exit", "step.enter"]
    assert harness.events("stage.closed")[0].rows == 5


def test_a_dry_slot_is_asked_again_while_others_run_but_not_more_often_than_the_interval() -> None:
    harness, (item, two) = begun()
    harness.tell(opened(item, 0))
    harness.tell(dry(two, frames=0, next_index=0))
    harness.tell(closed(item, 0), opened(item, 1))
    assert harness.sent() == []
    assert harness.last is not None
    assert harness.last.wake_at is not None
    harness.wait(0.3)
    harness.tell(facts.TimerDue())
    (again,) = harness.sent()
    assert slot_of(again).slot == 1


def test_an_empty_source_closes_the_stage_at_once() -> None:
    harness, (item, two) = begun()
    harness.tell(dry(item, frames=0, next_index=0), dry(two, frames=0, next_index=0))
    assert harness.types().count("stage.closed") == 1


def test_a_lost_slot_abandons_its_frame_and_goes_on_with_the_same_rows() -> None:
    harness, (item, _) = begun()
    harness.tell(opened(item, 0, rows=3))
    lost = facts.CommandLost(command_id=item.command_id, attempt=1, reason="redelivered")
    assert harness.tell(lost) == ["frame.abandoned", "command.reissued"]
    (second,) = harness.sent()
    assert second.attempt == 2
    open_frame = slot_of(second).open_frame
    assert open_frame is not None
    assert (open_frame.frame_index, open_frame.row_count, open_frame.dispatches) == (0, 3, 1)
    assert harness.tell(lost) == []
    assert harness.tell(opened(second, 0, rows=3))[:2] == ["command.started", "frame.dispatched"]
    assert harness.events("frame.dispatched")[-1].attempt == 2


def test_tries_of_an_open_frame_that_nobody_reported_are_recorded_before_the_next() -> None:
    harness, (item, _) = begun()
    harness.tell(opened(item, 0, rows=3))
    for attempt in (1, 2):
        lost = facts.CommandLost(command_id=item.command_id, attempt=attempt, reason="redelivered")
        harness.tell(lost)
        (third,) = harness.sent()
    assert harness.tell(opened(third, 0, rows=3, attempts_before=1)) == [
        "command.started",
        "frame.dispatched",
        "frame.abandoned",
        "frame.dispatched",
        "frame.started",
    ]
    dispatched = harness.events("frame.dispatched")
    assert [(event.attempt, event.recovery is None) for event in dispatched] == [
        (1, True),
        (2, False),
        (3, True),
    ]
    assert harness.tell(opened(third, 0, rows=3, attempts_before=1)) == []
    assert harness.tell(closed(third, 0)) == ["frame.committed"]


def test_a_zombies_commit_is_rejected_once_and_changes_nothing() -> None:
    harness, (item, _) = begun()
    harness.tell(opened(item, 0))
    harness.tell(facts.CommandLost(command_id=item.command_id, attempt=1, reason="redelivered"))
    (second,) = harness.sent()
    assert harness.tell(closed(item, 0)) == ["frame.commit_rejected"]
    assert harness.tell(closed(item, 0)) == []
    harness.tell(opened(second, 0))
    assert harness.tell(closed(second, 0)) == ["frame.committed"]


def test_a_frame_that_is_lost_too_often_fails_and_with_it_the_loop() -> None:
    harness, (item, two) = begun()
    current = item
    for attempt in (1, 2):
        harness.tell(opened(current, 0))
        harness.tell(facts.CommandLost(command_id=item.command_id, attempt=attempt, reason="gone"))
        (current,) = harness.sent()
    assert harness.events("frame.failed")[0].error.kind == "frame_attempts_exhausted"
    harness.tell(dry(current, frames=0, next_index=1), dry(two, frames=0, next_index=0))
    (again,) = harness.sent()
    harness.tell(dry(again, frames=0, next_index=0))
    assert harness.types()[-1] == "playbook.failed"


def test_facts_lost_on_the_way_fence_the_holder_and_replay_from_what_is_known() -> None:
    harness, (item, _) = begun()
    harness.tell(opened(item, 0))
    # The batch with closed(0) and opened(1) never arrived.
    assert harness.tell(closed(item, 1), opened(item, 2)) == [
        "frame.commit_rejected",
        "frame.abandoned",
        "command.reissued",
        "command.rejected",
    ]
    (second,) = harness.sent()
    harness.tell(opened(second, 0))
    harness.tell(closed(second, 0), opened(second, 1, attempts_before=1))
    attempts = [event.attempt for event in harness.events("frame.dispatched")]
    assert attempts == [1, 2, 1, 2]


def test_an_end_whose_own_beginning_was_lost_is_not_taken_for_that_of_the_attempt_before() -> None:
    harness, (item, _) = begun()
    harness.tell(opened(item, 0))
    harness.tell(facts.CommandLost(command_id=item.command_id, attempt=1, reason="redelivered"))
    (second,) = harness.sent()
    # opened(0) of the second attempt never arrived: nobody could tell that its rows ran twice.
    assert harness.tell(closed(second, 0)) == ["frame.commit_rejected", "command.reissued"]
    (third,) = harness.sent()
    harness.tell(opened(third, 0, attempts_before=1))
    assert harness.tell(closed(third, 0)) == ["frame.committed"]
    assert [event.attempt for event in harness.events("frame.dispatched")] == [1, 2, 3]
    assert harness.events("frame.committed")[0].attempt == 3


def test_a_failed_row_fails_the_frame_the_loop_and_the_execution() -> None:
    harness, (item, two) = begun()
    error = ErrorObject(kind="server_error", message="500", step="drain")
    harness.tell(opened(item, 0), closed(item, 0, rows_failed=1, error=error))
    harness.tell(dry(item, frames=1, next_index=1), dry(two, frames=0, next_index=0))
    (again,) = harness.sent()
    harness.tell(dry(again, frames=0, next_index=0))
    assert harness.types()[-3:] == ["loop.failed", "step.exit", "playbook.failed"]
    assert "500" in harness.events("playbook.failed")[0].error.message


def test_cancelling_waits_for_the_workers_and_then_for_nobody() -> None:
    harness, (item, _) = begun()
    harness.tell(opened(item, 0))
    assert harness.tell(facts.CancelRequested(reason="enough")) == ["execution.cancelling"]
    harness.wait(31)
    events = harness.tell(facts.TimerDue())
    assert events[-1] == "execution.cancelled"
    assert harness.tell(closed(item, 0)) == []


@pytest.mark.parametrize("slots", [0, "many"])
def test_slots_that_are_no_number_fail_the_step(slots: object) -> None:
    harness, _ = begun(slots=slots)
    assert harness.types()[-1] == "playbook.failed"
    assert "max_in_flight" in harness.events("playbook.failed")[0].error.message


def test_the_stage_is_reentered_with_new_identities() -> None:
    harness, (item, two) = begun()
    harness.tell(dry(item, frames=0, next_index=0), dry(two, frames=0, next_index=0))
    (after,) = harness.sent()
    harness.tell(done(after))
    assert harness.types()[-1] == "playbook.completed"


def test_collected_rows_are_gathered_before_the_stage_closes() -> None:
    harness = PlannerHarness(PLAYBOOK.replace("mode: cursor", "mode: cursor\n        collect: all"))
    harness.start(slots=1)
    (item,) = harness.sent()
    harness.tell(opened(item, 0), closed(item, 0, notes=["frame_oversize"]))
    assert harness.state.warnings == 1
    events = harness.tell(dry(item, frames=1, next_index=1))
    assert "stage.closed" not in events
    collected = gathered(harness, [1, 2, 3, 4, 5])
    assert harness.tell(collected)[:2] == ["stage.closed", "loop.done"]
    stats = harness.events("loop.done")[0].stats
    assert (stats.total, stats.frames, stats.rows_claimed) == (5, 1, 5)
    assert harness.tell(collected) == []


def test_an_empty_source_has_nothing_to_gather() -> None:
    harness = PlannerHarness(PLAYBOOK.replace("mode: cursor", "mode: cursor\n        collect: all"))
    harness.start(slots=1)
    (item,) = harness.sent()
    assert "loop.done" in harness.tell(dry(item, frames=0, next_index=0))


def test_fail_fast_calls_off_the_slots_and_abandons_their_frames() -> None:
    harness = PlannerHarness(PLAYBOOK.replace("{mode: drain}", "{mode: fail_fast}"))
    harness.start()
    item, two = harness.sent()
    harness.tell(opened(item, 0), opened(two, 0))
    events = harness.tell(closed(item, 0, rows_failed=1))
    assert events[:5] == [
        "frame.failed",
        "command.cancelled",
        "command.cancelled",
        "frame.abandoned",
        "stage.closed",
    ]
    assert harness.events("loop.failed")[0].stats.failed == 1
    assert harness.tell(closed(two, 0)) == []


WIDE = PLAYBOOK.replace("{{ workload.slots }}", "{{ ctx.width | default(1) }}")


def widened(harness: PlannerHarness, width: object, request: str) -> list[str]:
    return harness.tell(facts.CtxWriteRequested(patch={"width": width}, request_id=request))


def test_more_slots_claim_at_once_when_the_expression_gives_more() -> None:
    harness = PlannerHarness(WIDE)
    harness.start()
    (one,) = harness.sent()
    assert widened(harness, 3, "a") == [
        "ctx.patched",
        "loop.resized",
        "command.issued",
        "command.issued",
    ]
    two, three = harness.sent()
    assert [slot_of(item).slot for item in (two, three)] == [1, 2]
    harness.tell(opened(two, 0), closed(two, 0))
    for item, frames in ((one, 0), (two, 1), (three, 0)):
        harness.tell(dry(item, frames=frames, next_index=frames))
    while "stage.closed" not in harness.types():
        harness.tell(
            *(dry(item, frames=0, next_index=slot_of(item).next_index) for item in harness.sent())
        )
    assert harness.events("loop.done")[0].stats.total == 5


def test_fewer_slots_end_after_the_frame_they_are_at_and_lose_no_row() -> None:
    harness = PlannerHarness(WIDE)
    harness.start()
    (item,) = harness.sent()
    widened(harness, 2, "a")
    (two,) = harness.sent()
    harness.tell(opened(two, 0))
    widened(harness, 1, "b")
    assert harness.last is not None
    assert harness.last.to_pause == [two.command_id]
    harness.tell(closed(two, 0))
    released = facts.CommandLost(
        command_id=two.command_id, attempt=two.attempt, reason="released", is_release=True
    )
    assert "command.completed" in harness.tell(released)
    assert harness.sent() == []
    harness.tell(dry(item, frames=0, next_index=0))
    while "stage.closed" not in harness.types():
        (again,) = harness.sent()
        assert slot_of(again).slot == 0
        harness.tell(dry(again, frames=0, next_index=slot_of(again).next_index))
    assert harness.events("loop.done")[0].stats.success == 5


def test_what_gives_no_number_changes_nothing() -> None:
    harness = PlannerHarness(WIDE)
    harness.start()
    assert widened(harness, "many", "a") == ["ctx.patched"]
    assert widened(harness, 0, "b") == ["ctx.patched"]
    assert widened(harness, 1, "c") == ["ctx.patched"]


def test_a_sign_of_life_is_the_open_frames() -> None:
    harness, (item, _) = begun()
    beat = facts.CommandHeartbeat(
        command_id=item.command_id, attempt=1, worker_id=WorkerId("worker-1")
    )
    assert harness.tell(beat) == ["command.heartbeat"]
    harness.tell(opened(item, 0))
    assert harness.tell(beat) == ["frame.heartbeat"]
    assert harness.state.commands[item.command_id].heard_at == harness.now


def test_a_slot_whose_row_waits_goes_on_with_the_frame_that_it_had_open() -> None:
    harness, (item, two) = begun()
    harness.tell(dry(two, frames=0, next_index=0))
    harness.tell(opened(item, 0))
    wait = ChildWait(key="1.0/ask/1/1", task="ask", path="family/double", timeout_s=60)
    parked = facts.CommandParked(
        command_id=item.command_id,
        attempt=1,
        worker_id=WorkerId("worker-1"),
        wait=wait,
        resume_ref=ROWS,
    )
    assert harness.tell(parked) == ["command.parked", "child.started"]
    (started,) = harness.events("child.started")
    ended = facts.ChildEnded(
        command_id=item.command_id,
        key=wait.key,
        child_execution_id=started.child_execution_id,
        status="COMPLETED",
    )
    assert harness.tell(ended) == ["child.ended", "command.resumed"]
    (again,) = harness.sent()
    work = slot_of(again)
    assert work.open_frame is not None
    assert (again.attempt, again.resume is not None, work.open_frame.dispatches) == (2, True, 1)
    # It says that the frame is open, which it has been all along.
    assert harness.tell(opened(again, 0)) == []
    assert harness.tell(closed(again, 0)) == ["frame.committed"]
    assert harness.tell(
        facts.CommandLost(command_id=again.command_id, attempt=2, reason="lease")
    ) == ["command.reissued"]
    (third,) = harness.sent()
    assert third.resume is None
    assert slot_of(third).open_frame is None


def test_a_parked_slot_whose_frame_is_lost_afterwards_resumes_there_again() -> None:
    harness, (item, _) = begun()
    harness.tell(opened(item, 0))
    wait = MessageWait(
        key="1.0/ask/1/1", task="ask", mode="signal", address="signal/a", timeout_s=9
    )
    parked = facts.CommandParked(
        command_id=item.command_id, attempt=1, worker_id=WorkerId("w"), wait=wait, resume_ref=ROWS
    )
    harness.tell(parked)
    harness.wait(10)
    assert "command.resumed" in harness.tell(facts.TimerDue())
    lost = facts.CommandLost(command_id=item.command_id, attempt=2, reason="lease_expired")
    assert harness.tell(lost) == ["frame.abandoned", "command.reissued"]
    (third,) = harness.sent()
    assert third.resume is not None
    assert harness.tell(opened(third, 0))[:1] == ["command.started"]
    assert harness.tell(closed(third, 0)) == ["frame.committed"]


def test_a_slot_that_waits_in_a_frame_nobody_told_of_runs_the_open_one_again() -> None:
    """The end of the first frame and the beginning of the second were lost on their way."""
    harness, (item, _) = begun()
    harness.tell(opened(item, 0))
    first, second = (
        ids.derive_frame_id(slot_of(item).stage_id, slot=slot_of(item).slot, frame_index=index)
        for index in (0, 1)
    )
    wait = ChildWait(key="1.0/ask/1/1", task="ask", path="family/double", timeout_s=60)

    def parked(command: Command, frame_id: FrameId) -> facts.CommandParked:
        return facts.CommandParked(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=WorkerId("w"),
            wait=wait,
            resume_ref=ROWS,
            frame_id=frame_id,
        )

    assert harness.tell(parked(item, second)) == ["frame.abandoned", "command.reissued"]
    again = harness.sent()[-1]
    assert again.resume is None
    work = slot_of(again)
    assert work.open_frame is not None
    assert (again.attempt, work.open_frame.frame_id, work.open_frame.dispatches) == (2, first, 1)
    # Before the new attempt has said that it runs the frame, it may not wait in it either.
    assert harness.tell(parked(again, first)) == ["command.reissued"]
    third = harness.sent()[-1]
    harness.tell(opened(third, 0))
    assert harness.tell(parked(third, first)) == ["command.parked", "child.started"]
