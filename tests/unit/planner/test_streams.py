"""Streams: chunks in, activations out, and when the producer is over."""

import pytest
from tests.support.planning import WORKER, Desk, done
from tests.support.streams import begun, chunk, failed, gather, playbook

from noetl_contracts import codec
from noetl_contracts.commands.command_work import ChunkWork, Command, StepWork, StreamProgress
from noetl_contracts.requests import facts
from noetl_contracts.status import ExecutionStatus
from noetl_replay import snapshot


def activations(desk: Desk) -> list[int]:
    return [one.work.index for one in desk.sent() if isinstance(one.work, ChunkWork)]


def indices(desk: Desk) -> list[int]:
    return [one.work.chunk.index for one in desk.sent() if isinstance(one.work, ChunkWork)]


def taken(desk: Desk, command: Command) -> StreamProgress:
    assert desk.last is not None
    return desk.last.taken[command.command_id]


def finish(desk: Desk) -> None:
    """Answer every command of plain steps until nothing is left."""
    while desk.last is not None and desk.last.commands:
        desk.tell(*(done(command) for command in desk.sent()))


@pytest.mark.parametrize("in_flight", [1, 2])
def test_chunks_run_in_order_no_more_at_once_than_the_arc_allows(in_flight: int) -> None:
    desk, producer = begun(playbook(in_flight=in_flight))
    desk.tell(*(chunk(producer, index) for index in range(4)))
    running = desk.sent()
    assert indices(desk) == list(range(in_flight))
    assert taken(desk, producer) == StreamProgress(received=4, accepted=in_flight)
    order = indices(desk)
    while running:
        desk.tell(done(running.pop(0)))
        order += indices(desk)
        running += desk.sent()
    assert order == [0, 1, 2, 3]
    assert taken(desk, producer) == StreamProgress(received=4, accepted=4)
    assert desk.state.status is ExecutionStatus.RUNNING


def test_other_arcs_wait_for_the_producer_and_for_every_chunk() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    first, second = desk.sent()
    desk.tell(done(producer, {"row_count": 4}))
    assert not desk.sent()
    desk.tell(done(first))
    assert desk.last is not None
    assert not desk.last.to_collect
    desk.tell(done(second))
    assert len(desk.last.to_collect) == 1
    gather(desk, [1, 2])
    assert [one.step for one in desk.sent()] == ["wrap_up"]
    assert desk.state.ctx["chunks"] == {"total": 2, "done": 2, "failed": 0}
    finish(desk)
    assert desk.state.status is ExecutionStatus.COMPLETED
    assert [one.step for one in desk.events("step.enter")] == ["export", "ship", "wrap_up", "end"]
    assert desk.state.steps["ship"].result is not None


def test_a_stream_without_chunks_ends_with_its_producer() -> None:
    desk, producer = begun(playbook())
    desk.tell(done(producer))
    assert [one.step for one in desk.sent()] == ["wrap_up"]
    assert desk.state.ctx["chunks"] == {"total": 0, "done": 0, "failed": 0}


def test_a_target_that_is_done_before_its_producer_waits_for_more() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0))
    desk.tell(done(desk.sent()[0]))
    assert desk.last is not None
    assert not desk.last.to_collect
    desk.tell(chunk(producer, 1, more=False))
    assert activations(desk) == [1]
    desk.tell(done(producer))
    assert not desk.last.to_collect


def test_a_failed_chunk_fails_the_producing_step() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    first, second = desk.sent()
    desk.tell(failed(first))
    desk.tell(chunk(producer, 2))
    (third,) = desk.sent()
    desk.tell(done(producer), done(second), done(third))
    gather(desk)
    assert [one.step for one in desk.sent()] == ["repair"]
    assert desk.state.ctx["error"] == "chunk_failed"
    export, ship = desk.state.steps["export"], desk.state.steps["ship"]
    assert export.status == ship.status == "FAILED"
    assert export.error is not None
    assert "1 of 3 chunks" in export.error.message
    assert "broken ship" in export.error.message


def test_an_unhandled_chunk_failure_fails_the_execution() -> None:
    text = playbook().replace("- {step: repair, on: call.error", "- {step: repair, on: loop.done")
    desk, producer = begun(text)
    desk.tell(chunk(producer, 0))
    desk.tell(failed(desk.sent()[0]), done(producer))
    gather(desk)
    assert desk.state.status is ExecutionStatus.FAILED
    assert desk.state.failure is not None
    assert (desk.state.failure.kind, desk.state.failed_step) == ("chunk_failed", "export")


@pytest.mark.parametrize(
    ("policy", "next_step"),
    [
        ("{mode: best_effort}", "wrap_up"),
        ("{mode: drain, max_failed: 1}", "wrap_up"),
        ("{mode: drain, max_failed: '25%'}", "repair"),
        ("{mode: drain, max_failed: 2, min_success: 3}", "repair"),
    ],
)
def test_the_failure_policy_of_the_step_decides(policy: str, next_step: str) -> None:
    desk, producer = begun(playbook(spec=f"spec: {{policy: {{failure: {policy}}}}}"))
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    first, second = desk.sent()
    desk.tell(failed(first), done(second), done(producer))
    gather(desk)
    assert [one.step for one in desk.sent()] == [next_step]


