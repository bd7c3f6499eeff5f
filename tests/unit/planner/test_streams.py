"""Streams: chunks in, activations out, and when the producer is over."""

import pytest
from tests.support.planning import WORKER, PlannerHarness, done
from tests.support.streams import begun, chunk, failed, gather, playbook

from noetl_contracts import codec
from noetl_contracts.commands.command_work import ChunkWork, Command, StepWork, StreamProgress
from noetl_contracts.requests import facts
from noetl_contracts.status import ExecutionStatus
from noetl_replay import snapshot


def activations(harness: PlannerHarness) -> list[int]:
    return [item.work.index for item in harness.sent() if isinstance(item.work, ChunkWork)]


def indices(harness: PlannerHarness) -> list[int]:
    return [item.work.chunk.index for item in harness.sent() if isinstance(item.work, ChunkWork)]


def taken(harness: PlannerHarness, command: Command) -> StreamProgress:
    assert harness.last is not None
    return harness.last.stream_progress[command.command_id]


def finish(harness: PlannerHarness) -> None:
    """Answer every command of plain steps until nothing is left."""
    while harness.last is not None and harness.last.commands:
        harness.tell(*(done(command) for command in harness.sent()))


@pytest.mark.parametrize("in_flight", [1, 2])
def test_chunks_run_in_order_no_more_at_once_than_the_arc_allows(in_flight: int) -> None:
    harness, producer = begun(playbook(in_flight=in_flight))
    harness.tell(*(chunk(producer, index) for index in range(4)))
    running = harness.sent()
    assert indices(harness) == list(range(in_flight))
    assert taken(harness, producer) == StreamProgress(received=4, accepted=in_flight)
    order = indices(harness)
    while running:
        harness.tell(done(running.pop(0)))
        order += indices(harness)
        running += harness.sent()
    assert order == [0, 1, 2, 3]
    assert taken(harness, producer) == StreamProgress(received=4, accepted=4)
    assert harness.state.status is ExecutionStatus.RUNNING


def test_other_arcs_wait_for_the_producer_and_for_every_chunk() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    first, second = harness.sent()
    harness.tell(done(producer, {"row_count": 4}))
    assert not harness.sent()
    harness.tell(done(first))
    assert harness.last is not None
    assert not harness.last.to_collect
    harness.tell(done(second))
    assert len(harness.last.to_collect) == 1
    gather(harness, [1, 2])
    assert [item.step for item in harness.sent()] == ["wrap_up"]
    assert harness.state.ctx["chunks"] == {"total": 2, "done": 2, "failed": 0}
    finish(harness)
    assert harness.state.status is ExecutionStatus.COMPLETED
    assert [item.step for item in harness.events("step.enter")] == [
        "export",
        "ship",
        "wrap_up",
        "end",
    ]
    assert harness.state.steps["ship"].result is not None


def test_a_stream_without_chunks_ends_with_its_producer() -> None:
    harness, producer = begun(playbook())
    harness.tell(done(producer))
    assert [item.step for item in harness.sent()] == ["wrap_up"]
    assert harness.state.ctx["chunks"] == {"total": 0, "done": 0, "failed": 0}


def test_a_target_that_is_done_before_its_producer_waits_for_more() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0))
    harness.tell(done(harness.sent()[0]))
    assert harness.last is not None
    assert not harness.last.to_collect
    harness.tell(chunk(producer, 1, more=False))
    assert activations(harness) == [1]
    harness.tell(done(producer))
    assert not harness.last.to_collect


def test_a_failed_chunk_fails_the_producing_step() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    first, second = harness.sent()
    harness.tell(failed(first))
    harness.tell(chunk(producer, 2))
    (third,) = harness.sent()
    harness.tell(done(producer), done(second), done(third))
    gather(harness)
    assert [item.step for item in harness.sent()] == ["repair"]
    assert harness.state.ctx["error"] == "chunk_failed"
    export, ship = harness.state.steps["export"], harness.state.steps["ship"]
    assert export.status == ship.status == "FAILED"
    assert export.error is not None
    assert "1 of 3 chunks" in export.error.message
    assert "broken ship" in export.error.message


def test_an_unhandled_chunk_failure_fails_the_execution() -> None:
    text = playbook().replace("- {step: repair, on: call.error", "- {step: repair, on: loop.done")
    harness, producer = begun(text)
    harness.tell(chunk(producer, 0))
    harness.tell(failed(harness.sent()[0]), done(producer))
    gather(harness)
    assert harness.state.status is ExecutionStatus.FAILED
    assert harness.state.failure is not None
    assert (harness.state.failure.kind, harness.state.failed_step) == ("chunk_failed", "export")


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
    harness, producer = begun(playbook(spec=f"spec: {{policy: {{failure: {policy}}}}}"))
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    first, second = harness.sent()
    harness.tell(failed(first), done(second), done(producer))
    gather(harness)
    assert [item.step for item in harness.sent()] == [next_step]


