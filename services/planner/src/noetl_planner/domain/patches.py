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
        path = _target(key, step)
        before = kept.plain(ctx.get(path[0], {}), evaluation.find(draft)) if path[1:] else None
        _write(patch, before, path, value, step)
    return patch


def _target(key: str, step: str) -> list[str]:
    if key.startswith("iter."):
        raise Refusal.of(
            "validation", step, f"set.{key}: 'iter' exists only inside a pipeline: use 'ctx'"
        )
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix) if key.startswith(prefix) else key
    return key.split(".")


def _write(patch: dict[str, Any], before: Any, path: list[str], value: Any, step: str) -> None:
    top, *rest = path
    if not rest:
        patch[top] = value
        return
    branch = dict(_mapping(patch.get(top, before), top, step))
    patch[top] = branch
    for key in rest[:-1]:
        branch[key] = dict(_mapping(branch.get(key, {}), key, step))
        branch = branch[key]
    branch[rest[-1]] = value


def _mapping(value: Any, key: str, step: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Refusal.of("validation", step, f"set: {key!r} is not a mapping, it has no keys")
    return value
