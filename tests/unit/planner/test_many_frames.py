"""What loops of many frames cost the planner, and what a few bad ones among them mean."""

from msgspec import structs
from tests.support.planning import PlannerHarness, done
from tests.support.slices import an_error, frame_done, frame_failed, gathered, parts_ref

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.loop_collections import UnitsEnd
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_replay import comparison, snapshot
from noetl_replay.comparison import replay_surfaces
from noetl_replay.rows import KEY_BY_SURFACE
from noetl_replay.state import build_empty_state

ROWS = 1_000_000
EVENT_BYTES_MAX = 2 * 1024
HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
"""
MILLION = (
    HEAD
    + """
  - {step: load, tool: {kind: noop}, next: {arcs: [{step: each}]}}
  - step: each
    loop:
      in: "{{ load }}"
      iterator: rows
      spec:
        mode: chunked
        chunk_size: 2000
        max_in_flight: 4
        collect: none
        frame: {process: frame}
    tool: {kind: noop}
"""
)
TEN = (
    HEAD
    + """
  - step: each
    loop:
      in: "{{ 10 }}"
      iterator: it
      spec: {mode: fanout, fanout: {max_shard_retries: 1}}
    tool: {kind: noop}
    next:
      arcs:
        - {step: whole, when: "{{ fanin.status == 'complete' }}"}
        - {step: some, when: "{{ fanin.status == 'partial' and fanin.ratio >= 0.8 }}"}
        - {step: none, when: "{{ fanin.status != 'complete' }}"}
  - {step: whole, tool: {kind: noop}}
  - {step: some, tool: {kind: noop}}
  - {step: none, tool: {kind: noop}}
"""
)


def with_rows(load: Command, count: int) -> facts.CommandCompleted:
    """Report a step whose rows are in a payload that nobody on this side reads."""
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="postgres")}, last="t")
    reference = parts_ref(b"[]", rows=count)
    envelope = ResultEnvelope(
        status="ok",
        reference=reference,
        context=result_envelope.build_reference_context(pipeline_result, {"row_count": count}),
    )
    return structs.replace(done(load), result=envelope)


def test_a_million_rows_cost_a_state_that_stays_small_and_events_that_do() -> None:
    harness = PlannerHarness(MILLION)
    harness.start()
    (load,) = harness.sent()
    harness.tell(with_rows(load, ROWS))
    sizes = []
    while waiting := harness.sent():
        harness.tell(*(frame_done(command, result=None) for command in waiting))
        sizes.append(len(snapshot.build_snapshot(harness.state).state))
    assert harness.types()[-1] == "playbook.completed"
    (ended,) = harness.events("loop.done")
    assert (ended.stats.total, ended.stats.success) == (500, 500)
    assert sum(item.row_count for item in harness.events("frame.committed")) == ROWS
    assert harness.types().count("stage.closed") == 1
    assert max(sizes[5:-5]) - min(sizes[5:-5]) < 200
    assert max(len(codec.encode_json(item.event)) for item in harness.history) < EVENT_BYTES_MAX
    frames = sum(kind.startswith("frame.") for kind in harness.types())
    assert frames <= 4 * 500
    assert harness.loaded == {}
    assert_parity(harness)


def assert_parity(harness: PlannerHarness) -> None:
    """What is replayed is the state that the planner holds."""
    first = harness.history[0]
    begun = build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    state, surfaces = replay_surfaces(begun, harness.history)
    assert codec.encode_canonical(state) == codec.encode_canonical(harness.state)
    assert set(surfaces) == set(KEY_BY_SURFACE)
    assert comparison.compute_surface_checksums(surfaces)


def play_ten(bad: int, *, times: int) -> PlannerHarness:
    """Run ten shards, so many of which fail so often; what waits is handed out again."""
    harness = PlannerHarness(TEN)
    harness.start()
    failing = [command.command_id for command in harness.sent()][-bad:]
    for turn in range(2):
        bad_now = failing if turn < times else []
        harness.tell(
            *(
                frame_failed(item) if item.command_id in bad_now else frame_done(item)
                for item in harness.sent()
            )
        )
        assert harness.last is not None
        if harness.last.to_collect:
            harness.tell(gathered(harness))
            return harness
        harness.wait(5)
        harness.tell(facts.TimerDue())
    raise AssertionError("the stage did not close")


def test_ten_frames_of_which_two_fail_for_good_are_partial_and_the_arc_for_that_is_taken() -> None:
    harness = play_ten(2, times=2)
    (fanin,) = harness.events("loop.fanin.completed")
    assert (fanin.status, fanin.done, fanin.failed) == ("partial", 8, 2)
    assert [command.step for command in harness.sent()] == ["some"]


def test_three_frames_that_fail_once_and_then_succeed_leave_nothing_behind() -> None:
    harness = play_ten(3, times=1)
    (fanin,) = harness.events("loop.fanin.completed")
    assert (fanin.status, fanin.done, fanin.failed, fanin.retried) == ("complete", 10, 0, 3)
    assert [command.step for command in harness.sent()] == ["whole"]


def test_a_loop_in_one_worker_is_counted_by_its_units() -> None:
    text = TEN.replace("max_shard_retries: 1}", "shard_size: 2}, policy: {exec: local}")
    harness = PlannerHarness(text)
    harness.start()
    (whole,) = harness.sent()
    units = UnitsEnd(ok=4, failed=1, retried=2)
    harness.tell(frame_done(whole, rows_failed=1, error=an_error(), units=units))
    harness.tell(gathered(harness))
    (fanin,) = harness.events("loop.fanin.completed")
    assert (fanin.total, fanin.done, fanin.failed, fanin.retried) == (5, 4, 1, 2)
    (ended,) = harness.events("loop.failed")
    assert (ended.stats.total, ended.stats.success, ended.stats.failed) == (10, 9, 1)