def test_fail_fast_stops_the_producer_and_the_other_activations() -> None:
    harness, producer = begun(playbook(spec="spec: {policy: {failure: {mode: fail_fast}}}"))
    harness.tell(*(chunk(producer, index) for index in range(4)))
    first, second = harness.sent()
    harness.tell(failed(first))
    assert harness.last is not None
    assert set(harness.last.to_stop) == {producer.command_id, second.command_id}
    assert not harness.sent()
    assert not harness.state.commands
    gather(harness)
    assert [item.step for item in harness.sent()] == ["repair"]
    assert harness.state.ctx["error"] == "chunk_failed"
    assert harness.events("loop.failed")[0].stats.cancelled == 3


def test_a_failed_producer_ends_after_the_chunks_that_it_gave() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0))
    (first,) = harness.sent()
    harness.tell(failed(producer, "db_error"))
    assert not harness.sent()
    harness.tell(done(first))
    gather(harness)
    assert [item.step for item in harness.sent()] == ["repair"]
    assert harness.state.ctx["error"] == "db_error"


def test_a_repeated_or_early_chunk_changes_nothing_and_is_answered() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0))
    assert harness.tell(chunk(producer, 0)) == []
    assert taken(harness, producer) == StreamProgress(received=1, accepted=1)
    assert harness.tell(chunk(producer, 2)) == []
    assert taken(harness, producer) == StreamProgress(received=1, accepted=1)


def test_a_lost_producer_is_told_how_many_chunks_have_arrived() -> None:
    harness, producer = begun(playbook(in_flight=4))
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    lost = facts.CommandLost(command_id=producer.command_id, attempt=1, reason="lease")
    harness.tell(lost)
    (again,) = harness.sent()
    assert again.work == StepWork(chunks=2)
    assert "call.partial" not in harness.tell(chunk(producer, 2)), "the first attempt is over"
    assert "call.partial" not in harness.tell(chunk(again, 1))
    assert "call.partial" in harness.tell(chunk(again, 2))


def test_a_lost_activation_is_sent_again_with_its_chunk() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0))
    (first,) = harness.sent()
    harness.tell(facts.CommandLost(command_id=first.command_id, attempt=1, reason="lease"))
    (again,) = harness.sent()
    assert again.attempt == 2
    assert again.work == first.work


def test_a_producer_that_is_lost_for_good_fails_with_worker_lost() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0))
    (first,) = harness.sent()
    for attempt in (1, 2, 3):
        lost = facts.CommandLost(command_id=producer.command_id, attempt=attempt, reason="lease")
        harness.tell(lost)
    harness.tell(done(first))
    gather(harness)
    assert harness.state.ctx["error"] == "worker_lost"


def test_cancel_stops_the_producer_and_its_targets() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0))
    (first,) = harness.sent()
    harness.tell(facts.CancelRequested())
    assert harness.last is not None
    assert set(harness.last.to_stop) == {producer.command_id, first.command_id}
    assert "call.partial" not in harness.tell(chunk(producer, 1))
    for item in (producer, first):
        harness.tell(
            facts.CommandStopped(command_id=item.command_id, attempt=item.attempt, worker_id=WORKER)
        )
    assert harness.state.status is ExecutionStatus.CANCELLED


def test_a_paused_execution_accepts_nothing_until_it_goes_on() -> None:
    harness, producer = begun(playbook())
    harness.tell(facts.PauseRequested(request_id="1"))
    harness.tell(chunk(producer, 0))
    assert not harness.sent()
    assert taken(harness, producer) == StreamProgress(received=1, accepted=0)
    harness.tell(facts.ResumeRequested(request_id="2"))
    assert indices(harness) == [0]


def test_when_and_set_count_per_chunk() -> None:
    counted = "{{ ctx.rows | default(0) + chunk.row_count }}"
    arc = f', when: "{{{{ chunk.index != 1 }}}}", set: {{ctx.rows: "{counted}"}}'
    harness, producer = begun(playbook(in_flight=4, arc=arc))
    harness.tell(*(chunk(producer, index) for index in range(3)))
    assert list(zip(activations(harness), indices(harness), strict=True)) == [(0, 0), (1, 2)]
    assert harness.state.ctx["rows"] == 4
    assert [item.targets for item in harness.events("call.partial")] == [["ship"], [], ["ship"]]
    harness.tell(*(done(item) for item in harness.sent()), done(producer))
    gather(harness)
    assert harness.state.ctx["chunks"] == {"total": 3, "done": 3, "failed": 0}


