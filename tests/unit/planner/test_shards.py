# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Fan-out stages: shards cut, retried alone, counted, and their fan-in (language, 7.7)."""

from datetime import timedelta

import pytest
from tests.support.planning import NOON, Desk
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
) -> Desk:
    return Desk(
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


def slices(desk: Desk) -> list[tuple[int, int]]:
    return [(work_of(one).start, work_of(one).end) for one in desk.sent()]


def test_shards_are_contiguous_slices_of_a_size() -> None:
    desk = a_fanout()
    events = desk.start()
    assert slices(desk) == [(0, 2), (2, 4), (4, 5)]
    assert events.count("loop.shard.enqueued") == 3
    assert desk.events("loop.fanout.started")[0].shards == 3
    assert desk.events("stage.opened")[0].kind == "fanout"


def test_partitions_are_near_equal_and_never_empty() -> None:
    desk = a_fanout("{partitions: 2}")
    desk.start()
    assert slices(desk) == [(0, 2), (2, 5)]
    many = a_fanout("{partitions: 50}")
    many.start()
    assert slices(many) == [(index, index + 1) for index in range(5)]


def test_a_hash_of_fields_groups_items_the_same_way_every_time() -> None:
    rows = [{"customer": number % 3, "n": number} for number in range(12)]
    desk = a_fanout("{partitions: 4, partition_by: customer}")
    desk.start(items=rows)
    work = work_of(desk.sent()[0])
    assert work.layout_ref is not None
    assert work.collection_ref is not None
    layout = codec.convert_value(desk.loaded[work.layout_ref.sha256], CollectionLayout)
    grouped = desk.loaded[work.collection_ref.sha256]
    assert sorted(layout.order) == list(range(12))
    assert grouped == [rows[place] for place in layout.order]
    for start, end in slices(desk):
        places = layout.order[start:end]
        assert len({rows[place]["customer"] for place in places}) >= 1
        assert places == sorted(places)
    homes = [
        {customer for row in grouped[start:end] for customer in [row["customer"]]}
        for start, end in slices(desk)
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
    desk = a_fanout("{partition_by: customer}")
    desk.start()
    assert desk.events("playbook.failed")[0].error.kind == "validation"


def test_more_shards_than_the_limit_are_refused() -> None:
    from noetl_planner.domain.decision.draft import Limits  # noqa: PLC0415 - only this case needs it

    desk = a_fanout("{shard_size: 1}")
    desk.limits = Limits(shards_max=4)
    desk.start()
    assert desk.events("playbook.failed")[0].error.kind == "limit"


def test_a_shard_that_fails_once_and_then_succeeds_is_complete() -> None:
    desk = a_fanout()
    desk.start()
    one, two, three = desk.sent()
    events = desk.tell(frame_failed(one))
    assert events == ["command.started", "frame.started", "frame.abandoned"]
    assert desk.last is not None
    assert desk.last.wake_at == NOON + timedelta(seconds=1)
    assert desk.tell(facts.TimerDue()) == []
    desk.wait(1)
    assert desk.tell(facts.TimerDue()) == ["command.reissued", "frame.dispatched"]
    (again,) = desk.sent()
    assert (again.attempt, work_of(again).attempt, work_of(again).frame_id) == (
        2,
        2,
        work_of(one).frame_id,
    )
    desk.tell(frame_done(again), frame_done(two), frame_done(three))
    desk.tell(gathered(desk))
    fanin = desk.state.ctx["fanin"]
    assert (fanin["status"], fanin["done"], fanin["retried"]) == ("complete", 3, 1)
    assert desk.events("loop.fanin.completed")[0].status == "complete"


def test_the_wait_doubles_and_the_attempts_have_an_end() -> None:
    desk = a_fanout("{shard_size: 9, max_shard_retries: 2}")
    desk.start()
    (current,) = desk.sent()
    for wait_s in (1, 2):
        desk.tell(frame_failed(current))
        desk.wait(wait_s - 0.1)
        assert desk.tell(facts.TimerDue()) == []
        desk.wait(0.1)
        desk.tell(facts.TimerDue())
        (current,) = desk.sent()
    assert "loop.shard.failed" in desk.tell(frame_failed(current))
    assert desk.events("frame.failed")[0].attempt == 3


@pytest.mark.parametrize("kind", ["template", "validation", "policy", "unsupported_tool"])
def test_what_running_again_cannot_mend_is_not_retried(kind: str) -> None:
    desk = a_fanout()
    desk.start()
    one, *_ = desk.sent()
    assert "frame.failed" in desk.tell(frame_failed(one, kind=kind))


def test_a_lost_shard_waits_and_one_given_back_does_not() -> None:
    desk = a_fanout()
    desk.start()
    one, two, _ = desk.sent()
    assert desk.tell(lost(one)) == ["frame.abandoned"]
    assert desk.tell(lost(one)) == []
    assert desk.tell(lost(two, is_release=True)) == [
        "frame.abandoned",
        "command.reissued",
        "frame.dispatched",
    ]


def test_some_failed_shards_are_partial_and_arcs_see_which() -> None:
    arcs = "{step: after, when: \"{{ fanin.status == 'partial' and fanin.ratio >= 0.6 }}\", set: {ctx.bad: '{{ fanin.failed_items }}'}}"
    desk = a_fanout("{shard_size: 2, max_shard_retries: 0}", arcs=arcs)
    desk.start()
    one, two, three = desk.sent()
    desk.tell(frame_done(one), frame_failed(two), frame_done(three))
    desk.tell(gathered(desk))
    assert "loop.failed" in desk.types()
    (bad,) = desk.state.ctx["bad"]
    assert (bad["index"], bad["key"], bad["error"]["message"]) == (1, "1", "boom")
    (after,) = desk.sent()
    assert after.step == "after"


@pytest.mark.parametrize(
    ("fanout", "ended"),
    [
        ("{shard_size: 2, max_shard_retries: 0}", "loop.failed"),
        ("{shard_size: 2, max_shard_retries: 0, allow_partial: true}", "loop.done"),
    ],
)
def test_partial_outcomes_are_allowed_when_asked_for(fanout: str, ended: str) -> None:
    desk = a_fanout(fanout)
    desk.start()
    one, two, three = desk.sent()
    desk.tell(frame_failed(one), frame_done(two), frame_done(three))
    desk.tell(gathered(desk))
    assert ended in desk.types()


def test_percentages_are_of_shards() -> None:
    spec = "max_in_flight: 9, policy: {failure: {mode: drain, max_failed: '34%'}}"
    desk = a_fanout("{shard_size: 2, max_shard_retries: 0}", spec)
    desk.start()
    one, two, three = desk.sent()
    desk.tell(frame_failed(one), frame_done(two), frame_done(three))
    desk.tell(gathered(desk))
    assert "loop.done" in desk.types()


def test_fail_fast_calls_off_what_is_in_flight_or_waits() -> None:
    desk = a_fanout("{shard_size: 1, max_shard_retries: 1, fail_fast: true}", "max_in_flight: 3")
    desk.start()
    one, two, three = desk.sent()
    desk.tell(frame_failed(two))
    events = desk.tell(frame_failed(one, kind="policy"))
    assert events.count("command.cancelled") == 2
    assert desk.last is not None
    assert desk.last.wake_at is None
    desk.tell(gathered(desk))
    stats = desk.events("loop.failed")[0].stats
    assert (stats.total, stats.success, stats.failed, stats.cancelled) == (5, 0, 1, 4)
    abandoned = [event.frame_id for event in desk.events("frame.abandoned")]
    assert len(abandoned) == len(set(abandoned)) == 2
    assert desk.tell(frame_done(three)) == []


def test_an_empty_fanout_ends_at_once_and_is_complete() -> None:
    desk = a_fanout()
    events = desk.start(items=[])
    assert events[-8:].count("loop.done") == 1
    assert desk.state.ctx["fanin"]["status"] == "complete"
    assert desk.state.ctx["fanin"]["ratio"] == 1


def test_cancelling_closes_the_stage_once() -> None:
    desk = a_fanout()
    desk.start()
    one, *_ = desk.sent()
    desk.tell(frame_failed(one))
    desk.tell(facts.CancelRequested())
    desk.wait(60)
    desk.tell(facts.TimerDue())
    assert desk.types().count("stage.closed") == 1
    assert desk.types()[-1] == "execution.cancelled"
    keys = [one.idempotency_key for one in desk.history if one.idempotency_key]
    assert len(keys) == len(set(keys))


def test_an_epoch_that_timed_out_shows_its_own_counters_and_not_the_last_ones() -> None:
    desk = Desk(
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
    desk.start()
    desk.tell(*(frame_done(one) for one in desk.sent()))
    desk.tell(gathered(desk))
    one, _ = desk.sent()
    desk.tell(frame_done(one))
    desk.wait(11)
    desk.tell(facts.TimerDue())
    assert desk.state.ctx["done"] == 1
    assert desk.state.ctx["id"] == desk.events("loop.started")[1].run_id
