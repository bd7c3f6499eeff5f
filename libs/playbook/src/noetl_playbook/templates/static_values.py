"""What a template of the document says before anything runs: literals and given inputs."""

from collections.abc import Mapping
from typing import Any

from jinja2 import nodes

from noetl_playbook.model import coercion
from noetl_playbook.templates import syntax
from noetl_playbook.templates.syntax import SyntaxProblemError

_HOPS_MAX = 10
_CONVERSIONS = frozenset({"int", "float", "string", "list", "default", "d", "trim"})
_UNKNOWN = object()


def resolve_static_value(value: Any, workload: Mapping[str, Any], *, otherwise: Any = None) -> Any:
    """Follow a value to a literal or an input, evaluating nothing; `otherwise` when it cannot be.

    Only paths are followed (`workload.a.b`, a bare input), through conversions.
    """
    static_value = _follow_value(value, workload, hops=_HOPS_MAX)
    return otherwise if static_value is _UNKNOWN else static_value


def merge_inputs(defaults: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Merge inputs over defaults: mappings key by key, everything else replaced."""
    inputs = dict(defaults)
    for key, value in fields.items():
        below = inputs.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            inputs[key] = merge_inputs(below, value)
        else:
            inputs[key] = value
    return inputs


def _follow_value(value: Any, workload: Mapping[str, Any], *, hops: int) -> Any:
    if not coercion.is_template(value):
        return value
    if hops == 0:
        return _UNKNOWN
    try:
        expression = syntax.parse_template(value).value
    except SyntaxProblemError:
        return _UNKNOWN
    is_whole = False
    while isinstance(expression, nodes.Filter) and expression.name in _CONVERSIONS:
        is_whole = is_whole or expression.name == "int"
        expression = expression.node
    match expression:
        case nodes.Const(value=literal):
            return literal
        case nodes.List(items=items) | nodes.Tuple(items=items):
            # The items are made at run time, but they can be counted.
            return [None] * len(items)
        case _:
            path = _follow_path(expression, workload, hops=hops)
    return coercion.coerce_integer(path) if is_whole and isinstance(path, str) else path


def _follow_path(expression: nodes.Expr | None, workload: Mapping[str, Any], *, hops: int) -> Any:
    root, keys = syntax.split_path(expression) if expression is not None else (None, [])
    if not isinstance(root, nodes.Name):
        return _UNKNOWN
    path = keys if root.name == "workload" else [root.name, *keys]
    level: Any = workload
    for key in path:
        is_member = isinstance(level, Mapping) and key in level
        is_item = isinstance(level, list) and isinstance(key, int) and key < len(level)
        if is_member or is_item:
            level = level[key]
        else:
            return _UNKNOWN
    return _follow_value(level, workload, hops=hops - 1)
