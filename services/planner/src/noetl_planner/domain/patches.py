"""`set` blocks on the control plane: rendered against the state before, applied together."""

from collections.abc import Mapping
from typing import Any

from noetl_planner.domain import evaluation
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook import kept
from noetl_playbook.scope import Scope

_PREFIXES = ("ctx.", "step.")


def render_set(
    draft: Draft, block: Mapping[str, Any], names: Scope, ctx: Mapping[str, Any], *, step: str
) -> dict[str, Any]:
    """Return the top-level `ctx` keys that a block writes, with their new values."""
    rendered = {
        key: evaluation.render(value, names, step=step, field=f"set.{key}")
        for key, value in block.items()
    }
    patch: dict[str, Any] = {}
    for key, value in rendered.items():
        top, *rest = path = _target(key, step)
        if not rest:
            patch[top] = value
            continue
        before = patch[top] if top in patch else _before(draft, ctx.get(top, {}), key, step)
        patch[top] = _within(before, path, value, of=key, step=step)
    return patch


def _before(draft: Draft, value: Any, key: str, step: str) -> Any:
    """Return what a nested key is written into, loaded if it is kept by reference."""
    if not kept.is_kept(value):
        return value
    with evaluation.bounded(draft, step=step, field=f"set.{key}"):
        return kept.plain(value, evaluation.find(draft))


def _target(key: str, step: str) -> list[str]:
    if key.startswith("iter."):
        raise _refused(key, step, "'iter' exists only inside a pipeline: use 'ctx'")
    prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), "")
    return key.removeprefix(prefix).split(".")


def _within(base: Any, path: list[str], value: Any, *, of: str, step: str) -> dict[str, Any]:
    """Return a mapping with a value written below it; raises `Refusal` for what is none."""
    name, key, *_ = path
    if not isinstance(base, Mapping):
        raise _refused(
            of, step, f"{name!r} is not a mapping, it has no keys: set {name!r} as a whole"
        )
    below = path[1:]
    if below[1:]:
        value = _within(base.get(key, {}), below, value, of=of, step=step)
    return {**base, key: value}


def _refused(key: str, step: str, why: str) -> Refusal:
    return Refusal.of("validation", step, f"step {step!r}, field 'set.{key}': {why}")
