"""Conditions that only a failure can fulfil, told from their text.

Most rules ask of errors, and most attempts have none: such a rule need not be asked after them.
"""

from collections.abc import Callable
from typing import Any

from jinja2 import nodes

from noetl_playbook.templates import syntax
from noetl_playbook.templates.closures import Scope

# With an undefined left side these are false, for all constants.
_FALSE_OF_UNDEFINED = frozenset({"eq", "in"})


def needs_error(node: nodes.Expr) -> bool:
    """Tell whether an expression is false, and cannot fail, where `output` has no error."""
    match node:
        case nodes.Or(left=left, right=right):
            return needs_error(left) and needs_error(right)
        case nodes.And(left=left):
            # What comes first decides whether the rest is looked at, and could fail.
            return needs_error(left)
        case nodes.Compare(expr=left, ops=[nodes.Operand(op=op, expr=right)]):
            return op in _FALSE_OF_UNDEFINED and _is_of_error(left) and _is_constant(right)
        case _:
            return _is_of_error(node)


def _is_of_error(node: nodes.Expr) -> bool:
    root, keys = syntax.split_path(node)
    return isinstance(root, nodes.Name) and root.name == "output" and keys[:1] == ["error"]


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_constant, node.items))
    return isinstance(node, nodes.Const)


class Condition:
    """A compiled condition; one that `needs_error` is false where `output` has none."""

    __slots__ = ("_judge", "names", "needs_error", "paths", "source")

    def __init__(
        self,
        source: Any,
        judge: Callable[[Scope], tuple[bool, str | None]],
        *,
        names: frozenset[str],
        paths: frozenset[str],
        needs_error: bool = False,
    ) -> None:
        self.source = source
        self.names = names
        self.paths = paths
        self.needs_error = needs_error
        self._judge = judge

    def is_true(self, scope: Scope) -> bool:
        """Tell whether the condition is true; what is absent is false."""
        return self._judge(scope)[0]

    def evaluate_condition(self, scope: Scope) -> tuple[bool, str | None]:
        """Tell whether it is true, and which path was absent if the whole of it was."""
        holds, absent = self._judge(scope)
        return holds, absent
