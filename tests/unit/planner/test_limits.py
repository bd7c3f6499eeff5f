import pytest
from tests.support import streams
from tests.support.planning import PlannerHarness, done, program
from tests.support.slices import frame_done, gathered

from noetl_planner.domain.decision import limits
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.domain.steps import pools
from noetl_playbook.sections.limits import LIMITS_MAX

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def of(executor: str, step: str) -> PlannerHarness:
    return PlannerHarness(f"{HEAD}executor: {executor}\nworkflow:\n  - {step}\n")


def limited(bounds: str, step: str) -> PlannerHarness:
    return of(f"{{spec: {{policy: {{limits: {bounds}}}}}}}", step)


CYCLE = "{step: again, tool: {kind: noop}, next: {arcs: [{step: again}]}}"


def test_a_playbook_lowers_the_bound_of_activations() -> None:
    harness = limited("{max_steps: 3}", CYCLE)
    harness.start()
    while harness.sent():
        harness.tell(done(harness.sent()[0]))
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.code) == ("limit", "max_steps")
    assert len(harness.events("step.enter")) == 3


def test_a_playbook_cannot_raise_what_the_deployment_bounds() -> None:
    assert limits.lower_limits(Limits(activations_max=5), {"max_steps": 9}).activations_max == 5


@pytest.mark.parametrize(
    ("bounds", "loop", "code"),
    [
        ("{max_items: 2}", "{in: [1, 2, 3], iterator: i}", "max_items"),
        (
            "{max_in_flight: 4}",
            "{in: [1], iterator: i, spec: {mode: parallel, max_in_flight: 5}}",
            "max_in_flight",
        ),
        (
            "{max_in_flight: 1}",
            (
                "{cursor: {kind: postgres, auth: db, claim: SELECT 1}, iterator: i,"
                " spec: {max_in_flight: 2}}"
            ),
            "max_in_flight",
        ),
    ],
)
def test_a_loop_beyond_a_limit_fails_and_names_it(bounds: str, loop: str, code: str) -> None:
    harness = limited(bounds, f"{{step: each, loop: {loop}, tool: {{kind: noop}}}}")
    harness.start()
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.code, error.step) == ("limit", code, "each")


@pytest.mark.parametrize(
    ("loop", "at_once"),
    [
        ("{in: 20, iterator: i, spec: {mode: parallel}}", 4),
        ("{in: 20, iterator: i, spec: {mode: fanout}}", 4),
        ("{in: 20, iterator: i, spec: {mode: parallel, frame: {max_rows: 2}}}", 4),
        ("{in: 20, iterator: i, spec: {mode: chunked, chunk_size: 2}}", 1),
        ("{in: 20, iterator: i, spec: {mode: parallel, max_in_flight: 3}}", 3),
    ],
)
@pytest.mark.parametrize("whose", ["playbook", "deployment"])
def test_a_lowered_limit_lowers_what_loops_have_by_themselves(
    loop: str, at_once: int, whose: str
) -> None:
    step = f"{{step: each, loop: {loop}, tool: {{kind: noop}}}}"
    harness = limited("{max_in_flight: 4}", step)
    if whose == "deployment":
        harness = PlannerHarness(f"{HEAD}workflow:\n  - {step}\n", limits=Limits(in_flight_max=4))
    harness.start()
    assert harness.events("loop.started")[0].max_in_flight == at_once
    assert len(harness.sent()) == at_once


REDUCED = """
executor: {spec: {policy: {limits: {max_in_flight: 2}}}}
workflow:
  - {step: each, loop: {in: 20, iterator: i, spec: {mode: fanout}}, tool: {kind: noop},
     next: {arcs: [{step: total}]}}
  - {step: total, reduce: {from: each, spec: {mode: tree, fan_in: 2BOUND}}, tool: {kind: noop}}
"""


def reduced(bound: str = "") -> PlannerHarness:
    harness = PlannerHarness(HEAD + REDUCED.replace("BOUND", bound))
    harness.start()
    while harness.sent():
        harness.tell(*(frame_done(item) for item in harness.sent()))
    harness.tell(gathered(harness))
    return harness


