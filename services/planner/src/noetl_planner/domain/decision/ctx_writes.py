"""How `ctx` and inputs are kept: what is large goes by reference, and all together is bounded."""

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl_contracts import codec, locators
from noetl_contracts.errors import ErrorObject, LocatorError
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, PayloadRef
from noetl_contracts.requests import facts
from noetl_planner.domain.decision import evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.views import ctx_references, output_view
from noetl_replay.state import CommandState, StepState

WORKLOAD_BYTES_MAX = 4 * 1024 * 1024


def build_ctx_too_large_error(step: str, message: str) -> ErrorObject:
    """Make the error of a value that exceeds what there is room for."""
    return ErrorObject(kind="payload_too_large", code="TOO_LARGE", step=step, message=message)


def store_ctx_patch(
    draft: DecisionDraft, patch: Mapping[str, Any], *, step: str
) -> tuple[dict[str, Any], ErrorObject | None]:
    """Return a patch of `ctx` as events carry it, or the error of writes that cannot be.

    Large values become payloads of the draft, and markers stand for them.
    """
    if not patch:
        return {}, None
    forged = [name for name, value in patch.items() if _is_forged_reference(draft, value)]
    if forged:
        return {}, ErrorObject(
            kind="validation",
            code="VALIDATION",
            step=step,
            message=f"step {step!r}: ctx.{forged[0]} has the form of the engine's own references",
        )
    values = dict(patch)
    for name in ctx_references.choose_large_values(values, inline_max=EVENT_INLINE_BYTES_MAX):
        if not ctx_references.is_marker(values[name]):
            values[name] = ctx_references.build_marker(
                draft.store_value(values[name]), values[name]
            )
    size = len(codec.encode_json({**draft.state.ctx, **values}))
    if size <= draft.limits.ctx_bytes_max:
        return values, None
    return {}, build_ctx_too_large_error(
        step,
        f"step {step!r}: writing {', '.join(f'ctx.{key}' for key in patch)} would make ctx "
        f"{size} bytes long, {draft.limits.ctx_bytes_max} is the limit: leave large values in the "
        "step's result and name them by the step",
    )


def store_workload(
    draft: DecisionDraft, workload: dict[str, Any]
) -> tuple[dict[str, Any], PayloadRef | None]:
    """Return merged inputs as the first event carries them: inline, or by reference."""
    is_small = len(codec.encode_json(workload)) <= EVENT_INLINE_BYTES_MAX
    if is_small and not is_nested_deeper(workload, DEPTH_MAX):
        return workload, None
    return {}, draft.store_value(workload)


def find_workload_error(workload: Mapping[str, Any], *, step: str) -> ErrorObject | None:
    """Return the error of merged inputs that are too large, or None."""
    size = len(codec.encode_json(workload))
    if size <= WORKLOAD_BYTES_MAX:
        return None
    return build_ctx_too_large_error(
        step,
        f"the merged workload takes {size} bytes, {WORKLOAD_BYTES_MAX} is the limit: "
        "keep bulk data in a table or an object, and hand its name over",
    )


def _is_forged_reference(draft: DecisionDraft, value: Any) -> bool:
    """Tell whether a value looks like a reference and is none of this tenant's."""
    if not ctx_references.is_marker(value):
        return False
    state = draft.state
    try:
        payload_ref = ctx_references.get_marker_reference(value)
        payload_locator = locators.build_payload_locator(
            state.tenant_id, state.organization_id, payload_ref.sha256
        )
    except (msgspec.ValidationError, LocatorError, KeyError, TypeError):
        return True
    return payload_ref.uri != payload_locator


_PREFIXES = ("ctx.", "step.")


def render_set_block(
    draft: DecisionDraft,
    block: Mapping[str, Any],
    names: TemplateScope,
    ctx: Mapping[str, Any],
    *,
    step: str,
) -> dict[str, Any]:
    """Return the top-level `ctx` keys that a block writes, with their new values."""
    rendered = {
        key: evaluation.render_value(value, names, step=step, field=f"set.{key}")
        for key, value in block.items()
    }
    patch: dict[str, Any] = {}
    for key, value in rendered.items():
        top, *inner_keys = path = _parse_target_path(key, step)
        if not inner_keys:
            patch[top] = value
            continue
        before = (
            patch[top] if top in patch else _load_previous_value(draft, ctx.get(top, {}), key, step)
        )
        patch[top] = _set_nested_value(before, path, value, of=key, step=step)
    return patch


def _load_previous_value(draft: DecisionDraft, value: Any, key: str, step: str) -> Any:
    """Return what a nested key is written into, loaded if it is kept by reference."""
    if not ctx_references.is_marker(value):
        return value
    with evaluation.bounded_reads(draft, step=step, field=f"set.{key}"):
        return ctx_references.load_plain(value, evaluation.make_value_finder(draft))


def _parse_target_path(key: str, step: str) -> list[str]:
    if key.startswith("iter."):
        raise _set_refusal(key, step, "'iter' exists only inside a pipeline: use 'ctx'")
    prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), "")
    return key.removeprefix(prefix).split(".")


def _set_nested_value(
    base: Any, path: list[str], value: Any, *, of: str, step: str
) -> dict[str, Any]:
    """Return a mapping with a value written below it; raises `Refusal` for what is none."""
    name, key, *_ = path
    if not isinstance(base, Mapping):
        raise _set_refusal(
            of, step, f"{name!r} is not a mapping, it has no keys: set {name!r} as a whole"
        )
    below = path[1:]
    if below[1:]:
        value = _set_nested_value(base.get(key, {}), below, value, of=of, step=step)
    return {**base, key: value}


def _set_refusal(key: str, step: str, why: str) -> Refusal:
    return Refusal.for_step("validation", step, f"step {step!r}, field 'set.{key}': {why}")


def render_ctx_writes(
    draft: DecisionDraft, command_state: CommandState, fact: facts.CommandCompleted
) -> dict[str, Any]:
    """Return what a command writes to `ctx`; raises `Refusal` for a template that fails."""
    run = draft.state.runs.get(command_state.run_id)
    feed = run.feed if run is not None else None
    block = draft.program.steps[command_state.step].set
    if feed is None or command_state.item_index is None or not block:
        return fact.patch
    result = StepState(step=command_state.step, run_id=command_state.run_id, result=fact.result)
    chunk = feed.open[command_state.item_index]
    bound = {
        **output_view.build_chunk_names(chunk, evaluation.make_value_finder(draft)),
        "output": evaluation.view_output(draft, result),
        command_state.step: evaluation.view_result(draft, result),
    }
    names = evaluation.build_scope(draft, fact.patch, **bound)
    before = ctx_references.overlay_ctx(draft.state.ctx, fact.patch)
    return {**fact.patch, **render_set_block(draft, block, names, before, step=command_state.step)}
