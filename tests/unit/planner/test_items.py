from tests.support.planning import WORKER, PlannerHarness, done

from noetl_contracts.commands.command_work import ItemWork
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {items: [a, b, c]}
workflow:
  - step: each
    loop: {in: "{{ workload.items }}", iterator: it, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop}
    set: {ctx.n: "{{ each.stats.success }}", ctx.all: "{{ each.results }}"}
"""


def collected(harness: PlannerHarness, results: list[object]) -> facts.ItemsCollected:
    assert harness.last is not None
    (run_id,) = harness.last.to_collect
    stats = {"success": harness.state.runs[run_id].loop.success}  # type: ignore[union-attr,index]  # a live loop
    loop_result = LoopResult(results=results, stats=stats)
    result = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(loop_result))
    return facts.ItemsCollected(run_id=run_id, result=result)


def test_items_are_issued_in_order_within_the_bound_and_collected_at_the_end() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start()
    first, second = harness.sent()
    assert isinstance(first.work, ItemWork)
    assert (first.work.index, first.work.item, first.work.total) == (0, "a", 3)
    harness.tell(done(second, "B"))
    (third,) = harness.sent()
    harness.tell(done(third, "C"), done(first, "A"))
    harness.tell(collected(harness, ["A", "B", "C"]))
    assert harness.types()[-3:] == ["loop.done", "step.exit", "playbook.completed"]
    assert harness.state.ctx == {"n": 3, "all": ["A", "B", "C"]}


def test_an_empty_collection_ends_at_once() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start(items=[])
    assert harness.types()[-3:] == ["loop.done", "step.exit", "playbook.completed"]


def test_a_source_that_is_no_collection_fails_the_step() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start(items=1.5)
    assert harness.events("playbook.failed")[0].error.kind == "loop_source"


def test_a_failed_item_fails_the_loop_and_names_itself() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start(items=[1])
    (only,) = harness.sent()
    error = ErrorObject(kind="transform", message="boom")
    harness.tell(
        facts.CommandFailed(command_id=only.command_id, attempt=1, worker_id=WORKER, error=error)
    )
    harness.tell(collected(harness, [None]))
    assert "boom" in harness.events("playbook.failed")[0].error.message


def test_a_million_items_keep_the_state_small() -> None:
    from noetl_planner.domain.decision.draft import Limits  # noqa: PLC0415 - only this case needs it
    from noetl_replay import snapshot  # noqa: PLC0415 - only this case needs it

    harness = PlannerHarness(PLAYBOOK, limits=Limits(items_max=2_000_000))
    harness.start(items=1_000_000)
    for _ in range(200):
        harness.tell(*(done(command, 1) for command in harness.sent()))
    assert len(snapshot.build_snapshot(harness.state).state) < 20_000


def test_a_lost_item_is_issued_again_up_to_its_attempts() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start(items=[1])
    (only,) = harness.sent()
    for attempt in (1, 2):
        harness.tell(facts.CommandLost(command_id=only.command_id, attempt=attempt, reason="gone"))
        assert harness.sent()[0].attempt == attempt + 1
    harness.tell(facts.CommandLost(command_id=only.command_id, attempt=3, reason="gone"))
    assert harness.events("call.error")[0].error.kind == "worker_lost"
