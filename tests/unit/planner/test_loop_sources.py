# ruff: noqa: E501 - a playbook reads best with one task to a line
"""What a loop iterates over, which names its items see, and how it ends (language, 7.1 and 7.2)."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.planning import PlannerHarness, done
from tests.support.slices import gathered, item_failed

from noetl_contracts.commands.command_work import FrameWork, ItemWork
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {given: null}
workflow:
"""


def a_loop(source: str, spec: str = "{mode: parallel, max_in_flight: 100}") -> PlannerHarness:
    return PlannerHarness(
        HEAD
        + f"""
  - step: load
    tool: {{kind: noop}}
    next: {{arcs: [{{step: each}}]}}
  - step: each
    loop: {{in: "{source}", iterator: it, spec: {spec}}}
    tool: {{kind: noop}}
    set: {{ctx.fanin: "{{{{ fanin }}}}", ctx.stats: "{{{{ each.stats }}}}", ctx.all: "{{{{ each.results }}}}"}}
"""
    )


def started(
    source: str, spec: str = "{mode: parallel, max_in_flight: 100}", **given: Any
) -> PlannerHarness:
    harness = a_loop(source, spec)
    harness.start(**given)
    (load,) = harness.sent()
    harness.tell(done(load, given.get("given")))
    return harness


def work_of(harness: PlannerHarness) -> list[ItemWork]:
    return [item.work for item in harness.sent() if isinstance(item.work, ItemWork)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, "a", None], [1, "a", None]),
        ({"rows": [{"n": 1}, {"n": 2}], "columns": ["n"]}, [{"n": 1}, {"n": 2}]),
        ({"results": [7, 8], "stats": {"total": 2}}, [7, 8]),
        ({"results": [7, 8]}, [{"key": "results", "value": [7, 8]}]),
        ({"a": 1, "b": 2}, [{"key": "a", "value": 1}, {"key": "b", "value": 2}]),
        ("[1, 2]", [1, 2]),
    ],
)
def test_what_a_collection_means(given: Any, expected: list[Any]) -> None:
    harness = started("{{ workload.given }}", given=given)
    assert [work.item for work in work_of(harness)] == expected


def test_a_whole_number_counts_from_zero_and_nothing_is_stored() -> None:
    harness = started("{{ workload.given }}", given=3)
    assert [(work.form, work.index, work.collection_ref) for work in work_of(harness)] == [
        (CollectionForm.RANGE, index, None) for index in range(3)
    ]


def test_null_is_empty_with_a_note_that_counts_as_a_warning() -> None:
    harness = started("{{ workload.given }}", given=None)
    assert harness.events("loop.started")[0].notes == ["loop_source_null"]
    assert harness.state.warnings == 1
    assert harness.types()[-1] == "playbook.completed"


@pytest.mark.parametrize("spec", ["{mode: parallel}", "{mode: chunked}", "{mode: fanout}"])
def test_no_number_of_items_is_below_zero(spec: str) -> None:
    harness = started("{{ workload.given }}", spec, given=-5)
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("loop_source", "each")
    assert "the negative number -5 is not a collection" in error.message
    assert harness.events("loop.started") == []
    assert started("{{ workload.given }}", spec, given=0).types()[-1] == "playbook.completed"


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("{{ workload.nothing }}", 1),
        ("-5", 1),
        ("true", 1),
        ("{{ workload.given }}", 1.5),
        ("{{ workload.given }}", True),
        ("{{ workload.given }}", "text"),
        ("{{ workload.given }}", '{"a": 1}'),
    ],
)
def test_anything_else_is_a_loop_source_error(source: str, given: Any) -> None:
    error = started(source, given=given).events("playbook.failed")[0].error
    assert error.kind == "loop_source"
    assert "'each'" in error.message
    assert "loop.in" in error.message


def test_a_fault_inside_the_expression_stays_a_template_error() -> None:
    error = started("{{ workload.given + 1 }}", given="a").events("playbook.failed")[0].error
    assert error.kind == "template"


REFERENCE = PayloadRef(
    uri="noetl://tenant/default/org/default/payloads/sha256/" + "1" * 64,
    sha256="1" * 64,
    media_type="application/json",
    payload_bytes=9_000_000,
    row_count=2_000_000,
)