def test_fail_fast_stops_the_producer_and_the_other_activations() -> None:
    desk, producer = begun(playbook(spec="spec: {policy: {failure: {mode: fail_fast}}}"))
    desk.tell(*(chunk(producer, index) for index in range(4)))
    first, second = desk.sent()
    desk.tell(failed(first))
    assert desk.last is not None
    assert set(desk.last.to_stop) == {producer.command_id, second.command_id}
    assert not desk.sent()
    assert not desk.state.commands
    gather(desk)
    assert [one.step for one in desk.sent()] == ["repair"]
    assert desk.state.ctx["error"] == "chunk_failed"
    assert desk.events("loop.failed")[0].stats.cancelled == 3


def test_a_failed_producer_ends_after_the_chunks_that_it_gave() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0))
    (first,) = desk.sent()
    desk.tell(failed(producer, "db_error"))
    assert not desk.sent()
    desk.tell(done(first))
    gather(desk)
    assert [one.step for one in desk.sent()] == ["repair"]
    assert desk.state.ctx["error"] == "db_error"


def test_a_repeated_or_early_chunk_changes_nothing_and_is_answered() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0))
    assert desk.tell(chunk(producer, 0)) == []
    assert taken(desk, producer) == StreamProgress(received=1, accepted=1)
    assert desk.tell(chunk(producer, 2)) == []
    assert taken(desk, producer) == StreamProgress(received=1, accepted=1)


def test_a_lost_producer_is_told_how_many_chunks_have_arrived() -> None:
    desk, producer = begun(playbook(in_flight=4))
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    lost = facts.CommandLost(command_id=producer.command_id, attempt=1, reason="lease")
    desk.tell(lost)
    (again,) = desk.sent()
    assert again.work == StepWork(chunks=2)
    assert "call.partial" not in desk.tell(chunk(producer, 2)), "the first attempt is over"
    assert "call.partial" not in desk.tell(chunk(again, 1))
    assert "call.partial" in desk.tell(chunk(again, 2))


def test_a_lost_activation_is_sent_again_with_its_chunk() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0))
    (first,) = desk.sent()
    desk.tell(facts.CommandLost(command_id=first.command_id, attempt=1, reason="lease"))
    (again,) = desk.sent()
    assert again.attempt == 2
    assert again.work == first.work


def test_a_producer_that_is_lost_for_good_fails_with_worker_lost() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0))
    (first,) = desk.sent()
    for attempt in (1, 2, 3):
        lost = facts.CommandLost(command_id=producer.command_id, attempt=attempt, reason="lease")
        desk.tell(lost)
    desk.tell(done(first))
    gather(desk)
    assert desk.state.ctx["error"] == "worker_lost"


def test_cancel_stops_the_producer_and_its_targets() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0))
    (first,) = desk.sent()
    desk.tell(facts.CancelRequested())
    assert desk.last is not None
    assert set(desk.last.to_stop) == {producer.command_id, first.command_id}
    assert "call.partial" not in desk.tell(chunk(producer, 1))
    for one in (producer, first):
        desk.tell(
            facts.CommandStopped(command_id=one.command_id, attempt=one.attempt, worker_id=WORKER)
        )
    assert desk.state.status is ExecutionStatus.CANCELLED


def test_a_paused_execution_accepts_nothing_until_it_goes_on() -> None:
    desk, producer = begun(playbook())
    desk.tell(facts.PauseRequested(request_id="1"))
    desk.tell(chunk(producer, 0))
    assert not desk.sent()
    assert taken(desk, producer) == StreamProgress(received=1, accepted=0)
    desk.tell(facts.ResumeRequested(request_id="2"))
    assert indices(desk) == [0]


def test_when_and_set_count_per_chunk() -> None:
    counted = "{{ ctx.rows | default(0) + chunk.row_count }}"
    arc = f', when: "{{{{ chunk.index != 1 }}}}", set: {{ctx.rows: "{counted}"}}'
    desk, producer = begun(playbook(in_flight=4, arc=arc))
    desk.tell(*(chunk(producer, index) for index in range(3)))
    assert list(zip(activations(desk), indices(desk), strict=True)) == [(0, 0), (1, 2)]
    assert desk.state.ctx["rows"] == 4
    assert [one.targets for one in desk.events("call.partial")] == [["ship"], [], ["ship"]]
    desk.tell(*(done(one) for one in desk.sent()), done(producer))
    gather(desk)
    assert desk.state.ctx["chunks"] == {"total": 3, "done": 3, "failed": 0}


