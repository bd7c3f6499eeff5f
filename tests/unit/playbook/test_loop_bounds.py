"""What is out of range is told, and what runs all the same is the nearest number within it."""

import pytest
from tests.support.playbooks import a_step, codes, judged

from noetl_playbook.model.playbook import CursorOptions, Failure
from noetl_playbook.source.problems import Level

NOOP = "tool: {kind: noop}"


def failing(failure: str) -> str:
    spec = f"{{policy: {{failure: {{mode: drain, {failure}}}}}}}"
    return f"- {{step: a, loop: {{in: [1], iterator: i, spec: {spec}}}, {NOOP}}}"


@pytest.mark.parametrize(
    ("written", "max_failed", "min_success"),
    [
        ("max_failed: -1", 0, None),
        ("max_failed: '-5%', min_success: '150%'", "0%", "100%"),
        ("min_success: -7", None, 0),
    ],
)
def test_bounds_of_failures_are_clamped(
    written: str, max_failed: int | str | None, min_success: int | str | None
) -> None:
    workflow = failing(written)
    expected = Failure(mode="drain", max_failed=max_failed, min_success=min_success)
    loop = a_step(workflow).loop
    assert loop is not None
    assert loop.spec.policy.failure == expected
    assert set(codes(judged(workflow))) == {"E502"}
    assert judged(workflow, level=Level.STRICT).playbook is None


@pytest.mark.parametrize("written", ["max_failed: 0", "max_failed: '5%'", "min_success: '100%'"])
def test_bounds_of_failures_that_are_within_stay(written: str) -> None:
    assert judged(failing(written), level=Level.STRICT).problems == ()


def test_a_loop_takes_the_clamped_policy_of_its_step() -> None:
    workflow = (
        "- {step: a, spec: {policy: {failure: {mode: fail_fast, max_failed: -2}}},"
        f" loop: {{in: [1], iterator: i, spec: {{max_attempts: 0}}}}, {NOOP}}}"
    )
    step = a_step(workflow)
    assert step.loop is not None
    assert step.spec.policy.failure == Failure(mode="fail_fast", max_failed=0)
    assert step.loop.spec.policy.failure == step.spec.policy.failure
    assert step.loop.spec.max_attempts == 1


def test_options_of_a_cursor_are_clamped() -> None:
    workflow = (
        "- {step: a, loop: {iterator: r, cursor: {kind: postgres, auth: d, claim: SELECT 1,"
        f" options: {{poll_interval_ms: -5, statement_timeout_s: 0}}}}}}, {NOOP}}}"
    )
    loop = a_step(workflow).loop
    assert loop is not None
    assert loop.cursor is not None
    assert loop.cursor.options == CursorOptions(poll_interval_ms=0, statement_timeout_s=1)
