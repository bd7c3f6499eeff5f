"""Chunked loops: frames that the planner mints, lost and replayed, cut short and continued."""

import pytest
from tests.support.planning import Desk
from tests.support.slices import frame_done, frame_failed, gathered, lost, work_of

from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {items: [a, b, c, d, e, f, g], size: 3}
workflow:
"""


def a_loop(spec: str) -> Desk:
    return Desk(
        HEAD
        + f"""
  - step: each
    loop: {{in: "{{{{ workload['items'] }}}}", iterator: it, spec: {{{spec}}}}}
    tool: {{kind: noop}}
    set: {{ctx.stats: "{{{{ each.stats }}}}", ctx.fanin: "{{{{ fanin }}}}"}}
"""
    )


CHUNKED = 'mode: chunked, chunk_size: "{{ workload.size }}", max_in_flight: 2'


def test_a_chunk_is_one_frame_and_one_command() -> None:
    desk = a_loop(CHUNKED)
    events = desk.start()
    assert events[2:] == [
        "stage.opened",
        "loop.started",
        *["command.issued", "frame.dispatched"] * 2,
    ]
    one, two = desk.sent()
    assert [(work_of(each).start, work_of(each).end) for each in (one, two)] == [(0, 3), (3, 6)]
    assert desk.tell(frame_done(one)) == [
        "command.started",
        "frame.started",
        "frame.committed",
        "command.completed",
        "command.issued",
        "frame.dispatched",
    ]
    (three,) = desk.sent()
    assert (work_of(three).start, work_of(three).end) == (6, 7)
    assert work_of(three).done == 3
    desk.tell(frame_done(two), frame_done(three))
    assert desk.tell(gathered(desk))[:2] == ["stage.closed", "loop.done"]
    stats = desk.state.ctx["stats"]
    assert (stats["total"], stats["success"], stats["frames"]) == (7, 7, 3)


def test_a_frame_block_on_parallel_makes_it_chunked_with_the_same_bound() -> None:
    desk = a_loop("mode: parallel, max_in_flight: 4, frame: {max_rows: 2}")
    desk.start()
    assert [work_of(each).start for each in desk.sent()] == [0, 2, 4, 6]


def test_without_a_size_a_chunk_has_a_hundred_items() -> None:
    desk = a_loop("mode: chunked")
    desk.start(items=250)
    (one,) = desk.sent()
    assert (work_of(one).start, work_of(one).end, work_of(one).total) == (0, 100, 250)


def test_rows_are_counted_for_row_bodies_and_frames_for_whole_ones() -> None:
    rows = a_loop(f"{CHUNKED}, policy: {{failure: {{mode: best_effort}}}}")
    rows.start()
    one, two = rows.sent()
    rows.tell(frame_failed(one, rows=1), frame_done(two))
    rows.tell(*(frame_done(each) for each in rows.sent()))
    rows.tell(gathered(rows))
    assert (rows.state.ctx["stats"]["success"], rows.state.ctx["stats"]["failed"]) == (6, 1)
    frames = a_loop(f"{CHUNKED}, frame: {{process: frame}}")
    frames.start()
    frames.tell(*(frame_done(each) for each in frames.sent()))
    frames.tell(*(frame_done(each) for each in frames.sent()))
    frames.tell(gathered(frames))
    assert (frames.state.ctx["stats"]["total"], frames.state.ctx["stats"]["success"]) == (3, 3)


def test_a_lost_frame_runs_again_with_its_own_rows_and_an_old_commit_is_refused() -> None:
    desk = a_loop(CHUNKED)
    desk.start()
    one, _ = desk.sent()
    desk.tell(
        facts.CommandStarted(command_id=one.command_id, attempt=1, worker_id="w")  # type: ignore[arg-type]  # a name
    )
    assert desk.tell(lost(one)) == ["frame.abandoned", "command.reissued", "frame.dispatched"]
    (again,) = desk.sent()
    assert (work_of(again).frame_id, work_of(again).start, work_of(again).end) == (
        work_of(one).frame_id,
        0,
        3,
    )
    assert (again.attempt, work_of(again).attempt) == (2, 2)
    assert desk.tell(frame_done(one)) == ["frame.commit_rejected"]
    assert desk.tell(frame_done(one)) == []
    assert "frame.committed" in desk.tell(frame_done(again))
    assert desk.events("frame.abandoned")[0].previous_worker == "w"


def test_a_frame_that_is_lost_too_often_fails_with_all_its_rows() -> None:
    desk = a_loop("mode: chunked, chunk_size: 9, frame: {max_attempts: 2}")
    desk.start()
    (one,) = desk.sent()
    desk.tell(lost(one))
    (two,) = desk.sent()
    assert desk.tell(lost(two)) == ["frame.abandoned", "frame.failed", "command.failed"]
    failed = desk.events("frame.failed")[0]
    assert (failed.error.kind, failed.rows_failed) == ("frame_attempts_exhausted", 7)
    desk.tell(gathered(desk))
    assert desk.events("loop.failed")[0].stats.failed == 7


def test_rows_that_were_not_started_in_time_continue_under_the_same_unit() -> None:
    desk = a_loop("mode: chunked, chunk_size: 4")
    desk.start()
    (one,) = desk.sent()
    desk.tell(frame_done(one, row_count=1, rows_left=3))
    (rest,) = desk.sent()
    work = work_of(rest)
    assert (work.unit, work.frame_index, work.start, work.end) == (0, 1, 1, 4)
    assert work.root_frame_id == work_of(one).frame_id
    assert desk.events("frame.dispatched")[-1].parent_frame_id == work_of(one).frame_id
    desk.tell(frame_done(rest))
    (last,) = desk.sent()
    assert (work_of(last).start, work_of(last).end) == (4, 7)
    desk.tell(frame_done(last))
    desk.tell(gathered(desk))
    assert desk.events("loop.done")[0].stats.success == 7


def test_a_frame_that_cannot_be_run_at_all_fails_with_its_command() -> None:
    desk = a_loop("mode: chunked, chunk_size: 9")
    desk.start()
    (one,) = desk.sent()
    error = frame_failed(one).error
    failed = facts.CommandFailed(
        command_id=one.command_id,
        attempt=1,
        worker_id="w",
        error=error,  # type: ignore[arg-type]  # a name
    )
    events = desk.tell(failed)
    assert "frame.failed" in events
    assert "call.error" not in events


def test_reports_that_come_twice_or_after_the_end_change_nothing() -> None:
    desk = a_loop(CHUNKED)
    desk.start()
    one, two = desk.sent()
    desk.tell(frame_done(one))
    (three,) = desk.sent()
    assert desk.tell(frame_done(one), lost(one)) == []
    desk.tell(frame_done(two), frame_done(three))
    collected = gathered(desk)
    desk.tell(collected)
    assert desk.types()[-1] == "playbook.completed"
    assert desk.tell(collected, frame_done(two)) == []


def test_nothing_is_gathered_where_nothing_is_collected() -> None:
    desk = a_loop("mode: chunked, chunk_size: 9, collect: none")
    desk.start()
    (one,) = desk.sent()
    assert desk.tell(frame_done(one))[-4:] == [
        "stage.closed",
        "loop.done",
        "step.exit",
        "playbook.completed",
    ]


def test_an_empty_collection_opens_and_closes_its_stage() -> None:
    desk = a_loop(CHUNKED)
    events = desk.start(items=[])
    assert events[2:5] == ["stage.opened", "loop.started", "stage.closed"]


def test_writes_to_ctx_are_committed_with_the_frame() -> None:
    desk = a_loop("mode: chunked, chunk_size: 9")
    desk.start()
    (one,) = desk.sent()
    desk.tell(frame_done(one, patch={"seen": 7}))
    assert desk.state.ctx["seen"] == 7


def test_too_much_ctx_fails_the_frame() -> None:
    desk = a_loop("mode: chunked, chunk_size: 9")
    desk.limits = Limits(ctx_bytes_max=1_000)
    desk.start()
    (one,) = desk.sent()
    desk.tell(frame_done(one, patch={"seen": "x" * 2_000}))
    assert desk.events("frame.failed")[0].error.kind == "payload_too_large"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("mode: chunked, chunk_size: '{{ 0 }}'", "loop.spec.frame.max_rows"),
        ("mode: chunked, max_in_flight: '{{ 0 }}'", "loop.spec.max_in_flight"),
        ("mode: chunked, frame: {lease_seconds: '{{ 0 }}'}", "loop.spec.frame.lease_seconds"),
        ("mode: fanout, fanout: {partitions: '{{ 0 }}'}", "loop.spec.fanout.partitions"),
    ],
)
def test_numbers_out_of_range_fail_the_step_and_are_named(spec: str, field: str) -> None:
    desk = a_loop(spec)
    desk.start()
    error = desk.events("playbook.failed")[0].error
    assert error.kind == "validation"
    assert field in error.message


def test_a_hundred_thousand_items_cost_the_same_at_the_start_and_at_the_end() -> None:
    from noetl_replay import snapshot  # noqa: PLC0415 - only this case needs it

    desk = a_loop("mode: chunked, chunk_size: 100, max_in_flight: 4")
    desk.start(items=100_000)
    sizes, events = [], []
    while desk.sent():
        told = [desk.tell(frame_done(each)) for each in desk.sent()]
        events.append([len(one) for one in told])
        sizes.append(len(snapshot.build_snapshot(desk.state).state))
    assert len(sizes) >= 250
    assert max(sizes[5:-5]) - min(sizes[5:-5]) < 200
    assert events[2] == events[-4]


def test_a_long_list_is_kept_in_parts_that_are_cheap_to_read() -> None:
    desk = a_loop("mode: chunked, chunk_size: 100")
    desk.start(items=[{"n": number, "text": "x" * 100} for number in range(20_000)])
    work = work_of(desk.sent()[0])
    assert work.form is CollectionForm.PARTS
    assert work.collection_ref is not None
    manifest = desk.loaded[work.collection_ref.sha256]
    assert manifest["total"] == 20_000
    assert len(manifest["parts"]) > 3
    assert all(part["ref"]["payload_bytes"] <= 600_000 for part in manifest["parts"])
    assert [part["start"] for part in manifest["parts"][1:]] == [
        part["end"] for part in manifest["parts"][:-1]
    ]


def test_nothing_is_handed_out_while_the_execution_is_held() -> None:
    desk = a_loop(CHUNKED)
    desk.start()
    one, two = desk.sent()
    desk.tell(facts.PauseRequested(request_id="p"))
    desk.tell(frame_done(one))
    assert desk.sent() == []
    desk.tell(lost(two))
    assert desk.sent() == []
    desk.tell(facts.ResumeRequested(request_id="r"))
    assert sorted(work_of(each).start for each in desk.sent()) == [3, 6]