def stored(kept: PipelineResult | LoopResult) -> ResultEnvelope:
    return ResultEnvelope(
        status="ok", reference=REFERENCE, context=result_envelope.build_reference_context(kept, {})
    )


def test_a_stored_list_is_kept_by_reference_however_long_it_is() -> None:
    harness = a_loop("{{ load }}", "{mode: chunked, chunk_size: 1000000}")
    harness.start()
    (load,) = harness.sent()
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="python", raw=[])}, last="t")
    reference = structs.replace(REFERENCE, row_count=None)
    context = {**result_envelope.build_reference_context(pipeline_result, {}), "length": 2_000_000}
    envelope = ResultEnvelope(status="ok", reference=reference, context=context)
    harness.tell(structs.replace(done(load), result=envelope))
    work = harness.sent()[0].work
    assert isinstance(work, FrameWork)
    assert (work.collection_ref, work.form) == (reference, CollectionForm.PIPELINE)
    assert (work.start, work.end) == (0, 1_000_000)
    assert harness.loaded == {}


@pytest.mark.parametrize("source", ["{{ load }}", "{{ load.rows }}", "{{ load.data }}"])
def test_rows_in_a_payload_are_kept_by_reference_and_never_loaded(source: str) -> None:
    harness = a_loop(source)
    harness.start()
    (load,) = harness.sent()
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="postgres")}, last="t")
    fact = done(load)
    harness.tell(
        facts.CommandCompleted(
            command_id=fact.command_id,
            attempt=1,
            worker_id=fact.worker_id,
            result=stored(pipeline_result),
        )
    )
    first = work_of(harness)[0]
    assert (first.total, first.form, first.collection_ref) == (
        2_000_000,
        CollectionForm.PIPELINE,
        REFERENCE,
    )
    assert harness.loaded == {}


@pytest.mark.parametrize("count", [100_001, 10_000_001])
def test_more_items_than_the_limit_are_refused_and_the_way_out_is_named(count: int) -> None:
    error = started("{{ workload.given }}", given=count).events("playbook.failed")[0].error
    assert error.kind == "limit"
    assert "loop over its result" in error.message


def test_the_bound_is_a_template() -> None:
    harness = started(
        "{{ workload.given }}",
        "{mode: parallel, max_in_flight: '{{ workload.given - 3 }}'}",
        given=5,
    )
    assert len(harness.sent()) == 2


def test_sequential_items_see_what_earlier_ones_wrote() -> None:
    harness = started("{{ workload.given }}", "{mode: sequential}", given=2)
    (item,) = harness.sent()
    harness.tell(done(item, 1, seen="first"))
    (two,) = harness.sent()
    assert two.slice.ctx["seen"] == "first"
    assert isinstance(two.work, ItemWork)
    assert (two.work.done, two.work.failed) == (1, 0)


def test_parallel_items_start_from_the_state_at_dispatch_and_the_last_write_wins() -> None:
    harness = started("{{ workload.given }}", given=2)
    item, two = harness.sent()
    assert two.slice.ctx == item.slice.ctx == {}
    harness.tell(done(two, 1, seen="two", other=2), done(item, 1, seen="one"))
    assert harness.state.ctx == {"seen": "one", "other": 2}


def test_fail_fast_calls_off_items_in_flight_and_refuses_their_late_reports() -> None:
    spec = "{mode: parallel, max_in_flight: 3, policy: {failure: {mode: fail_fast}}}"
    harness = started("{{ workload.given }}", spec, given=5)
    item, two, three = harness.sent()
    harness.tell(done(item, "A"))
    (four,) = harness.sent()
    events = harness.tell(item_failed(two))
    assert events.count("command.cancelled") == 2
    assert harness.last is not None
    assert set(harness.last.to_stop) == {three.command_id, four.command_id}
    collected = gathered(harness, ["A", None, None, None, None])
    assert harness.tell(done(three, "C")) == []
    harness.tell(collected)
    stats = harness.events("loop.failed")[0].stats
    assert (stats.total, stats.success, stats.failed, stats.cancelled) == (5, 1, 1, 3)


