"""The numbers of a frame policy: under either of their names, written or given by a template."""

from typing import Any

import pytest
from tests.support.planning import PlannerHarness

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {ms: 2500, text: "2500", size: 2MiB, yes: "on"}
workflow:
  - step: bulk
    loop: {in: [1, 2], iterator: i, spec: {mode: chunked, frame: {FRAME}}}
    tool: {kind: noop}
"""


def begun(frame: str) -> PlannerHarness:
    harness = PlannerHarness(PLAYBOOK.replace("{FRAME}", frame))
    harness.start()
    return harness


@pytest.mark.parametrize(
    ("frame", "field", "value"),
    [
        ("{duration_ms: 2500}", "max_seconds", 2.5),
        ("{duration_ms: '2500'}", "max_seconds", 2.5),
        ("{duration_ms: 45s}", "max_seconds", 45),
        ("{duration_ms: '{{ workload.ms }}'}", "max_seconds", 2.5),
        ("{duration_ms: ' {{ workload.text }} '}", "max_seconds", 2.5),
        ("{duration_ms: '{{ workload.ms / 5 }}'}", "max_seconds", 0.5),
        ("{duration_ms: '{{ 1 }}{{ 500 }}'}", "max_seconds", 1.5),
        ("{max_seconds: '{{ workload.ms }}'}", "max_seconds", 2500),
        ("{max_seconds: '{{ workload.ms }}ms'}", "max_seconds", 2.5),
        ("{memory_bytes: '{{ workload.size }}'}", "max_bytes", 2 * 1024 * 1024),
        ("{transaction: '{{ workload.yes }}'}", "transaction", True),
    ],
)
def test_a_stage_has_the_number_in_its_own_unit(frame: str, field: str, value: Any) -> None:
    (stage,) = begun(frame).state.stages.values()
    assert stage.frame_policy[field] == value


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        ("{duration_ms: '{{ \"soon\" }}'}", "max_seconds"),
        ("{duration_ms: '{{ 0 }}'}", "max_seconds"),
        ("{max_bytes: '{{ \"2 shoes\" }}'}", "max_bytes"),
        ("{transaction: '{{ \"perhaps\" }}'}", "transaction"),
        ("{row_concurrency: '{{ \"inf\" | float }}'}", "row_concurrency"),
    ],
)
def test_what_is_no_such_number_fails_the_step_and_names_the_field(frame: str, field: str) -> None:
    error = begun(frame).events("playbook.failed")[0].error
    assert (error.kind, error.step) == ("validation", "bulk")
    assert f"loop.spec.frame.{field}: " in error.message