def test_the_rows_of_a_chunk_are_loaded_when_a_condition_names_them() -> None:
    harness, producer = begun(playbook(arc=', when: "{{ output.data.rows[0].ok }}"'))
    for index, is_ok in enumerate([True, False]):
        harness.loaded[f"{index:064d}"] = [{"ok": is_ok}, {"ok": True}]
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    assert indices(harness) == [0]


def test_the_set_of_a_target_counts_per_chunk() -> None:
    block = (
        'set: {ctx.last: "{{ chunk.index }}", ctx.sum: "{{ ctx.sum | default(0) + output.data }}"}'
    )
    harness, producer = begun(playbook(target=block))
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    for number, item in enumerate(harness.sent(), start=1):
        harness.tell(done(item, number * 10))
    assert harness.state.ctx == {"last": 1, "sum": 30}


def test_an_admission_rule_leaves_chunks_out() -> None:
    rule = 'rules: [{when: "{{ chunk.index > 0 }}", then: {allow: true}}]'
    harness, producer = begun(playbook(target=f"spec: {{policy: {{admit: {{{rule}}}}}}}"))
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    assert indices(harness) == [1]


def test_a_template_that_fails_ends_the_stream() -> None:
    harness, producer = begun(playbook(arc=", set: {ctx.x: '{{ chunk.nothing }}'}"))
    harness.tell(chunk(producer, 0))
    assert harness.state.ctx["error"] == "template"
    assert not [command for command in harness.state.commands.values() if command.step == "export"]


def test_one_chunk_may_lead_to_several_targets() -> None:
    text = (
        playbook(mode="inclusive").replace(
            "        - {step: wrap_up",
            "        - {step: audit, on: call.partial, spec: {max_in_flight: 1}}\n"
            "        - {step: wrap_up",
        )
        + "  - {step: audit, tool: {kind: noop}}\n"
    )
    harness, producer = begun(text)
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    first = harness.sent()
    assert [
        (item.step, item.work.chunk.index) for item in first if isinstance(item.work, ChunkWork)
    ] == [
        ("ship", 0),
        ("audit", 0),
        ("ship", 1),
    ]
    assert taken(harness, producer) == StreamProgress(received=2, accepted=1)
    harness.tell(*(done(item) for item in first))
    harness.tell(failed(harness.sent()[0]), done(producer))
    gather(harness)
    assert harness.state.ctx["error"] == "chunk_failed"
    assert len(harness.events("loop.done")) == len(harness.events("loop.failed")) == 1


def test_a_timeout_ends_the_stream_and_its_targets() -> None:
    harness, producer = begun(playbook(spec="spec: {timeout: 10}"))
    harness.tell(chunk(producer, 0))
    harness.wait(11)
    harness.tell(facts.TimerDue())
    assert [item.step for item in harness.sent()] == ["repair"]
    assert harness.state.ctx["error"] == "timeout"
    assert {item.step: item.status for item in harness.events("step.exit")} == {
        "ship": "CANCELLED",
        "export": "FAILED",
    }


def test_a_late_target_fails_its_producer() -> None:
    harness, producer = begun(playbook(target="spec: {timeout: 10}"))
    harness.tell(chunk(producer, 0))
    harness.wait(11)
    harness.tell(facts.TimerDue())
    assert harness.state.ctx["error"] == "chunk_failed"


def test_the_state_holds_no_chunk_that_is_done_with() -> None:
    harness, producer = begun(playbook(in_flight=2))
    for index in range(200):
        harness.tell(chunk(producer, index))
        harness.tell(*(done(item) for item in harness.sent()))
    (streaming,) = [run.stream for run in harness.state.runs.values() if run.stream is not None]
    (feed,) = [run.feed for run in harness.state.runs.values() if run.feed is not None]
    assert not streaming.open
    assert not feed.open
    assert streaming.done == 200
    assert len(codec.encode_json(harness.state)) < 8_000


def test_a_stream_goes_on_from_a_snapshot_and_from_its_history() -> None:
    harness, producer = begun(playbook(in_flight=1))
    harness.tell(chunk(producer, 0), chunk(producer, 1))
    (first,) = harness.sent()
    again = PlannerHarness(playbook(in_flight=1))
    again.replay(harness.history)
    assert codec.encode_json(again.state) == codec.encode_json(harness.state)
    again.tell(done(first))
    assert indices(again) == [1]
    restored = snapshot.restore_state(snapshot.build_snapshot(harness.state))
    assert restored is not None
    harness.state = restored
    harness.tell(done(first))
    assert indices(harness) == [1]


def test_a_target_has_the_result_of_a_loop() -> None:
    harness, producer = begun(playbook())
    harness.tell(chunk(producer, 0, more=False))
    harness.tell(done(harness.sent()[0]), done(producer))
    gather(harness, ["a"])
    ship = harness.state.steps["ship"]
    assert ship.result is not None
    assert ship.result.context["data"]["results"] == ["a"]
