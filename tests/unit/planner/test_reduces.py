# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Reduce steps: parts in order, levels of a tree, and what an incomplete fan-in does."""

import pytest
from tests.support.planning import PlannerHarness
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


def begun(spec: str = "{mode: single}", *, bad: tuple[int, ...] = (), n: int = 7) -> PlannerHarness:
    """Run the loop, some shards failing, and come to the reduce step."""
    harness = PlannerHarness(PLAYBOOK.replace("SPEC", spec))
    harness.start(n=n)
    if n == 0:
        return harness
    harness.tell(
        *(
            frame_failed(item) if index in bad else frame_done(item)
            for index, item in enumerate(harness.sent())
        )
    )
    harness.tell(gathered(harness))
    return harness


def work_of(command: Command) -> ReduceWork:
    assert isinstance(command.work, ReduceWork)
    return command.work


def test_a_single_reduce_takes_all_parts_at_once() -> None:
    harness = begun()
    (item,) = harness.sent()
    work = work_of(item)
    assert (work.start, work.end, work.fanin["status"]) == (0, 7, "complete")
    listed = harness.loaded[work.parts_ref.sha256]
    assert [part["index"] for part in listed] == list(range(7))
    events = harness.tell(frame_done(item))
    assert events[2:6] == ["frame.committed", "command.completed", "call.done", "stage.closed"]
    assert harness.sent()[0].step == "after"


def test_the_frames_of_a_reduce_run_where_its_policy_says() -> None:
    (item,) = begun().sent()
    (two,) = begun("{mode: single, frame: {engine: spark}}").sent()
    assert (item.lane, two.lane) == ("io", "spark")


def test_a_tree_reduces_level_by_level_until_one_is_left() -> None:
    harness = begun("{mode: tree, fan_in: 3, max_in_flight: 2}")
    item, two = harness.sent()
    assert [(work_of(each).start, work_of(each).end) for each in (item, two)] == [(0, 3), (3, 6)]
    harness.tell(frame_done(two), frame_done(item))
    (three,) = harness.sent()
    harness.tell(frame_done(three))
    collected = level_gathered(harness)
    assert collected.parts == 3
    assert harness.tell(collected)[0] == "reduce.level_opened"
    assert harness.tell(collected) == []
    last = next(command for command in harness.commands.values() if work_like(command, level=1))
    assert (work_of(last).start, work_of(last).end, work_of(last).level) == (0, 3, 1)
    assert "call.done" in harness.tell(frame_done(last))
    assert harness.types().count("stage.closed") == 2


def work_like(command: Command, *, level: int) -> bool:
    return isinstance(command.work, ReduceWork) and command.work.level == level


def test_failed_parts_fail_the_step_unless_they_are_accepted() -> None:
    refused = begun(bad=(2,))
    assert refused.state.ctx["kind"] == "fanin_incomplete"
    accepted = begun("{mode: single, accept_partial: true}", bad=(2, 5))
    (item,) = accepted.sent()
    listed = accepted.loaded[work_of(item).parts_ref.sha256]
    assert [part["index"] for part in listed] == [0, 1, 3, 4, 6]


def test_a_failed_group_fails_the_step_and_calls_the_others_off() -> None:
    harness = begun("{mode: tree, fan_in: 2}")
    first, *_ = harness.sent()
    events = harness.tell(frame_failed(first))
    assert events.count("command.cancelled") == 3
    assert events.count("call.error") == 1
    assert harness.events("stage.closed")[-1].status == "FAILED"
    assert harness.state.ctx["kind"] == "transform"


def test_a_lost_group_runs_again_up_to_its_attempts() -> None:
    harness = begun("{mode: single, frame: {max_attempts: 2}}")
    (item,) = harness.sent()
    harness.tell(lost(item))
    (two,) = harness.sent()
    assert (two.attempt, work_of(two).frame_id) == (2, work_of(item).frame_id)
    harness.tell(lost(two))
    assert harness.state.ctx["kind"] == "frame_attempts_exhausted"


def test_a_reduce_of_nothing_runs_its_body_once() -> None:
    harness = begun("{mode: tree}", n=0)
    (item,) = harness.sent()
    assert (work_of(item).start, work_of(item).end) == (0, 0)
    assert "call.done" in harness.tell(frame_done(item))


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
    harness = PlannerHarness(playbook)
    harness.start()
    for _ in range(2):
        harness.tell(*(frame_done(item) for item in harness.sent()))
        harness.tell(gathered(harness))
    (one,) = harness.sent()
    listed = harness.loaded[work_of(one).parts_ref.sha256]
    assert [part["index"] for part in listed] == list(range(5))
    assert (work_of(one).fanin["total"], work_of(one).fanin["status"]) == (5, "complete")


@pytest.mark.parametrize("field", ["fan_in: '{{ 1 }}'", "max_in_flight: '{{ 0 }}'"])
def test_numbers_out_of_range_fail_the_step(field: str) -> None:
    harness = begun(f"{{mode: tree, {field}}}")
    assert harness.state.ctx["kind"] == "validation"


def test_a_step_whose_numbers_are_refused_opens_no_stage() -> None:
    harness = begun("{mode: tree, fan_in: '{{ 1 }}'}")
    assert harness.types().count("stage.opened") == harness.types().count("stage.closed") == 1
