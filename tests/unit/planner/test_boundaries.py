"""What admission and arcs see of the step that ended."""

from tests.support.planning import PlannerHarness, done, run_all

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"

GUARDED = (
    HEAD
    + """
workflow:
  - {step: first, tool: {kind: noop}, next: {arcs: [{step: guarded}]}}
  - step: guarded
    spec:
      policy:
        admit:
          on_deny: fail
          rules:
            - {when: "{{ event.name == 'step.done' and event.step == 'first'
                         and event.payload.n == 1 and output.n == 1 }}", then: {allow: true}}
    tool: {kind: noop}
"""
)

LENIENT = HEAD + "executor: {spec: {undefined: lenient}}\n"

ARCS = (
    LENIENT
    + """
workflow:
  - step: first
    tool: {kind: noop}
    next:
      arcs:
        - {step: other, when: "{{ ctx.nothing }}"}
        - {step: other, when: "{{ ctx.nothing_else }}"}
        - {step: other, when: "{{ steps.first.status == 'ok' and first.status == 'mine'
                                   and steps.first.data.status == 'mine' }}",
           set: {ctx.seen: "{{ event.payload.status }}"}}
  - {step: other, tool: {kind: noop}}
"""
)


def test_admission_sees_the_event_and_the_result_of_the_step_before() -> None:
    harness = PlannerHarness(GUARDED)
    harness.start()
    (first,) = harness.sent()
    harness.tell(done(first, {"n": 1}))
    run_all(harness)
    assert harness.types()[-1] == "playbook.completed"


def test_a_step_that_is_not_admitted_is_named() -> None:
    harness = PlannerHarness(GUARDED)
    harness.start()
    (first,) = harness.sent()
    harness.tell(done(first, {"n": 2}))
    (failed,) = harness.events("playbook.failed")
    assert failed.error.kind == "policy"
    assert "'guarded'" in failed.error.message


def test_steps_are_envelopes_and_an_undefined_condition_is_noted_once() -> None:
    harness = PlannerHarness(ARCS)
    harness.start()
    (first,) = harness.sent()
    harness.tell(done(first, {"status": "mine"}))
    assert harness.state.ctx == {"seen": "mine"}
    assert harness.events("step.exit")[0].notes == ["undefined_in_condition"]


SKIPPED = (
    LENIENT
    + """
workflow:
  - step: only
    spec: {policy: {admit: {rules: [{when: "{{ workload.wanted }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""
)


def test_a_step_that_an_undefined_condition_leaves_out_says_so() -> None:
    harness = PlannerHarness(SKIPPED)
    harness.start()
    (left,) = harness.events("step.exit")
    assert (str(left.status), left.notes) == ("SKIPPED", ["undefined_in_condition"])
    assert harness.state.warnings == 1