def test_a_lowered_limit_lowers_what_reduces_and_streams_have_by_themselves() -> None:
    assert [command.step for command in reduced().sent()] == ["total", "total"]
    stream = PlannerHarness(streams.playbook().replace(", spec: {max_in_flight: 2}", ""),
                  limits=Limits(in_flight_max=3))  # fmt: skip
    stream.start()
    stream.tell(*(streams.chunk(stream.sent()[0], index) for index in range(5)))
    assert [command.step for command in stream.sent()] == ["ship"] * 3


def test_a_reduce_beyond_a_limit_fails_and_names_it() -> None:
    error = reduced(", max_in_flight: 3").events("playbook.failed")[0].error
    assert (error.kind, error.code, error.step) == ("limit", "max_in_flight", "total")


def test_the_bounds_of_pipelines_travel_with_commands() -> None:
    harness = limited("{max_jumps: 7, max_steps: 5}", CYCLE)
    harness.start()
    assert harness.sent()[0].limits == {"max_jumps": 7}


def test_a_playbook_that_needs_what_is_not_there_does_not_begin() -> None:
    text = f"{HEAD}executor: {{requires: {{tools: [noop, python]}}}}\nworkflow: [{{step: a}}]\n"
    harness = PlannerHarness(text, limits=Limits(tools=("noop",)))
    assert harness.start() == ["playbook.initialized", "playbook.failed"]
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.code) == ("requirement_missing", "REQUIREMENT_MISSING")
    assert "python" in error.message
    assert "noop" not in error.message


def test_a_deployment_may_run_fewer_kinds_than_there_are() -> None:
    assert pools.find_missing_tools(["http", "sql"], enabled=["http", "postgres"]) is None
    error = pools.find_missing_tools(["http", "python"], enabled=["http"])
    assert error is not None
    assert "python" in error.message


def test_a_step_announces_its_end_under_its_own_names_once() -> None:
    emit = "spec: {policy: {emit: {events: [seen, seen, done.well]}}}"
    harness = of("{}", f"{{step: a, {emit}, tool: {{kind: noop}}}}")
    harness.start()
    types = harness.tell(done(harness.sent()[0]))
    assert types[2:] == ["custom.seen", "custom.done.well", "step.exit", "playbook.completed"]
    (event,) = harness.events("custom.seen")
    assert (event.step, event.status) == ("a", "COMPLETED")


def test_a_failed_step_announces_its_end_as_well() -> None:
    admit = "admit: {on_deny: fail, rules: [{when: false, then: {allow: true}}]}"
    emit = f"spec: {{policy: {{emit: {{events: [seen]}}, {admit}}}}}"
    harness = of("{}", f"{{step: a, {emit}, tool: {{kind: noop}}}}")
    harness.start()
    assert harness.events("custom.seen")[0].status == "FAILED"


@pytest.mark.parametrize(
    ("executor", "on_no_match", "end"),
    [
        ("{}", "complete", "playbook.completed"),
        ("{}", "quiet", "playbook.completed"),
        ("{}", "fail", "playbook.failed"),
        ("{spec: {no_next_is_error: true}}", "complete", "playbook.failed"),
    ],
)
def test_a_step_without_a_matching_arc_ends_as_it_says(
    executor: str, on_no_match: str, end: str
) -> None:
    step = (
        f"{{step: a, tool: {{kind: noop}}, next: {{spec: {{on_no_match: {on_no_match}}}, "
        "arcs: [{step: a, when: '{{ false }}'}]}}"
    )
    harness = of(executor, step)
    harness.start()
    harness.tell(done(harness.sent()[0]))
    assert harness.types()[-1] == end
    notes = harness.events("step.exit")[0].notes
    assert notes == (
        ["no_route"] if (on_no_match, end) == ("complete", "playbook.completed") else []
    )
    if end == "playbook.failed":
        error = harness.events("playbook.failed")[0].error
        assert error.kind == "no_route"
        setting = "on_no_match: fail" if on_no_match == "fail" else "no_next_is_error: true"
        assert f"add an arc without 'when', or remove '{setting}'" in error.message


def test_names_of_events_must_be_names() -> None:
    step = "{step: a, spec: {policy: {emit: {events: ['no name!']}}}, tool: {kind: noop}}"
    with pytest.raises(AssertionError, match="no name!"):
        program(f"{HEAD}workflow:\n  - {step}\n")


def test_every_limit_that_lint_knows_is_one_that_somebody_keeps() -> None:
    kept = {*limits.FIELD_BY_NAME, *limits.WORKER_NAMES}
    assert kept == set(LIMITS_MAX)
