"""Chunked loops: frames that the planner mints, lost and replayed, cut short and continued."""

import pytest
from tests.support.planning import PlannerHarness
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


def a_loop(spec: str) -> PlannerHarness:
    return PlannerHarness(
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
    harness = a_loop(CHUNKED)
    events = harness.start()
    assert events[2:] == [
        "stage.opened",
        "loop.started",
        *["command.issued", "frame.dispatched"] * 2,
    ]
    item, two = harness.sent()
    assert [(work_of(each).start, work_of(each).end) for each in (item, two)] == [(0, 3), (3, 6)]
    assert harness.tell(frame_done(item)) == [
        "command.started",
        "frame.started",
        "frame.committed",
        "command.completed",
        "command.issued",
        "frame.dispatched",
    ]
    (three,) = harness.sent()
    assert (work_of(three).start, work_of(three).end) == (6, 7)
    assert work_of(three).done == 3
    harness.tell(frame_done(two), frame_done(three))
    assert harness.tell(gathered(harness))[:2] == ["stage.closed", "loop.done"]
    stats = harness.state.ctx["stats"]
    assert (stats["total"], stats["success"], stats["frames"]) == (7, 7, 3)


def test_a_frame_block_on_parallel_makes_it_chunked_with_the_same_bound() -> None:
    harness = a_loop("mode: parallel, max_in_flight: 4, frame: {max_rows: 2}")
    harness.start()
    assert [work_of(item).start for item in harness.sent()] == [0, 2, 4, 6]


def test_without_a_size_a_chunk_has_a_hundred_items() -> None:
    harness = a_loop("mode: chunked")
    harness.start(items=250)
    (item,) = harness.sent()
    assert (work_of(item).start, work_of(item).end, work_of(item).total) == (0, 100, 250)


def test_rows_are_counted_for_row_bodies_and_frames_for_whole_ones() -> None:
    rows = a_loop(f"{CHUNKED}, policy: {{failure: {{mode: best_effort}}}}")
    rows.start()
    item, two = rows.sent()
    rows.tell(frame_failed(item, rows=1), frame_done(two))
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
    harness = a_loop(CHUNKED)
    harness.start()
    item, _ = harness.sent()
    harness.tell(
        facts.CommandStarted(command_id=item.command_id, attempt=1, worker_id="w")  # type: ignore[arg-type]  # a name
    )
    assert harness.tell(lost(item)) == ["frame.abandoned", "command.reissued", "frame.dispatched"]
    (again,) = harness.sent()
    assert (work_of(again).frame_id, work_of(again).start, work_of(again).end) == (
        work_of(item).frame_id,
        0,
        3,
    )
    assert (again.attempt, work_of(again).attempt) == (2, 2)
    assert harness.tell(frame_done(item)) == ["frame.commit_rejected"]
    assert harness.tell(frame_done(item)) == []
    assert "frame.committed" in harness.tell(frame_done(again))
    assert harness.events("frame.abandoned")[0].previous_worker == "w"


def test_a_frame_that_is_lost_too_often_fails_with_all_its_rows() -> None:
    harness = a_loop("mode: chunked, chunk_size: 9, frame: {max_attempts: 2}")
    harness.start()
    (item,) = harness.sent()
    harness.tell(lost(item))
    (two,) = harness.sent()
    assert harness.tell(lost(two)) == ["frame.abandoned", "frame.failed", "command.failed"]
    failed = harness.events("frame.failed")[0]
    assert (failed.error.kind, failed.rows_failed) == ("frame_attempts_exhausted", 7)
    harness.tell(gathered(harness))
    assert harness.events("loop.failed")[0].stats.failed == 7


def test_rows_that_were_not_started_in_time_continue_under_the_same_unit() -> None:
    harness = a_loop("mode: chunked, chunk_size: 4")
    harness.start()
    (item,) = harness.sent()
    harness.tell(frame_done(item, row_count=1, rows_left=3))
    (rest,) = harness.sent()
    work = work_of(rest)
    assert (work.unit, work.frame_index, work.start, work.end) == (0, 1, 1, 4)
    assert work.root_frame_id == work_of(item).frame_id
    assert harness.events("frame.dispatched")[-1].parent_frame_id == work_of(item).frame_id
    harness.tell(frame_done(rest))
    (last,) = harness.sent()
    assert (work_of(last).start, work_of(last).end) == (4, 7)
    harness.tell(frame_done(last))
    harness.tell(gathered(harness))
    assert harness.events("loop.done")[0].stats.success == 7


def test_a_frame_that_cannot_be_run_at_all_fails_with_its_command() -> None:
    harness = a_loop("mode: chunked, chunk_size: 9")
    harness.start()
    (item,) = harness.sent()
    error = frame_failed(item).error
    failed = facts.CommandFailed(
        command_id=item.command_id,
        attempt=1,
        worker_id="w",
        error=error,  # type: ignore[arg-type]  # a name
    )
    events = harness.tell(failed)
    assert "frame.failed" in events
    assert "call.error" not in events


def test_reports_that_come_twice_or_after_the_end_change_nothing() -> None:
    harness = a_loop(CHUNKED)
    harness.start()
    item, two = harness.sent()
    harness.tell(frame_done(item))
    (three,) = harness.sent()
    assert harness.tell(frame_done(item), lost(item)) == []
    harness.tell(frame_done(two), frame_done(three))
    collected = gathered(harness)
    harness.tell(collected)
    assert harness.types()[-1] == "playbook.completed"
    assert harness.tell(collected, frame_done(two)) == []


def test_nothing_is_gathered_where_nothing_is_collected() -> None:
    harness = a_loop("mode: chunked, chunk_size: 9, collect: none")
    harness.start()
    (item,) = harness.sent()
    assert harness.tell(frame_done(item))[-4:] == [
        "stage.closed",
        "loop.done",
        "step.exit",
        "playbook.completed",
    ]


def test_an_empty_collection_opens_and_closes_its_stage() -> None:
    harness = a_loop(CHUNKED)
    events = harness.start(items=[])
    assert events[2:5] == ["stage.opened", "loop.started", "stage.closed"]


def test_writes_to_ctx_are_committed_with_the_frame() -> None:
    harness = a_loop("mode: chunked, chunk_size: 9")
    harness.start()
    (item,) = harness.sent()
    harness.tell(frame_done(item, patch={"seen": 7}))
    assert harness.state.ctx["seen"] == 7


def test_too_much_ctx_fails_the_frame() -> None:
    harness = a_loop("mode: chunked, chunk_size: 9")
    harness.limits = Limits(ctx_bytes_max=1_000)
    harness.start()
    (item,) = harness.sent()
    harness.tell(frame_done(item, patch={"seen": "x" * 2_000}))
    assert harness.events("frame.failed")[0].error.kind == "payload_too_large"


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
    harness = a_loop(spec)
    harness.start()
    error = harness.events("playbook.failed")[0].error
    assert error.kind == "validation"
    assert field in error.message


def test_a_hundred_thousand_items_cost_the_same_at_the_start_and_at_the_end() -> None:
    from noetl_replay import snapshot  # noqa: PLC0415 - only this case needs it

    harness = a_loop("mode: chunked, chunk_size: 100, max_in_flight: 4")
    harness.start(items=100_000)
    sizes, events = [], []
    while harness.sent():
        told = [harness.tell(frame_done(item)) for item in harness.sent()]
        events.append([len(one) for one in told])
        sizes.append(len(snapshot.build_snapshot(harness.state).state))
    assert len(sizes) >= 250
    assert max(sizes[5:-5]) - min(sizes[5:-5]) < 200
    assert events[2] == events[-4]


def test_a_long_list_is_kept_in_parts_that_are_cheap_to_read() -> None:
    harness = a_loop("mode: chunked, chunk_size: 100")
    harness.start(items=[{"n": number, "text": "x" * 100} for number in range(20_000)])
    work = work_of(harness.sent()[0])
    assert work.form is CollectionForm.PARTS
    assert work.collection_ref is not None
    manifest = harness.loaded[work.collection_ref.sha256]
    assert manifest["total"] == 20_000
    assert len(manifest["parts"]) > 3
    assert all(part["ref"]["payload_bytes"] <= 600_000 for part in manifest["parts"])
    assert [part["start"] for part in manifest["parts"][1:]] == [
        part["end"] for part in manifest["parts"][:-1]
    ]


def test_nothing_is_handed_out_while_the_execution_is_held() -> None:
    harness = a_loop(CHUNKED)
    harness.start()
    item, two = harness.sent()
    harness.tell(facts.PauseRequested(request_id="p"))
    harness.tell(frame_done(item))
    assert harness.sent() == []
    harness.tell(lost(two))
    assert harness.sent() == []
    harness.tell(facts.ResumeRequested(request_id="r"))
    assert sorted(work_of(each).start for each in harness.sent()) == [3, 6]
