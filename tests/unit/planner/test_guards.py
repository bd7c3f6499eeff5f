"""A mistake in a guard ends the run or is refused; it never lets the guard fall away."""

import pytest
from tests.support.planning import PlannerHarness, done, run_all

from noetl_contracts import codec
from noetl_contracts.ids import CatalogId
from noetl_planner.domain.decision.program import Program
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.parse.playbook import parse_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: guard}\n"


def guarded(condition: str, *, root: str = "", version: str = "v2") -> str:
    return (
        HEAD.replace("v2", version)
        + root
        + f"""
workflow:
  - step: fetch
    tool: {{kind: noop, result: {{has_bad_rows: true}}}}
    next:
      arcs:
        - {{step: refuse, when: "{condition}"}}
        - {{step: publish}}
  - {{step: refuse, tool: {{kind: python, code: "raise ValueError('bad rows')"}}}}
  - {{step: publish, tool: {{kind: noop, result: {{published: true}}}}}}
"""
    )


def ended(text: str | Program) -> PlannerHarness:
    harness = PlannerHarness(text)
    harness.start()
    (fetch,) = harness.sent()
    harness.tell(done(fetch, {"has_bad_rows": True}))
    return harness


@pytest.mark.parametrize(
    "condition",
    ["{{ fetchd.has_bad_rows }}", "{{ not fetchd }}", "{% if fetchd.x %}true{% endif %}"],
)
def test_a_mistyped_name_is_refused(condition: str) -> None:
    parsed = parse_playbook(guarded(condition))
    assert parsed.playbook is None
    (problem,) = parsed.problems
    assert (problem.code, problem.is_error) == ("E303", True)
    assert (problem.message, problem.hint) == (
        "'fetchd' is not a name here",
        "did you mean 'fetch'?",
    )


def test_a_mistyped_field_fails_its_step_and_names_it() -> None:
    harness = ended(guarded("{{ fetch.has_bad_row }}"))
    (failed,) = harness.events("playbook.failed")
    assert (failed.error.kind, failed.error.step) == ("template", "fetch")
    assert "step 'fetch', field 'next.arcs[0].when'" in failed.error.message
    assert "'fetch.has_bad_row' is not there (did you mean 'has_bad_rows'?)" in failed.error.message
    assert [event.step for event in harness.events("step.enter")] == ["fetch"]


@pytest.mark.parametrize(
    "condition",
    [
        "{{ fetch.has_bad_row != 'x' }}",
        "{{ not fetch.has_bad_row }}",
        "{{ steps.fetch.data.bad == 1 }}",
        "{{ ctx.seen }}",
        "{{ workload.flag }}",
        "{{ publish.published }}",
        "{{ event.payload.bad }}",
        "{{ output.bad is none }}",
    ],
)
def test_no_test_of_what_is_not_there_decides_a_route(condition: str) -> None:
    harness = ended(guarded(condition))
    (failed,) = harness.events("playbook.failed")
    assert "is not there" in failed.error.message


@pytest.mark.parametrize(
    ("condition", "step"),
    [
        ("{{ fetch.has_bad_row is defined and fetch.has_bad_row }}", "publish"),
        ("{{ fetch.has_bad_row | default(false) }}", "publish"),
        ("{{ fetch.get('has_bad_row') }}", "publish"),
        ("{{ publish is defined }}", "publish"),
        ("{{ error }}", "publish"),
        ("{{ event.error.kind == 'x' }}", "publish"),
        ("{{ output.error.kind == 'timeout' }}", "publish"),
        ("{{ fetch.has_bad_rows }}", "refuse"),
    ],
)
def test_what_may_be_absent_is_said_so(condition: str, step: str) -> None:
    harness = ended(guarded(condition))
    assert [event.step for event in harness.events("step.enter")] == ["fetch", step]


def test_a_lenient_playbook_takes_it_for_false_and_notes_it() -> None:
    lenient = "executor: {spec: {undefined: lenient}}\n"
    harness = ended(guarded("{{ fetch.has_bad_row }}", root=lenient))
    assert harness.events("step.exit")[0].notes == ["undefined_in_condition"]
    assert [event.step for event in harness.events("step.enter")] == ["fetch", "publish"]
    (warning,) = parse_playbook(guarded("{{ fetchd.x }}", root=lenient)).problems
    assert (warning.code, warning.is_error) == ("E303", False)


def test_the_older_dialect_is_lenient_with_a_warning_at_the_place() -> None:
    text = guarded("{{ fetchd.x }}", version="v1")
    parsed = parse_playbook(text)
    assert parsed.playbook is not None
    assert parsed.playbook.executor.spec.undefined == "lenient"
    assert {problem.code for problem in parsed.problems} == {"W901", "E303"}
    assert not any(problem.is_error for problem in parsed.problems)
    harness = ended(text)
    run_all(harness)
    assert harness.types()[-1] == "playbook.completed"


def test_the_older_dialect_may_be_told_to_be_strict() -> None:
    strict = "executor: {spec: {undefined: strict}}\n"
    assert parse_playbook(guarded("{{ fetchd.x }}", version="v1", root=strict)).playbook is None


def test_a_model_that_was_stored_before_keeps_its_meaning() -> None:
    text = guarded("{{ fetch.has_bad_row }}")
    model = parse_playbook(text).playbook
    assert model is not None
    stored = codec.to_builtins(model)
    del stored["executor"]
    program = Program(
        codec.convert_value(stored, Playbook),
        catalog_id=CatalogId("1"),
        catalog_version=1,
        digest="d",
    )
    harness = ended(program)
    assert [event.step for event in harness.events("step.enter")] == ["fetch", "publish"]
