"""Loops that run as one command in one worker (`exec: local`): what the worker is told of them.

The ledger knows such a loop as one frame over all its items. Its units are cut by the worker, by
the rules that the planner would use, and come back counted.
"""

from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.slicing import Cut, Inside
from noetl_planner.domain import failure_policy
from noetl_playbook.model import Frame, Step

_WITHOUT_END_S = 366 * 86_400


def of_items(step: Step, policy: dict[str, Any], total: int, in_flight: int) -> dict[str, Any]:
    """Make the policy of a loop whose items are rows of one frame, so many of them at once."""
    found = {
        **policy,
        "max_rows": max(1, total),
        "max_seconds": _WITHOUT_END_S,
        "row_concurrency": in_flight,
        "max_attempts": _attempts_max(step),
    }
    return _bounded(found, step, total)


def of_units(
    step: Step, policy: dict[str, Any], cut: Cut, *, in_flight: int, attempts_max: int
) -> tuple[dict[str, Any], Cut]:
    """Make the policy and the cut of a loop whose chunks or shards one worker runs."""
    assert step.loop is not None, "only loop steps come here"
    is_shard = step.loop.spec.mode == "fanout"
    inside = Inside(
        in_flight=in_flight,
        size=cut.size,
        units=cut.units,
        attempts_max=attempts_max if is_shard else 1,
        is_shard=is_shard,
    )
    found = {
        **policy,
        "max_attempts": _attempts_max(step),
        "inside": codec.builtins(inside),
    }
    counts_units = is_shard or policy.get("process") == "frame"
    bounded = _bounded(found, step, cut.units if counts_units else cut.items)
    return bounded, structs.replace(cut, units=min(1, cut.units), inside=cut.units)


def of_claims(policy: dict[str, Any], in_flight: int) -> dict[str, Any]:
    """Make the policy of a cursor with one slot, which claims for so many frames at once."""
    size = int(policy.get("max_rows", Frame().max_rows))
    inside = Inside(in_flight=in_flight, size=size)
    return {**policy, "max_rows": size * in_flight, "inside": codec.builtins(inside)}


def is_local(step: Step) -> bool:
    """Tell whether a step's loop is to run in one worker."""
    return step.loop is not None and step.loop.spec.policy.exec == "local"


def _attempts_max(step: Step) -> int:
    assert step.loop is not None, "only loop steps come here"
    return step.loop.spec.max_attempts


def _bounded(policy: dict[str, Any], step: Step, total: int) -> dict[str, Any]:
    bound = failure_policy.failed_max(step, total)
    return policy if bound is None else {**policy, "failed_max": bound}
