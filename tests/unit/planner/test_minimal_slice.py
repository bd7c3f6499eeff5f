"""A command carries the results that its templates name, and no others."""

from tests.support.planning import PlannerHarness, done

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {named: 1, other: 2}
workflow:
  - {step: one, tool: {kind: noop}, set: {ctx.kept: 3, ctx.unread: 4}, next: {arcs: [{step: two}]}}
  - {step: two, tool: {kind: noop}, next: {arcs: [{step: three}]}}
  # The step that led here is what `output` shows.
  - {step: three, tool: {kind: noop}, next: {arcs: [{step: reads}]}}
  - step: reads
    tool: {kind: noop, result: "{{ workload.named }} {{ ctx.kept }} {{ one.n }}"}
    next: {arcs: [{step: everything}]}
  - {step: everything, tool: {kind: python, code: "result = context['other']"}}
"""


def at(step: str) -> PlannerHarness:
    harness = PlannerHarness(PLAYBOOK)
    harness.start()
    for item in ("one", "two", "three", "reads"):
        if item == step:
            break
        harness.tell(done(harness.sent()[0], {"n": 1}))
    return harness


def test_only_results_that_templates_name_travel() -> None:
    assert set(at("reads").sent()[0].slice.steps) == {"one", "three"}


def test_code_that_mentions_the_context_gets_it_whole() -> None:
    found = at("everything").sent()[0].slice
    assert found.workload == {"named": 1, "other": 2}
    assert found.ctx == {"kept": 3, "unread": 4}
    assert set(found.steps) == {"one", "two", "three", "reads"}


def test_a_command_says_what_the_execution_keeps_inline() -> None:
    spec = "executor: {spec: {policy: {results: {inline_max_bytes: 100}}}}\nworkload:"
    harness = PlannerHarness(PLAYBOOK.replace("workload:", spec))
    harness.start()
    assert harness.sent()[0].defaults == {"inline_max_bytes": 100, "undefined": "strict"}
    assert at("one").sent()[0].defaults == {"undefined": "strict"}