def test_the_rows_of_a_chunk_are_loaded_when_a_condition_names_them() -> None:
    desk, producer = begun(playbook(arc=', when: "{{ output.data.rows[0].ok }}"'))
    for index, is_ok in enumerate([True, False]):
        desk.loaded[f"{index:064d}"] = [{"ok": is_ok}, {"ok": True}]
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    assert indices(desk) == [0]


def test_the_set_of_a_target_counts_per_chunk() -> None:
    block = (
        'set: {ctx.last: "{{ chunk.index }}", ctx.sum: "{{ ctx.sum | default(0) + output.data }}"}'
    )
    desk, producer = begun(playbook(target=block))
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    for number, one in enumerate(desk.sent(), start=1):
        desk.tell(done(one, number * 10))
    assert desk.state.ctx == {"last": 1, "sum": 30}


def test_an_admission_rule_leaves_chunks_out() -> None:
    rule = 'rules: [{when: "{{ chunk.index > 0 }}", then: {allow: true}}]'
    desk, producer = begun(playbook(target=f"spec: {{policy: {{admit: {{{rule}}}}}}}"))
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    assert indices(desk) == [1]


def test_a_template_that_fails_ends_the_stream() -> None:
    desk, producer = begun(playbook(arc=", set: {ctx.x: '{{ chunk.nothing }}'}"))
    desk.tell(chunk(producer, 0))
    assert desk.state.ctx["error"] == "template"
    assert not [one for one in desk.state.commands.values() if one.step == "export"]


def test_one_chunk_may_lead_to_several_targets() -> None:
    text = (
        playbook(mode="inclusive").replace(
            "        - {step: wrap_up",
            "        - {step: audit, on: call.partial, spec: {max_in_flight: 1}}\n"
            "        - {step: wrap_up",
        )
        + "  - {step: audit, tool: {kind: noop}}\n"
    )
    desk, producer = begun(text)
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    first = desk.sent()
    assert [
        (one.step, one.work.chunk.index) for one in first if isinstance(one.work, ChunkWork)
    ] == [
        ("ship", 0),
        ("audit", 0),
        ("ship", 1),
    ]
    assert taken(desk, producer) == StreamProgress(received=2, accepted=1)
    desk.tell(*(done(one) for one in first))
    desk.tell(failed(desk.sent()[0]), done(producer))
    gather(desk)
    assert desk.state.ctx["error"] == "chunk_failed"
    assert len(desk.events("loop.done")) == len(desk.events("loop.failed")) == 1


def test_a_timeout_ends_the_stream_and_its_targets() -> None:
    desk, producer = begun(playbook(spec="spec: {timeout: 10}"))
    desk.tell(chunk(producer, 0))
    desk.wait(11)
    desk.tell(facts.TimerDue())
    assert [one.step for one in desk.sent()] == ["repair"]
    assert desk.state.ctx["error"] == "timeout"
    assert {one.step: one.status for one in desk.events("step.exit")} == {
        "ship": "CANCELLED",
        "export": "FAILED",
    }


def test_a_late_target_fails_its_producer() -> None:
    desk, producer = begun(playbook(target="spec: {timeout: 10}"))
    desk.tell(chunk(producer, 0))
    desk.wait(11)
    desk.tell(facts.TimerDue())
    assert desk.state.ctx["error"] == "chunk_failed"


def test_the_state_holds_no_chunk_that_is_done_with() -> None:
    desk, producer = begun(playbook(in_flight=2))
    for index in range(200):
        desk.tell(chunk(producer, index))
        desk.tell(*(done(one) for one in desk.sent()))
    (streaming,) = [run.stream for run in desk.state.runs.values() if run.stream is not None]
    (feed,) = [run.feed for run in desk.state.runs.values() if run.feed is not None]
    assert not streaming.open
    assert not feed.open
    assert streaming.done == 200
    assert len(codec.encode_json(desk.state)) < 8_000


def test_a_stream_goes_on_from_a_snapshot_and_from_its_history() -> None:
    desk, producer = begun(playbook(in_flight=1))
    desk.tell(chunk(producer, 0), chunk(producer, 1))
    (first,) = desk.sent()
    again = Desk(playbook(in_flight=1))
    again.replay(desk.history)
    assert codec.encode_json(again.state) == codec.encode_json(desk.state)
    again.tell(done(first))
    assert indices(again) == [1]
    restored = snapshot.restore_state(snapshot.build_snapshot(desk.state))
    assert restored is not None
    desk.state = restored
    desk.tell(done(first))
    assert indices(desk) == [1]


def test_a_target_has_the_result_of_a_loop() -> None:
    desk, producer = begun(playbook())
    desk.tell(chunk(producer, 0, more=False))
    desk.tell(done(desk.sent()[0]), done(producer))
    gather(desk, ["a"])
    ship = desk.state.steps["ship"]
    assert ship.result is not None
    assert ship.result.context["data"]["results"] == ["a"]
