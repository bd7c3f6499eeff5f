# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Reduce steps: parts in order, levels of a tree, and what an incomplete fan-in does."""

import pytest
from tests.support.planning import Desk
from tests.support.slices import frame_done, frame_failed, gathered, level_gathered, lost

from noetl_contracts.commands.command_work import Command, ReduceWork

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {n: 7}
workflow:
  - step: each
    loop:
      in: "{{ workload.n }}"
      iterator: it
      spec: {mode: fanout, fanout: {max_shard_retries: 0}, policy: {failure: {mode: best_effort}}}
    tool: {kind: noop}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: each, iterator: parts, spec: SPEC}
    tool: {kind: noop}
    next: {arcs: [{step: after}, {step: repair, on: call.error, set: {ctx.kind: "{{ event.error.kind }}"}}]}
  - {step: after, tool: {kind: noop}}
  - {step: repair, tool: {kind: noop}}
"""


def begun(spec: str = "{mode: single}", *, bad: tuple[int, ...] = (), n: int = 7) -> Desk:
    """Run the loop, some shards failing, and come to the reduce step."""
    desk = Desk(PLAYBOOK.replace("SPEC", spec))
    desk.start(n=n)
    if n == 0:
        return desk
    desk.tell(
        *(
            frame_failed(each) if index in bad else frame_done(each)
            for index, each in enumerate(desk.sent())
        )
    )
    desk.tell(gathered(desk))
    return desk


def work_of(command: Command) -> ReduceWork:
    assert isinstance(command.work, ReduceWork)
    return command.work


def test_a_single_reduce_takes_all_parts_at_once() -> None:
    desk = begun()
    (one,) = desk.sent()
    work = work_of(one)
    assert (work.start, work.end, work.fanin["status"]) == (0, 7, "complete")
    listed = desk.loaded[work.parts_ref.sha256]
    assert [part["index"] for part in listed] == list(range(7))
    events = desk.tell(frame_done(one))
    assert events[2:6] == ["frame.committed", "command.completed", "call.done", "stage.closed"]
    assert desk.sent()[0].step == "after"


def test_the_frames_of_a_reduce_run_where_its_policy_says() -> None:
    (one,) = begun().sent()
    (two,) = begun("{mode: single, frame: {engine: spark}}").sent()
    assert (one.lane, two.lane) == ("io", "spark")


def test_a_tree_reduces_level_by_level_until_one_is_left() -> None:
    desk = begun("{mode: tree, fan_in: 3, max_in_flight: 2}")
    one, two = desk.sent()
    assert [(work_of(each).start, work_of(each).end) for each in (one, two)] == [(0, 3), (3, 6)]
    desk.tell(frame_done(two), frame_done(one))
    (three,) = desk.sent()
    desk.tell(frame_done(three))
    collected = level_gathered(desk)
    assert collected.parts == 3
    assert desk.tell(collected)[0] == "reduce.level_opened"
    assert desk.tell(collected) == []
    last = next(each for each in desk.commands.values() if work_like(each, level=1))
    assert (work_of(last).start, work_of(last).end, work_of(last).level) == (0, 3, 1)
    assert "call.done" in desk.tell(frame_done(last))
    assert desk.types().count("stage.closed") == 2


def work_like(command: Command, *, level: int) -> bool:
    return isinstance(command.work, ReduceWork) and command.work.level == level


def test_failed_parts_fail_the_step_unless_they_are_accepted() -> None:
    refused = begun(bad=(2,))
    assert refused.state.ctx["kind"] == "fanin_incomplete"
    accepted = begun("{mode: single, accept_partial: true}", bad=(2, 5))
    (one,) = accepted.sent()
    listed = accepted.loaded[work_of(one).parts_ref.sha256]
    assert [part["index"] for part in listed] == [0, 1, 3, 4, 6]


def test_a_failed_group_fails_the_step_and_calls_the_others_off() -> None:
    desk = begun("{mode: tree, fan_in: 2}")
    first, *_ = desk.sent()
    events = desk.tell(frame_failed(first))
    assert events.count("command.cancelled") == 3
    assert events.count("call.error") == 1
    assert desk.events("stage.closed")[-1].status == "FAILED"
    assert desk.state.ctx["kind"] == "transform"


def test_a_lost_group_runs_again_up_to_its_attempts() -> None:
    desk = begun("{mode: single, frame: {max_attempts: 2}}")
    (one,) = desk.sent()
    desk.tell(lost(one))
    (two,) = desk.sent()
    assert (two.attempt, work_of(two).frame_id) == (2, work_of(one).frame_id)
    desk.tell(lost(two))
    assert desk.state.ctx["kind"] == "frame_attempts_exhausted"


def test_a_reduce_of_nothing_runs_its_body_once() -> None:
    desk = begun("{mode: tree}", n=0)
    (one,) = desk.sent()
    assert (work_of(one).start, work_of(one).end) == (0, 0)
    assert "call.done" in desk.tell(frame_done(one))


def test_parts_of_several_sources_follow_each_other() -> None:
    playbook = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: a
    loop: {in: "{{ 2 }}", iterator: it, spec: {mode: fanout}}
    tool: {kind: noop}
    next: {arcs: [{step: b}]}
  - step: b
    loop: {in: "{{ 3 }}", iterator: it, spec: {mode: chunked, chunk_size: 1, max_in_flight: 3}}
    tool: {kind: noop}
    next: {arcs: [{step: total}]}
  - step: total
    reduce: {from: [a, b]}
    tool: {kind: noop}
"""
    desk = Desk(playbook)
    desk.start()
    for _ in range(2):
        desk.tell(*(frame_done(each) for each in desk.sent()))
        desk.tell(gathered(desk))
    (one,) = desk.sent()
    listed = desk.loaded[work_of(one).parts_ref.sha256]
    assert [part["index"] for part in listed] == list(range(5))
    assert (work_of(one).fanin["total"], work_of(one).fanin["status"]) == (5, "complete")


@pytest.mark.parametrize("field", ["fan_in: '{{ 1 }}'", "max_in_flight: '{{ 0 }}'"])
def test_numbers_out_of_range_fail_the_step(field: str) -> None:
    desk = begun(f"{{mode: tree, {field}}}")
    assert desk.state.ctx["kind"] == "validation"


def test_a_step_whose_numbers_are_refused_opens_no_stage() -> None:
    desk = begun("{mode: tree, fan_in: '{{ 1 }}'}")
    assert desk.types().count("stage.opened") == desk.types().count("stage.closed") == 1
