"""When failed units make a loop fail (language, 7.2)."""

import math
from fractions import Fraction

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.loop import LoopStats
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook import coercion
from noetl_playbook.model import Failure, Step
from noetl_replay.state import LoopState

_FIELDS = ("max_failed", "min_success")
_PERCENT = 100
FAILED_FAST = "another unit of the loop failed"


def policy_of(step: Step) -> Failure:
    """Return the policy that governs a loop: its own, the step's, or the mode's default."""
    loop = step.loop
    own = loop.spec.policy.failure if loop is not None else None
    if own is not None:
        return own
    if step.spec.policy.failure is not None:
        return step.spec.policy.failure
    return Failure(mode="best_effort" if loop is not None and loop.cursor is not None else "drain")


def check(step: Step) -> None:
    """Refuse bounds that are none before a unit runs under them; raises `Refusal`."""
    if step.loop is None and not any(task.stream for task in step.tool):
        return
    policy = policy_of(step)
    for field in _FIELDS:
        _count(policy, field, 0, step.step)


def verdict(step: Step, loop: LoopState, stats: LoopStats) -> ErrorObject | None:
    """Return the loop's error, or None when its outcome is ok."""
    policy = policy_of(step)
    if any(slot.has_failed for slot in loop.slots):
        return _failed(step, loop, stats)
    if policy.mode == "best_effort":
        return None
    total, success, failed = units(loop)
    failed_max = _count(policy, "max_failed", total, step.step)
    success_min = _count(policy, "min_success", total, step.step)
    if failed <= failed_max and success >= success_min:
        return None
    return _failed(step, loop, stats)


def stops_early(step: Step, loop: LoopState) -> bool:
    """Tell whether no further unit may start."""
    total, _, failed = units(loop)
    bound = failed_max(step, total)
    return bound is not None and failed > bound


def failed_max(step: Step, total: int) -> int | None:
    """Return how many failures a loop of so many units bears before it stops; None: any number."""
    policy = policy_of(step)
    if policy.mode != "fail_fast":
        return None
    return _count(policy, "max_failed", total, step.step)


def units(loop: LoopState) -> tuple[int, int, int]:
    """Return how many units a loop has, and how many succeeded and failed: shards of a fan-out."""
    if loop.mode == "fanout" and loop.cut is not None:
        return loop.cut.units_all, loop.units_ok, loop.units_failed
    return loop.total, loop.success, loop.failed


def _failed(step: Step, loop: LoopState, stats: LoopStats) -> ErrorObject:
    first = loop.first_error
    message = f"{stats.failed} of {stats.total} units of loop {step.step!r} failed"
    if first is not None:
        message += f"; the first: {first.message}"
    return ErrorObject(
        kind="loop_items_failed",
        code="LOOP_ITEMS_FAILED",
        step=step.step,
        message=message,
        details={
            "first_error": codec.builtins(first),
            "stats": codec.builtins(stats),
        },
    )


def _count(policy: Failure, field: str, total: int, step: str) -> int:
    """Read how many units a bound means; a percentage is rounded down."""
    bound = getattr(policy, field)
    if bound is None or isinstance(bound, int):
        return max(0, bound or 0)
    text = bound.strip()
    is_share = text.endswith("%")
    found = coercion.number(text.removesuffix("%"))
    if found is None or not math.isfinite(found) or not (is_share or isinstance(found, int)):
        raise Refusal.of(
            "validation",
            step,
            f"step {step!r}, field 'policy.failure.{field}': {bound!r:.80} is neither a whole "
            "number nor a percentage: write one, as 5 or 5%",
        )
    # As it is written: a binary fraction near it may come to one unit less.
    return max(0, int(Fraction(str(found)) * total // _PERCENT if is_share else found))
