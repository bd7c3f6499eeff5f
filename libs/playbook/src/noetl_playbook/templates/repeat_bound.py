"""Bounds of repeats: a rule that jumps while `… and iter.calls < n` holds."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from jinja2 import nodes
from msgspec import Struct

from noetl_playbook.model.playbook import Rule
from noetl_playbook.templates import syntax
from noetl_playbook.templates.expressions import choose_evaluator
from noetl_playbook.templates.render_limits import FAULTS
from noetl_playbook.templates.undefined import Undefined

# The note of a repeat that its playbook lets stop at the bound, and the code of one that fails.
REPEAT_BOUND = "repeat_bound"


class RepeatBound(Struct, frozen=True, kw_only=True):
    """The bound of a rule that jumps.

    `has_reached_bound` returns whether the bound alone ended the repeat: the rest of the condition
    still holds. `calls_max` returns the bound, `on_bound` is the outcome of the task then.
    """

    has_reached_bound: Callable[[Mapping[str, Any]], bool]
    calls_max: Callable[[Mapping[str, Any]], Any]
    on_bound: Literal["fail", "stop"]


def find_repeat_bound(rule: Rule) -> RepeatBound | None:
    """Return the bound of a rule that jumps; `None` without one."""
    if rule.then.do != "jump" or not isinstance(rule.when, str) or "iter.calls" not in rule.when:
        return None
    tree = syntax.parse_template(rule.when)
    match tree.value:
        case nodes.And(
            left=repeat_condition,
            right=nodes.Compare(
                expr=nodes.Getattr(node=nodes.Name(name="iter"), attr="calls"),
                ops=[nodes.Operand(op="lt", expr=maximum)],
            ) as bound,
        ):
            evaluate = choose_evaluator(tree, nodes.And(repeat_condition, nodes.Not(bound)))
            calls_max = choose_evaluator(tree, maximum)
        case _:
            return None

    def has_reached_bound(scope: Mapping[str, Any]) -> bool:
        try:
            outcome = evaluate(scope)
        except FAULTS:
            # The evaluation of the rule itself reports what is wrong with its condition.
            return False
        return not isinstance(outcome, Undefined) and bool(outcome)

    return RepeatBound(
        has_reached_bound=has_reached_bound, calls_max=calls_max, on_bound=rule.then.on_bound
    )
