"""Which rule decides after an attempt, and how long to wait before the next one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.waits import WAIT_S_MAX

ATTEMPTS_MAX = 1_000
_BACKED_OFF_DELAY_S = 1.0
_EXPONENT_MAX = 32
_GROWING = frozenset({"linear", "exponential"})
# Hexadecimal; as many as a float holds exactly.
_NOISE_DIGITS = 12


class RuleShape(Protocol):
    """What the choice needs to know of a rule."""

    @property
    def is_else(self) -> bool:
        """Tell whether the rule matches always."""

    @property
    def is_retry(self) -> bool:
        """Tell whether the rule runs the task again."""


class RuleChoice(Struct, frozen=True, kw_only=True):
    """The rule that decides, if any; `is_exhausted` when a retry used up its attempts."""

    index: int | None
    is_exhausted: bool = False


def choose_rule(
    rules: Sequence[RuleShape],
    *,
    holds: Callable[[int], bool],
    attempts: Callable[[int], int],
    attempt: int,
) -> RuleChoice:
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
        return RuleChoice(index=index, is_exhausted=is_exhausted)
    return RuleChoice(index=None, is_exhausted=is_exhausted)


def compute_jitter_noise(*identity: object) -> float:
    """Return a number from 0 up to 1 that an attempt always has, and another one has not.

    A replay and a resumed pipeline wait as the attempt did, and many that fail together spread.
    """
    digits = codec.digest_hex(codec.encode_canonical([*identity]))[-_NOISE_DIGITS:]
    return int(digits, 16) / 16.0**_NOISE_DIGITS


def compute_wait_s(
    backoff: str | None,
    *,
    delay_s: float | None,
    tries: int,
    max_delay_s: float,
    retry_after_s: float | None,
    jitter: str | None,
    noise: float,
) -> float:
    """Return how long to wait before try `tries` + 1.

    With full jitter it is anything from 0 up to what the backoff says, by `noise`. Waits that
    grow have it unless the rule says otherwise.
    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
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
    bounded_s = min(wanted_s, max_delay_s)
    if jitter == "full" or (jitter is None and backoff in _GROWING):
        bounded_s *= noise
    return min(max(bounded_s, retry_after_s or 0.0), WAIT_S_MAX)
