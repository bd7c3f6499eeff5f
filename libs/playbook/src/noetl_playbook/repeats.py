"""Repeats that end at their bound: a jump guarded by `… and iter.calls < n`."""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes

from noetl_playbook import syntax
from noetl_playbook.expressions import evaluator
from noetl_playbook.faults import FAULTS
from noetl_playbook.model import Rule
from noetl_playbook.undefined import Undefined

NOTE = "repeat_bound"

# Tells whether a repeat would have gone on but for its bound.
Ended = Callable[[Mapping[str, Any]], bool]


def ended_by_bound(rule: Rule) -> Ended | None:
    """Give the question whether a rule's bound alone kept it from repeating; `None` without one."""
    if rule.then.do != "jump" or not isinstance(rule.when, str) or "iter.calls" not in rule.when:
        return None
    tree = syntax.parse(rule.when)
    match tree.value:
        case nodes.And(
            left=wanted,
            right=nodes.Compare(
                expr=nodes.Getattr(node=nodes.Name(name="iter"), attr="calls"),
                ops=[nodes.Operand(op="lt")],
            ) as bound,
        ):
            evaluate = evaluator(tree, nodes.And(wanted, nodes.Not(bound)))
        case _:
            return None

    def ended(scope: Mapping[str, Any]) -> bool:
        try:
            found = evaluate(scope)
        except FAULTS:
            # The rule itself says what is wrong with its condition.
            return False
        return not isinstance(found, Undefined) and bool(found)

    return ended
