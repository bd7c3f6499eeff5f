"""Which loop a rerun of failed items begins with, and what of it runs."""

import pytest
from tests.support.planning import ROWS, PlannerHarness, done, program

from noetl_contracts import codec
from noetl_contracts.commands.command_work import FrameWork, ItemWork
from noetl_contracts.commands.loop_collections import (
    CollectionCut,
    CollectionForm,
    TakenFrames,
    TakenItems,
)
from noetl_contracts.events.execution_events import RerunSource
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests import facts
from noetl_planner.domain.loops import reruns
from noetl_planner.domain.loops.reruns import LoopChoiceError, LoopOutcome
from noetl_playbook.plan import WorkflowGraph

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
PLAYBOOK = (
    HEAD
    + """
workflow:
  - step: split
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right}]}
  - step: left
    loop: {in: [1, 2], iterator: n, spec: {mode: parallel}}
    tool: {kind: noop}
    next: {arcs: [{step: last}]}
  - step: right
    loop: {in: [1, 2], iterator: n, spec: {mode: chunked, chunk_size: 1}}
    tool: {kind: noop}
  - step: last
    loop: {in: [1, 2], iterator: n, spec: {mode: sequential}}
    tool: {kind: noop}
"""
)
GRAPH = WorkflowGraph.from_playbook(program(PLAYBOOK).playbook)


def outcome(step: str, began_at: int, *, completed: int, **about: object) -> LoopOutcome:
    values: dict[str, object] = {"mode": "parallel", "failed": 0, **about}
    return LoopOutcome(step=step, began_at=began_at, total=9, completed=completed, **values)  # type: ignore[arg-type]  # fields of the outcome


def refused(*loops: LoopOutcome, wanted: str | None = None) -> str:
    with pytest.raises(LoopChoiceError) as caught:
        reruns.choose_failed_loop(loops, GRAPH, from_step=wanted)
    assert caught.value.hint
    return caught.value.code


def test_the_first_loop_with_items_to_run_is_chosen() -> None:
    first, later = outcome("left", 4, completed=8), outcome("last", 9, completed=2)
    assert reruns.choose_failed_loop([later, first], GRAPH) is first
    whole = outcome("left", 4, completed=9)
    assert reruns.choose_failed_loop([later, whole], GRAPH) is later


def test_a_loop_that_was_cut_short_has_items_to_run_although_none_failed() -> None:
    short = outcome("left", 4, completed=3, failed=0)
    assert reruns.choose_failed_loop([short], GRAPH) is short


def test_nothing_to_run_is_refused() -> None:
    assert refused() == "no_failed_items"
    assert refused(outcome("left", 4, completed=9)) == "no_failed_items"
    assert refused(outcome("left", 4, completed=8), wanted="right") == "no_failed_items"


def test_of_loops_side_by_side_one_must_be_named() -> None:
    left, right = outcome("left", 4, completed=8), outcome("right", 5, completed=8)
    assert refused(left, right) == "several_failed_loops"
    assert reruns.choose_failed_loop([left, right], GRAPH, from_step="right") is right


@pytest.mark.parametrize("kind", ["has_cursor", "is_cut_inside"])
def test_a_loop_without_a_record_of_its_items_is_refused(kind: str) -> None:
    loop = outcome("left", 4, completed=8, failed=1, **{kind: True})
    assert refused(loop) == "items_not_repeatable"


def test_a_cursor_has_no_more_to_run_than_what_failed() -> None:
    assert refused(outcome("left", 4, completed=0, has_cursor=True)) == "no_failed_items"


def test_a_loop_of_another_form_is_refused() -> None:
    steps = program(PLAYBOOK).steps
    reruns.check_loop_definition(outcome("left", 4, completed=8), steps["left"])
    for chosen, step in [
        (outcome("left", 4, completed=8, mode="chunked", is_framed=True), "left"),
        (outcome("left", 4, completed=8, is_framed=True), "left"),
        (outcome("left", 4, completed=8), "split"),
    ]:
        with pytest.raises(LoopChoiceError, match="another form"):
            reruns.check_loop_definition(chosen, steps[step])


def stored(value: object, harness: PlannerHarness) -> PayloadRef:
    digest = codec.digest_hex(codec.encode_json(value))
    harness.loaded[digest] = codec.to_builtins(value)
    return PayloadRef(
        uri=f"noetl://tenant/default/org/default/payloads/sha256/{digest}",
        sha256=digest,
        media_type="application/json",
        payload_bytes=1,
    )


