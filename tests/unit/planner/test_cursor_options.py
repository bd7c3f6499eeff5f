"""How often the slots of a cursor ask again: a number, or what a template gives when it opens."""

from datetime import timedelta

import pytest
from tests.support.planning import NOON, PlannerHarness, closed, dry, opened
from tests.support.registered import registered

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {ms: 5000}
workflow:
  - step: drain
    loop:
      cursor: {kind: postgres, auth: db, claim: "SELECT 1"}
      iterator: row
      spec: {max_in_flight: 2, policy: {exec: distributed}}
    tool: {kind: noop}
"""
INTERVAL = "workflow/0/loop/cursor/options/poll_interval_ms"


def looked_at(harness: PlannerHarness) -> timedelta | None:
    """Let one slot find nothing while the other commits; say when it is asked again."""
    harness.start()
    item, two = harness.sent()
    harness.tell(dry(item, frames=0, next_index=0), opened(two, 0))
    harness.tell(closed(two, 0), opened(two, 1))
    assert harness.last is not None
    return None if harness.last.wake_at is None else harness.last.wake_at - NOON


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        *((700, 0.7), ("{{ workload.ms }}", 5), ("{{ workload.ms / 4 }}", 1.25)),
        ("{{ '90' }}", 0.09),
    ],
)
def test_an_idle_slot_is_asked_after_the_interval_that_is_written(
    written: int | str, seconds: float
) -> None:
    assert looked_at(PlannerHarness(registered(PLAYBOOK, (INTERVAL, written)))) == timedelta(
        seconds=seconds
    )


def test_without_an_interval_it_is_a_fifth_of_a_second() -> None:
    assert looked_at(PlannerHarness(PLAYBOOK)) == timedelta(milliseconds=200)


def test_the_interval_is_what_the_template_gave_when_the_loop_opened() -> None:
    options = 'options: {poll_interval_ms: "{{ workload.ms }}"}'
    harness = PlannerHarness(PLAYBOOK.replace('"SELECT 1"}', f'"SELECT 1", {options}}}'))
    harness.start()
    anew = PlannerHarness(harness.program)
    anew.replay(harness.history)
    assert anew.state.stages == harness.state.stages
    (stage,) = anew.state.stages.values()
    assert stage.frame_policy["poll_interval_ms"] == 5000


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        *(("{{ 'soon' }}", "validation"), ("{{ -1 }}", "validation"), ("{{ 1e12 }}", "validation")),
        *(("{{ none }}", "validation"), ("{{ nope }}", "template"), (-1, "validation")),
        *(("{{ 'inf' | float }}", "validation"), ("{{ true }}", "validation")),
    ],
)
def test_an_interval_that_is_none_fails_the_step_before_its_stage_opens(
    written: float | str, kind: str
) -> None:
    harness = PlannerHarness(registered(PLAYBOOK, (INTERVAL, written)))
    harness.start()
    error = harness.events("playbook.failed")[0].error
    assert (error.kind, error.step) == (kind, "drain")
    assert "field 'loop.cursor.options.poll_interval_ms'" in error.message
    assert "stage.opened" not in harness.types()
