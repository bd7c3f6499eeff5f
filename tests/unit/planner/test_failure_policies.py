"""Bounds of a failure policy: counts, shares of the whole, and what is neither."""

import pytest
from tests.support.planning import PlannerHarness, done
from tests.support.registered import registered
from tests.support.slices import gathered, item_failed

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
LOOP = f"""{HEAD}
workload: {{n: 3}}
workflow:
  - step: each
    loop:
      in: "{{{{ workload.n }}}}"
      iterator: i
      spec: {{mode: parallel, max_in_flight: 10000, policy: {{failure: {{mode: drain}}}}}}
    tool: {{kind: noop}}
"""
STREAM = f"""{HEAD}
workflow:
  - step: each
    spec: {{policy: {{failure: {{mode: drain}}}}}}
    tool: {{kind: python, code: "yield 1", stream: {{}}}}
    next: {{arcs: [{{step: u, on: call.partial}}]}}
  - {{step: u, tool: {{kind: noop}}}}
"""
FAILURE = "workflow/0/loop/spec/policy/failure"
DONE, FAILED = "loop.done", "loop.failed"
NO_BOUNDS = ["{{ workload.n }}", "1e400%", "x%", "%", "5.5", "nan%", ""]


@pytest.mark.parametrize("field", ["max_failed", "min_success"])
@pytest.mark.parametrize("mode", ["drain", "fail_fast"])
@pytest.mark.parametrize("bound", NO_BOUNDS)
def test_a_bound_that_is_none_fails_the_loop_before_it_begins(
    bound: str, mode: str, field: str
) -> None:
    harness = PlannerHarness(
        registered(LOOP, (f"{FAILURE}/{field}", bound), (f"{FAILURE}/mode", mode))
    )
    harness.start()
    (failed,) = harness.events("playbook.failed")
    assert (failed.error.kind, failed.step) == ("validation", "each")
    assert f"field 'policy.failure.{field}'" in failed.error.message
    assert "write one, as 5 or 5%" in failed.error.message
    assert "loop.started" not in harness.types()


def test_a_bound_that_is_none_fails_a_stream_before_it_begins() -> None:
    harness = PlannerHarness(
        registered(STREAM, ("workflow/0/spec/policy/failure/max_failed", "{{ 1 }}"))
    )
    harness.start()
    assert harness.events("playbook.failed")[0].error.kind == "validation"
    assert "command.issued" not in harness.types()


def test_a_loop_that_runs_under_such_a_bound_ends_its_execution() -> None:
    """As one does that an older planner has begun."""
    harness = PlannerHarness(LOOP)
    harness.start()
    harness.program = registered(LOOP, (f"{FAILURE}/max_failed", "{{ 1 }}"))
    harness.tell(*(done(item) for item in harness.sent()))
    harness.tell(gathered(harness))
    (failed,) = harness.events("playbook.failed")
    assert (failed.error.kind, failed.step) == ("validation", "each")
    assert harness.state.is_terminal()


@pytest.mark.parametrize(
    ("bound", "failing", "end"),
    [
        *((2, 2, DONE), (2, 3, FAILED), ("2", 2, DONE), (-1, 0, DONE)),
        *(("5%", 5, DONE), ("5%", 6, FAILED), (" 5 % ", 5, DONE), ("200%", 100, DONE)),
        *(("2.9%", 2, DONE), ("2.9%", 3, FAILED), ("29%", 29, DONE), ("0.1e2%", 10, DONE)),
    ],
)
def test_a_share_is_of_all_units_and_rounded_down(bound: int | str, failing: int, end: str) -> None:
    harness = PlannerHarness(registered(LOOP, (f"{FAILURE}/max_failed", bound)))
    harness.start(n=100)
    sent = harness.sent()
    harness.tell(*map(item_failed, sent[:failing]), *map(done, sent[failing:]))
    harness.tell(gathered(harness))
    assert harness.types()[-3] == end


def test_a_share_is_of_what_is_written_and_not_of_a_fraction_near_it() -> None:
    """Of 375 units 18.4 per cent are 69, and a binary fraction of them is less."""
    harness = PlannerHarness(registered(LOOP, (f"{FAILURE}/max_failed", "18.4%")))
    harness.start(n=375)
    sent = harness.sent()
    harness.tell(*map(item_failed, sent[:69]), *map(done, sent[69:]))
    harness.tell(gathered(harness))
    assert harness.types()[-3] == DONE