def rerun_of(step: str, taken: TakenItems) -> facts.ExecutionRequested:
    source = RerunSource(execution_id=ExecutionId("7"), version=9, step=step, items=taken)
    return facts.ExecutionRequested(path="p", rerun=facts.Rerun(source=source))


ONE = HEAD + (
    "workflow:\n  - step: each\n    tool: {kind: noop}\n"
    '    loop: {in: "{{ workload.rows }}", iterator: n, spec: SPEC}\n'
)


def test_items_that_are_taken_over_are_counted_and_not_issued() -> None:
    harness = PlannerHarness(ONE.replace("SPEC", "{mode: parallel, max_in_flight: 2}"))
    taken = TakenItems(
        execution_id=ExecutionId("7"),
        run_id=RunId("70"),
        mode="parallel",
        total=1_000,
        completed=997,
        todo=3,
        results_ref=ROWS,
        todo_ref=stored([4, 500, 999], harness),
        collection_ref=None,
        collection_form=CollectionForm.RANGE,
    )
    harness.tell(rerun_of("each", taken))
    first, second = harness.sent()
    assert isinstance(first.work, ItemWork)
    assert isinstance(second.work, ItemWork)
    assert (first.work.index, second.work.index, first.work.total) == (4, 500, 1_000)
    harness.tell(done(first), done(second))
    (third,) = harness.sent()
    assert isinstance(third.work, ItemWork)
    assert third.work.index == 999
    harness.tell(done(third))
    assert harness.last is not None
    (run_id,) = harness.last.to_collect
    loop = harness.state.runs[run_id].loop  # type: ignore[index]  # a live run
    assert loop is not None
    assert (loop.success, loop.failed, loop.total) == (1_000, 0, 1_000)
    assert harness.events("loop.started")[0].taken == taken


def test_rows_that_are_taken_over_leave_their_units_empty() -> None:
    harness = PlannerHarness(
        ONE.replace("SPEC", "{mode: chunked, chunk_size: 4, max_in_flight: 9}")
    )
    layout = {"offsets": [0, 0, 2, 2, 3], "order": [4, 7, 15]}
    rows = stored(["e", "h", "p"], harness)
    taken = TakenItems(
        execution_id=ExecutionId("7"),
        run_id=RunId("70"),
        mode="chunked",
        total=16,
        completed=13,
        todo=3,
        results_ref=ROWS,
        todo_ref=stored(layout, harness),
        frames=TakenFrames(
            cut=CollectionCut(items=16, units=4, size=4), rows_ref=rows, units_ok=2, whole=2
        ),
    )
    harness.tell(rerun_of("each", taken))
    first, second = harness.sent()
    assert isinstance(first.work, FrameWork)
    assert isinstance(second.work, FrameWork)
    assert (first.work.unit, first.work.start, first.work.end) == (1, 0, 2)
    assert (second.work.unit, second.work.start, second.work.end) == (3, 2, 3)
    # What a body sees of the loop is the whole collection.
    assert (first.work.total, first.work.layout_ref) == (16, taken.todo_ref)
    assert first.work.collection_ref == rows


def test_only_the_first_run_of_the_step_takes_over() -> None:
    text = ONE.replace("SPEC", "{mode: parallel}").replace(
        "workflow:\n", "workload: {rows: [a]}\nworkflow:\n"
    )
    harness = PlannerHarness(
        text
        + "    set: {ctx.runs: \"{{ (ctx.get('runs') or 0) + 1 }}\"}\n"
        + '    next: {arcs: [{step: each, when: "{{ ctx.runs < 2 }}"}]}\n'
    )
    taken = TakenItems(
        execution_id=ExecutionId("7"),
        run_id=RunId("70"),
        mode="parallel",
        total=3,
        completed=2,
        todo=1,
        results_ref=ROWS,
        todo_ref=stored([1], harness),
        collection_form=CollectionForm.RANGE,
    )
    harness.tell(rerun_of("each", taken))
    (only,) = harness.sent()
    harness.tell(done(only))
    assert harness.last is not None
    (run_id,) = harness.last.to_collect
    harness.tell(facts.ItemsCollected(run_id=run_id, result=done(only).result))  # type: ignore[union-attr]  # an outcome
    (again,) = harness.sent()
    assert isinstance(again.work, ItemWork)
    assert (again.work.index, again.work.total) == (0, 1)
    assert harness.events("loop.started")[-1].taken is None
