"""Which rule decides after an attempt, and how long to wait before the next one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from noetl_contracts.parking import WAIT_S_MAX

ATTEMPTS_MAX = 1_000
_BACKED_OFF_DELAY_S = 1.0
_EXPONENT_MAX = 32


class RuleShape(Protocol):
    """What the choice needs to know of a rule."""

    @property
    def is_else(self) -> bool:
        """Tell whether the rule matches always."""

    @property
    def is_retry(self) -> bool:
        """Tell whether the rule runs the task again."""


class Choice(Struct, frozen=True, kw_only=True):
    """The rule that decides, if any; `is_exhausted` when a retry used up its attempts."""

    index: int | None
    is_exhausted: bool = False


def choose(
    rules: Sequence[RuleShape],
    *,
    holds: Callable[[int], bool],
    attempts: Callable[[int], int],
    attempt: int,
) -> Choice:
    """Return the first rule that matches; after an exhausted retry no `else` does."""
    is_exhausted = False
    for index, rule in enumerate(rules):
        if rule.is_else and is_exhausted:
            continue
        if not rule.is_else and not holds(index):
            continue
        if rule.is_retry and attempt >= attempts(index):
            is_exhausted = True
            continue
        return Choice(index=index, is_exhausted=is_exhausted)
    return Choice(index=None, is_exhausted=is_exhausted)


def wait_s(
    backoff: str | None,
    *,
    delay_s: float | None,
    tries: int,
    max_delay_s: float,
    retry_after_s: float | None,
) -> float:
    """Return how long to wait before try `tries` + 1."""
    base_s = delay_s if delay_s is not None else _BACKED_OFF_DELAY_S
    match backoff:
        case "fixed":
            wanted_s = base_s
        case "linear":
            wanted_s = base_s * tries
        case "exponential":
            wanted_s = base_s * 2.0 ** min(tries - 1, _EXPONENT_MAX)
        case _:
            wanted_s = delay_s if delay_s is not None else 0.0
    return min(max(min(wanted_s, max_delay_s), retry_after_s or 0.0), WAIT_S_MAX)
