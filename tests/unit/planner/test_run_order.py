"""What random workflows found: each defect as the smallest playbook that shows it."""

from tests.support.planning import WORKER, PlannerHarness, done, run_all

from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"

CYCLE_AND_END = (
    HEAD
    + """
executor: {spec: {entry_step: split, final_step: last}}
workflow:
  - {step: last, tool: {kind: noop}}
  - step: split
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: after}]}
  - {step: after, tool: {kind: noop}}
  - step: a
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: b, on: call.error}, {step: after}]}
  - step: b
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a, on: call.error}, {step: after}]}
"""
)

DRAIN = (
    HEAD
    + """
executor: {spec: {policy: {failure: {mode: drain}}}}
workflow:
  - step: split
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: each}, {step: bad}]}
  - step: each
    loop: {in: "{{ 1 }}", iterator: i}
    tool: {kind: noop}
    set: {ctx.kept: "{{ each.stats.success }}"}
  - {step: bad, tool: {kind: noop}}
"""
)

GUARDED = (
    HEAD
    + """
workflow:
  - step: s
    spec:
      policy:
        admit: {on_deny: fail, rules: [{when: "{{ ctx.n is undefined }}", then: {allow: true}}]}
    tool: {kind: noop}
    set: {ctx.n: 1}
    next:
      arcs:
        - {step: t, when: "{{ s.error.kind == 'policy' }}"}
        - {step: s}
  - step: t
    tool: {kind: noop}
    set:
      ctx.kind: "{{ s.error.kind }}"
      ctx.status: "{{ s.status }}"
      ctx.old: "{{ s.n | d('-') }}"
"""
)

ASKING = (
    HEAD
    + """
workflow:
  - step: s
    tool: {kind: noop}
    next:
      arcs:
        - {step: t, when: "{{ s.error.kind == 'timeout' }}", set: {ctx.via: result}}
        - {step: t, when: "{{ event.error is defined }}", set: {ctx.via: event}}
        - {step: t}
  - {step: t, tool: {kind: noop}, set: {ctx.status: "{{ s.status }}"}}
"""
)


def failed(harness: PlannerHarness, kind: str) -> facts.CommandFailed:
    (command,) = harness.sent()
    return facts.CommandFailed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WORKER,
        error=ErrorObject(kind=kind, message="as planned"),
    )


def test_what_follows_a_cycle_waits_for_it_wherever_it_stands_in_the_workflow() -> None:
    harness = PlannerHarness(CYCLE_AND_END)
    harness.start()
    run_all(harness)
    entered = [event.step for event in harness.events("step.enter")]
    assert entered == ["split", "a", "b", "after", "last"]


def test_a_draining_run_waits_for_a_loop_whose_results_are_being_gathered() -> None:
    harness = PlannerHarness(DRAIN)
    harness.start()
    (split,) = harness.sent()
    harness.tell(done(split))
    item, bad = harness.sent()
    harness.tell(done(item))
    assert harness.last is not None
    (run_id,) = harness.last.to_collect
    error = ErrorObject(kind="timeout", message="as planned")
    harness.tell(
        facts.CommandFailed(command_id=bad.command_id, attempt=1, worker_id=WORKER, error=error)
    )
    assert not harness.state.is_terminal()
    loop_result = LoopResult(results=[None], stats={"success": 1})
    result = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(loop_result))
    harness.tell(facts.ItemsCollected(run_id=run_id, result=result))
    assert harness.state.ctx == {"kept": 1}
    assert harness.types()[-1] == "playbook.failed"
    assert harness.state.steps["each"].status == "COMPLETED"


def test_a_step_that_is_not_admitted_again_has_its_failure_for_a_result() -> None:
    harness = PlannerHarness(GUARDED)
    harness.start()
    run_all(harness, [{"n": 5}])
    assert harness.types()[-1] == "playbook.completed"
    assert harness.state.ctx == {"n": 1, "kind": "policy", "status": "error", "old": "-"}


def test_a_step_that_failed_without_a_result_shows_its_error() -> None:
    harness = PlannerHarness(ASKING)
    harness.start()
    harness.tell(failed(harness, "timeout"))
    run_all(harness)
    assert harness.state.ctx == {"via": "result", "status": "error"}


def test_an_event_of_a_success_has_no_error() -> None:
    harness = PlannerHarness(ASKING)
    harness.start()
    run_all(harness, [{}, {}])
    assert harness.state.ctx == {"status": "ok"}
