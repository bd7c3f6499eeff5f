"""When failed units make a loop fail (language, 7.2)."""

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.loop import LoopStats
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook.model import Failure, Step
from noetl_replay.state import LoopState

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


def verdict(step: Step, loop: LoopState, stats: LoopStats) -> ErrorObject | None:
    """Return the loop's error, or None when its outcome is ok."""
    policy = policy_of(step)
    if any(slot.has_failed for slot in loop.slots):
        return _failed(step, loop, stats)
    if policy.mode == "best_effort":
        return None
    total, success, failed = units(loop)
    failed_max = _count(policy.max_failed or 0, total, step.step)
    success_min = _count(policy.min_success or 0, total, step.step)
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
    return _count(policy.max_failed or 0, total, step.step)


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


def _count(bound: int | str, total: int, step: str) -> int:
    if isinstance(bound, int):
        return bound
    text = bound.strip()
    try:
        if text.endswith("%"):
            return int(float(text[:-1]) * total // _PERCENT)
        return int(text)
    except ValueError as error:
        raise Refusal.of(
            "validation", step, f"failure policy: {bound!r} is neither a number nor a percentage"
        ) from error
