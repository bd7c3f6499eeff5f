"""Conditions that only a failure can fulfil, told from their text.

Most rules ask of errors, and most attempts have none: such a rule need not be asked after them.
"""

from jinja2 import nodes

from noetl_playbook import syntax

# With an undefined left side these are false, whatever the constants are.
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
    root, keys = syntax.chain(node)
    return isinstance(root, nodes.Name) and root.name == "output" and keys[:1] == ["error"]


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_constant, node.items))
    return isinstance(node, nodes.Const)
