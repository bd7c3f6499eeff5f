# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Fan-out stages: shards cut, retried alone, counted, and their fan-in (language, 7.7)."""

from datetime import timedelta

import pytest
from tests.support.planning import NOON, PlannerHarness
from tests.support.slices import frame_done, frame_failed, gathered, lost, work_of

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionLayout
from noetl_contracts.requests import facts

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {items: [a, b, c, d, e]}
workflow:
"""


def a_fanout(
    fanout: str = "{shard_size: 2}", spec: str = "max_in_flight: 9", *, arcs: str = ""
) -> PlannerHarness:
    return PlannerHarness(
        HEAD
        + f"""
  - step: each
    loop:
      in: "{{{{ workload['items'] }}}}"
      iterator: it
      spec: {{mode: fanout, fanout: {fanout}, {spec}}}
    tool: {{kind: noop}}
    set: {{ctx.fanin: "{{{{ fanin }}}}", ctx.stats: "{{{{ each.stats }}}}"}}
    next: {{arcs: [{arcs or "{step: after}"}]}}
  - {{step: after, tool: {{kind: noop}}, set: {{ctx.later: "{{{{ each.fanin.status }}}}"}}}}
"""
    )


def slices(harness: PlannerHarness) -> list[tuple[int, int]]:
    return [(work_of(item).start, work_of(item).end) for item in harness.sent()]


def test_shards_are_contiguous_slices_of_a_size() -> None:
    harness = a_fanout()
    events = harness.start()
    assert slices(harness) == [(0, 2), (2, 4), (4, 5)]
    assert events.count("loop.shard.enqueued") == 3
    assert harness.events("loop.fanout.started")[0].shards == 3
    assert harness.events("stage.opened")[0].kind == "fanout"


def test_partitions_are_near_equal_and_never_empty() -> None:
    harness = a_fanout("{partitions: 2}")
    harness.start()
    assert slices(harness) == [(0, 2), (2, 5)]
    many = a_fanout("{partitions: 50}")
    many.start()
    assert slices(many) == [(index, index + 1) for index in range(5)]


def test_a_hash_of_fields_groups_items_the_same_way_every_time() -> None:
    rows = [{"customer": number % 3, "n": number} for number in range(12)]
    harness = a_fanout("{partitions: 4, partition_by: customer}")
    harness.start(items=rows)
    work = work_of(harness.sent()[0])
    assert work.layout_ref is not None
    assert work.collection_ref is not None
    layout = codec.convert_value(harness.loaded[work.layout_ref.sha256], CollectionLayout)
    grouped = harness.loaded[work.collection_ref.sha256]
    assert sorted(layout.order) == list(range(12))
    assert grouped == [rows[place] for place in layout.order]
    for start, end in slices(harness):
        places = layout.order[start:end]
        assert len({rows[place]["customer"] for place in places}) >= 1
        assert places == sorted(places)
    homes = [
        {customer for row in grouped[start:end] for customer in [row["customer"]]}
        for start, end in slices(harness)
    ]
    assert sum(len(home) for home in homes) == 3


def test_few_values_have_a_shard_each_where_partitions_suffice() -> None:
    rows = [{"customer": f"c{number % 20}", "n": number} for number in range(100)]
    desk = a_fanout("{partitions: 20, partition_by: customer}")
    desk.start(items=rows)
    assert desk.events("loop.fanout.started")[0].shards == 20
    layout_ref = work_of(desk.sent()[0]).layout_ref
    assert layout_ref is not None
    layout = codec.convert_value(desk.loaded[layout_ref.sha256], CollectionLayout)
    assert layout.offsets == list(range(0, 101, 5))


def test_hashing_without_partitions_is_refused() -> None:
    harness = a_fanout("{partition_by: customer}")
    harness.start()
    assert harness.events("playbook.failed")[0].error.kind == "validation"


def test_more_shards_than_the_limit_are_refused() -> None:
    from noetl_planner.domain.decision.draft import Limits  # noqa: PLC0415 - only this case needs it

    harness = a_fanout("{shard_size: 1}")
    harness.limits = Limits(shards_max=4)
    harness.start()
    assert harness.events("playbook.failed")[0].error.kind == "limit"


def test_a_shard_that_fails_once_and_then_succeeds_is_complete() -> None:
    harness = a_fanout()
    harness.start()
    item, two, three = harness.sent()
    events = harness.tell(frame_failed(item))
    assert events == ["command.started", "frame.started", "frame.abandoned"]
    assert harness.last is not None
    assert harness.last.wake_at == NOON + timedelta(seconds=1)
    assert harness.tell(facts.TimerDue()) == []
    harness.wait(1)
    assert harness.tell(facts.TimerDue()) == ["command.reissued", "frame.dispatched"]
    (again,) = harness.sent()
    assert (again.attempt, work_of(again).attempt, work_of(again).frame_id) == (
        2,
        2,
        work_of(item).frame_id,
    )
    harness.tell(frame_done(again), frame_done(two), frame_done(three))
    harness.tell(gathered(harness))
    fanin = harness.state.ctx["fanin"]
    assert (fanin["status"], fanin["done"], fanin["retried"]) == ("complete", 3, 1)
    assert harness.events("loop.fanin.completed")[0].status == "complete"


def test_the_wait_doubles_and_the_attempts_have_an_end() -> None:
    harness = a_fanout("{shard_size: 9, max_shard_retries: 2}")
    harness.start()
    (current,) = harness.sent()
    for wait_s in (1, 2):
        harness.tell(frame_failed(current))
        harness.wait(wait_s - 0.1)
        assert harness.tell(facts.TimerDue()) == []
        harness.wait(0.1)
        harness.tell(facts.TimerDue())
        (current,) = harness.sent()
    assert "loop.shard.failed" in harness.tell(frame_failed(current))
    assert harness.events("frame.failed")[0].attempt == 3


@pytest.mark.parametrize("kind", ["template", "validation", "policy", "unsupported_tool"])
def test_what_running_again_cannot_mend_is_not_retried(kind: str) -> None:
    harness = a_fanout()
    harness.start()
    item, *_ = harness.sent()
    assert "frame.failed" in harness.tell(frame_failed(item, kind=kind))


def test_a_lost_shard_waits_and_one_given_back_does_not() -> None:
    harness = a_fanout()
    harness.start()
    item, two, _ = harness.sent()
    assert harness.tell(lost(item)) == ["frame.abandoned"]
    assert harness.tell(lost(item)) == []
    assert harness.tell(lost(two, is_release=True)) == [
        "frame.abandoned",
        "command.reissued",
        "frame.dispatched",
    ]


def test_some_failed_shards_are_partial_and_arcs_see_which() -> None:
    arcs = "{step: after, when: \"{{ fanin.status == 'partial' and fanin.ratio >= 0.6 }}\", set: {ctx.bad: '{{ fanin.failed_items }}'}}"
    harness = a_fanout("{shard_size: 2, max_shard_retries: 0}", arcs=arcs)
    harness.start()
    item, two, three = harness.sent()
    harness.tell(frame_done(item), frame_failed(two), frame_done(three))
    harness.tell(gathered(harness))
    assert "loop.failed" in harness.types()
    (bad,) = harness.state.ctx["bad"]
    assert (bad["index"], bad["key"], bad["error"]["message"]) == (1, "1", "boom")
    (after,) = harness.sent()
    assert after.step == "after"


@pytest.mark.parametrize(
    ("fanout", "ended"),
    [
        ("{shard_size: 2, max_shard_retries: 0}", "loop.failed"),
        ("{shard_size: 2, max_shard_retries: 0, allow_partial: true}", "loop.done"),
    ],
)
def test_partial_outcomes_are_allowed_when_asked_for(fanout: str, ended: str) -> None:
    harness = a_fanout(fanout)
    harness.start()
    item, two, three = harness.sent()
    harness.tell(frame_failed(item), frame_done(two), frame_done(three))
    harness.tell(gathered(harness))
    assert ended in harness.types()


def test_percentages_are_of_shards() -> None:
    spec = "max_in_flight: 9, policy: {failure: {mode: drain, max_failed: '34%'}}"
    harness = a_fanout("{shard_size: 2, max_shard_retries: 0}", spec)
    harness.start()
    item, two, three = harness.sent()
    harness.tell(frame_failed(item), frame_done(two), frame_done(three))
    harness.tell(gathered(harness))
    assert "loop.done" in harness.types()


def test_fail_fast_calls_off_what_is_in_flight_or_waits() -> None:
    harness = a_fanout("{shard_size: 1, max_shard_retries: 1, fail_fast: true}", "max_in_flight: 3")
    harness.start()
    item, two, three = harness.sent()
    harness.tell(frame_failed(two))
    events = harness.tell(frame_failed(item, kind="policy"))
    assert events.count("command.cancelled") == 2
    assert harness.last is not None
    assert harness.last.wake_at is None
    harness.tell(gathered(harness))
    stats = harness.events("loop.failed")[0].stats
    assert (stats.total, stats.success, stats.failed, stats.cancelled) == (5, 0, 1, 4)
    abandoned = [event.frame_id for event in harness.events("frame.abandoned")]
    assert len(abandoned) == len(set(abandoned)) == 2
    assert harness.tell(frame_done(three)) == []


def test_an_empty_fanout_ends_at_once_and_is_complete() -> None:
    harness = a_fanout()
    events = harness.start(items=[])
    assert events[-8:].count("loop.done") == 1
    assert harness.state.ctx["fanin"]["status"] == "complete"
    assert harness.state.ctx["fanin"]["ratio"] == 1


def test_cancelling_closes_the_stage_once() -> None:
    harness = a_fanout()
    harness.start()
    item, *_ = harness.sent()
    harness.tell(frame_failed(item))
    harness.tell(facts.CancelRequested())
    harness.wait(60)
    harness.tell(facts.TimerDue())
    assert harness.types().count("stage.closed") == 1
    assert harness.types()[-1] == "execution.cancelled"
    keys = [item.idempotency_key for item in harness.history if item.idempotency_key]
    assert len(keys) == len(set(keys))


def test_an_epoch_that_timed_out_shows_its_own_counters_and_not_the_last_ones() -> None:
    harness = PlannerHarness(
        HEAD
        + """
  - step: each
    spec: {timeout: 10}
    loop: {in: "{{ 2 }}", iterator: it, spec: {mode: fanout}}
    tool: {kind: noop}
    next:
      arcs:
        - {step: seen, on: loop.failed, set: {ctx.done: "{{ fanin.done }}", ctx.id: "{{ fanin.loop_id }}"}}
        - {step: each}
  - {step: seen, tool: {kind: noop}}
"""
    )
    harness.start()
    harness.tell(*(frame_done(item) for item in harness.sent()))
    harness.tell(gathered(harness))
    item, _ = harness.sent()
    harness.tell(frame_done(item))
    harness.wait(11)
    harness.tell(facts.TimerDue())
    assert harness.state.ctx["done"] == 1
    assert harness.state.ctx["id"] == harness.events("loop.started")[1].run_id
