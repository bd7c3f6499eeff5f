from typing import Any

import pytest
from msgspec import Struct

from noetl_worker.domain.retry_rules import (
    RuleChoice,
    choose_rule,
    compute_jitter_noise,
    compute_wait_s,
)


class A(Struct, frozen=True):
    is_else: bool = False
    is_retry: bool = False


EXACT: dict[str, Any] = {"jitter": "none", "noise": 0.0}
WHEN, RETRY, ELSE, ELSE_RETRY = A(), A(is_retry=True), A(is_else=True), A(True, True)  # noqa: FBT003 - an else that retries


@pytest.mark.parametrize(
    ("rules", "true", "attempt", "expected"),
    [
        ([], [], 1, RuleChoice(index=None)),
        ([WHEN, WHEN], [1], 1, RuleChoice(index=1)),
        ([WHEN, ELSE], [], 1, RuleChoice(index=1)),
        ([ELSE, WHEN], [1], 1, RuleChoice(index=0)),
        ([RETRY, ELSE], [0], 2, RuleChoice(index=0)),
        ([RETRY, ELSE], [0], 3, RuleChoice(index=None, is_exhausted=True)),
        ([RETRY, WHEN, ELSE], [0, 1], 3, RuleChoice(index=1, is_exhausted=True)),
        ([RETRY, WHEN, ELSE], [0], 3, RuleChoice(index=None, is_exhausted=True)),
        ([ELSE_RETRY], [], 2, RuleChoice(index=0)),
        ([ELSE_RETRY], [], 3, RuleChoice(index=None, is_exhausted=True)),
    ],
)
def test_the_first_rule_that_matches_decides_and_an_exhausted_retry_skips_the_else(
    rules: list[A], true: list[int], attempt: int, expected: RuleChoice
) -> None:
    rule = choose_rule(
        rules, holds=lambda index: index in true, attempts=lambda _: 3, attempt=attempt
    )
    assert rule == expected


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"backoff": None}, [0.0, 0.0, 0.0]),
        ({"backoff": "none", "delay_s": 2.0}, [2.0, 2.0, 2.0]),
        ({"backoff": "fixed"}, [1.0, 1.0, 1.0]),
        ({"backoff": "linear", "delay_s": 2.0}, [2.0, 4.0, 6.0]),
        ({"backoff": "exponential", "delay_s": 0.5}, [0.5, 1.0, 2.0]),
        ({"backoff": "exponential", "delay_s": 0.5, "max_delay_s": 1.0}, [0.5, 1.0, 1.0]),
        ({"backoff": "fixed", "retry_after_s": 7.0}, [7.0, 7.0, 7.0]),
    ],
)
def test_waits_grow_as_the_backoff_says(how: dict[str, Any], expected: list[float]) -> None:
    base = {"delay_s": None, "max_delay_s": 300.0, "retry_after_s": None, **EXACT}
    wait_s = [compute_wait_s(**{**base, **how}, tries=tries) for tries in (1, 2, 3)]
    assert wait_s == expected


def test_many_tries_do_not_overflow() -> None:
    waited = compute_wait_s(
        "exponential", delay_s=1.0, tries=1_000, max_delay_s=300.0, retry_after_s=None, **EXACT
    )
    assert waited == 300.0


@pytest.mark.parametrize(
    ("backoff", "jitter", "expected"),
    [
        *(("exponential", None, 4.0), ("linear", None, 3.0), ("exponential", "none", 16.0)),
        *(("fixed", None, 4.0), ("none", None, 4.0), (None, None, 4.0)),
        *(("fixed", "full", 1.0), (None, "full", 1.0)),
    ],
)
def test_waits_that_grow_have_full_jitter(
    backoff: str | None, jitter: str | None, expected: float
) -> None:
    waited = compute_wait_s(
        backoff,
        delay_s=4.0,
        tries=3,
        max_delay_s=300.0,
        retry_after_s=None,
        jitter=jitter,
        noise=0.25,
    )
    assert waited == expected


def test_jitter_spreads_below_the_longest_wait_and_not_below_what_a_server_asks_for() -> None:
    base: dict[str, Any] = {"delay_s": 1.0, "tries": 20, "max_delay_s": 10.0, "jitter": None}
    assert compute_wait_s("exponential", **base, retry_after_s=None, noise=0.5) == 5.0
    assert compute_wait_s("exponential", **base, retry_after_s=7.0, noise=0.5) == 7.0


def test_an_attempt_always_has_the_same_noise_and_others_are_spread() -> None:
    assert compute_jitter_noise("e", "step", 1) == compute_jitter_noise("e", "step", 1)
    found = [compute_jitter_noise("e", "step", row) for row in range(1_000)]
    assert all(0.0 <= noise < 1.0 for noise in found)
    assert len(set(found)) == len(found)
    shares = [sum(low <= noise < low + 0.25 for noise in found) for low in (0, 0.25, 0.5, 0.75)]
    assert all(200 < share < 300 for share in shares)
