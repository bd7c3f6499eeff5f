"""The deployment's bounds, lowered by a playbook; nobody but the deployment may raise them."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from noetl_planner.domain import evaluation
from noetl_planner.domain.draft import Draft, Limits

MAX_STEPS = "max_steps"
MAX_ITEMS = "max_items"
MAX_SHARDS = "max_shards"
MAX_IN_FLIGHT = "max_in_flight"
MAX_CTX_BYTES = "max_ctx_bytes"

# Names of `executor.spec.policy.limits`, and which bound of the planner each lowers.
FIELD_BY_NAME = {
    MAX_STEPS: "activations_max",
    MAX_ITEMS: "items_max",
    MAX_SHARDS: "shards_max",
    MAX_IN_FLIGHT: "in_flight_max",
    MAX_CTX_BYTES: "ctx_bytes_max",
}
# The others are the worker's: they travel with its commands.
WORKER_NAMES = ("max_jumps", "attempts", "delay", "max_delay")


def lowered(limits: Limits, wanted: Mapping[str, int]) -> Limits:
    """Return the bounds of one playbook's executions."""
    lower = {
        field: min(getattr(limits, field), max(0, wanted[name]))
        for name, field in FIELD_BY_NAME.items()
        if name in wanted
    }
    return structs.replace(limits, **lower) if lower else limits


def in_flight(draft: Draft, rendered: Any, *, is_default: bool, step: str, field: str) -> int:
    """Admit how many units may run at once; raises `Refusal`.

    A default is lowered with its limit: nobody asked for so many.
    """
    most = draft.limits.in_flight_max
    wanted = min(rendered, most) if is_default else rendered
    return evaluation.number(
        wanted, step=step, field=field, least=1, most=most, limit=MAX_IN_FLIGHT
    )


def for_worker(wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the bounds that a pipeline keeps."""
    return {name: wanted[name] for name in WORKER_NAMES if name in wanted}