@pytest.mark.parametrize(
    ("policy", "ended"),
    [
        ("{mode: drain}", "loop.failed"),
        ("{mode: drain, max_failed: 1}", "loop.done"),
        ("{mode: drain, max_failed: '34%'}", "loop.done"),
        ("{mode: drain, max_failed: '33%'}", "loop.failed"),
        ("{mode: drain, max_failed: 9, min_success: 3}", "loop.failed"),
        ("{mode: best_effort}", "loop.done"),
    ],
)
def test_the_failure_policy_decides_the_outcome(policy: str, ended: str) -> None:
    spec = f"{{mode: parallel, max_in_flight: 9, policy: {{failure: {policy}}}}}"
    harness = started("{{ workload.given }}", spec, given=3)
    bad, *rest = harness.sent()
    harness.tell(item_failed(bad), *(done(item) for item in rest))
    harness.tell(gathered(harness, [None, None, None]))
    assert ended in harness.types()
    assert harness.events(ended)[0].stats.failed == 1


def test_the_fan_in_of_items_names_the_failed_ones() -> None:
    spec = "{mode: parallel, max_in_flight: 9, policy: {failure: {mode: best_effort}}}"
    harness = started("{{ workload.given }}", spec, given=3)
    item, two, three = harness.sent()
    harness.tell(done(item), item_failed(two), done(three))
    harness.tell(gathered(harness, [None, None, None]))
    fanin = harness.state.ctx["fanin"]
    assert (fanin["status"], fanin["total"], fanin["done"], fanin["failed"]) == ("partial", 3, 2, 1)
    assert fanin["step"] == "each"
    assert fanin["loop_id"]
    (bad,) = fanin["failed_items"]
    assert (bad["index"], bad["error"]["message"]) == (1, "boom")


def test_ten_thousand_items_cost_the_same_at_the_start_and_at_the_end() -> None:
    from noetl_replay import snapshot  # noqa: PLC0415 - only this case needs it

    harness = started(
        "{{ workload.given }}",
        "{mode: parallel, max_in_flight: 100}",
        given=[{"n": number} for number in range(10_000)],
    )
    sizes, bytes_sent = [], []
    while harness.sent():
        bytes_sent.append(max(len(str(item.work)) for item in harness.sent()))
        harness.tell(*(done(item, 1) for item in harness.sent()))
        sizes.append(len(snapshot.build_snapshot(harness.state).state))
    assert len(sizes) == 100
    assert max(sizes[1:-1]) - min(sizes[1:-1]) < 2_000
    assert max(bytes_sent) - min(bytes_sent) < 100
    assert harness.state.runs
    loop = next(iter(harness.state.runs.values())).loop
    assert loop is not None
    assert loop.success == 10_000


def test_rows_in_a_payload_are_hashed_only_where_the_planner_can_read_them() -> None:
    spec = "{mode: fanout, fanout: {partitions: 2, partition_by: n}}"
    harness = a_loop("{{ load }}", spec)
    harness.start()
    (load,) = harness.sent()
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="postgres")}, last="t")
    large = structs.replace(REFERENCE, payload_bytes=17 * 1024 * 1024)
    fact = structs.replace(
        done(load), result=structs.replace(stored(pipeline_result), reference=large)
    )
    harness.tell(fact)
    assert harness.events("playbook.failed")[0].error.kind == "payload_too_large"


@pytest.mark.parametrize("fanout", ["{shard_size: 400000}", "{partitions: 5}"])
def test_rows_in_a_payload_are_cut_without_being_read(fanout: str) -> None:
    harness = a_loop("{{ load }}", f"{{mode: fanout, fanout: {fanout}}}")
    harness.start()
    (load,) = harness.sent()
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="postgres")}, last="t")
    harness.tell(structs.replace(done(load), result=stored(pipeline_result)))
    slices = [
        (item.work.start, item.work.end)
        for item in harness.sent()
        if isinstance(item.work, FrameWork)
    ]
    assert slices == [(start, start + 400_000) for start in range(0, 2_000_000, 400_000)]
    assert harness.loaded == {}
