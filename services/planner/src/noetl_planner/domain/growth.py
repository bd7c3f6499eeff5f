"""How `ctx` and inputs are kept: what is large goes by reference, and all together is bounded."""

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl_contracts import codec, locators
from noetl_contracts.errors import ErrorObject, LocatorError
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, PayloadRef
from noetl_contracts.plain import DEPTH_MAX, is_deeper
from noetl_planner.domain.draft import Draft
from noetl_playbook import kept

WORKLOAD_BYTES_MAX = 4 * 1024 * 1024


def too_large(step: str, message: str) -> ErrorObject:
    """Make the error of a value that exceeds what there is room for."""
    return ErrorObject(kind="payload_too_large", code="TOO_LARGE", step=step, message=message)


def carried(
    draft: Draft, patch: Mapping[str, Any], *, step: str
) -> tuple[dict[str, Any], ErrorObject | None]:
    """Return a patch of `ctx` as events carry it, or the error of writes that cannot be.

    Large values become payloads of the draft, and markers stand for them.
    """
    if not patch:
        return {}, None
    forged = [name for name, value in patch.items() if _is_forged(draft, value)]
    if forged:
        return {}, ErrorObject(
            kind="validation",
            code="VALIDATION",
            step=step,
            message=f"step {step!r}: ctx.{forged[0]} has the form of the engine's own references",
        )
    values = dict(patch)
    for name in kept.too_large(values, inline_max=EVENT_INLINE_BYTES_MAX):
        if not kept.is_kept(values[name]):
            values[name] = kept.marker(draft.keep(values[name]), values[name])
    size = len(codec.encode({**draft.state.ctx, **values}))
    if size <= draft.limits.ctx_bytes_max:
        return values, None
    return {}, too_large(
        step,
        f"step {step!r}: writing {', '.join(f'ctx.{key}' for key in patch)} would make ctx "
        f"{size} bytes long, {draft.limits.ctx_bytes_max} is the limit: leave large values in the "
        "step's result and name them by the step",
    )


def kept_workload(
    draft: Draft, workload: dict[str, Any]
) -> tuple[dict[str, Any], PayloadRef | None]:
    """Return merged inputs as the first event carries them: inline, or by reference."""
    is_small = len(codec.encode(workload)) <= EVENT_INLINE_BYTES_MAX
    if is_small and not is_deeper(workload, DEPTH_MAX):
        return workload, None
    return {}, draft.keep(workload)


def workload_error(workload: Mapping[str, Any], *, step: str) -> ErrorObject | None:
    """Return the error of merged inputs that are too large, or None."""
    size = len(codec.encode(workload))
    if size <= WORKLOAD_BYTES_MAX:
        return None
    return too_large(
        step,
        f"the merged workload takes {size} bytes, {WORKLOAD_BYTES_MAX} is the limit: "
        "keep bulk data in a table or an object, and hand its name over",
    )


def _is_forged(draft: Draft, value: Any) -> bool:
    """Tell whether a value looks like a reference and is none of this tenant's."""
    if not kept.is_kept(value):
        return False
    state = draft.state
    try:
        found = kept.reference_of(value)
        own = locators.payload(state.tenant_id, state.organization_id, found.sha256)
    except (msgspec.ValidationError, LocatorError, KeyError, TypeError):
        return True
    return found.uri != own
