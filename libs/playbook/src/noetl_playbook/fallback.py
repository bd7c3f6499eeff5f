"""What the closures do not cover, run by Jinja's own compiled code with the same meaning."""

import copy
from collections.abc import Callable
from typing import Any

from jinja2 import Template, nodes
from jinja2.visitor import NodeTransformer

from noetl_playbook import sandbox, syntax, undefined
from noetl_playbook.closures import Run, Scope
from noetl_playbook.sandbox import (
    BOUND_FILTER,
    BUDGET,
    COMPARISON_MARK,
    COUNT_FILTER,
    KEY_FILTER,
    METHOD_MARK,
    SETTLE_FILTER,
    TEXT_FILTER,
    Flavour,
    PlaybookEnvironment,
)
from noetl_playbook.syntax import Tree
from noetl_playbook.templates import rendering
from noetl_playbook.templates.rendering import Budget

_RESULT = "noetl_value"


class _Rewriter(NodeTransformer):
    """Marks methods, settles the ends of paths, and gives `in` its meaning for undefined."""

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        return _ended(node) if node.ctx == "load" else node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        return _ended(self._prefix(node))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        return _ended(self._prefix(node))

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        callee = node.node
        if isinstance(callee, nodes.Getattr):
            callee.node = self.visit(callee.node)
            callee.attr = METHOD_MARK + callee.attr
        node.args = [self.visit(each) for each in node.args]
        for named in node.kwargs:
            named.value = self.visit(named.value)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, COUNT_FILTER, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        node.nodes = [_filtered(part, TEXT_FILTER) for part in node.nodes]
        # Inside a loop a text could double itself.
        return nodes.Filter(node, BOUND_FILTER, [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        left, found = node.expr, []
        for link in node.ops:
            found.append(_compared(left, link))
            left = copy.deepcopy(link.expr)
        whole = found[0]
        for each in found[1:]:
            whole = nodes.And(whole, each, lineno=node.lineno)
        return whole

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, KEY_FILTER)
        return node

    def _prefix(self, node: nodes.Expr) -> nodes.Expr:
        if isinstance(node, nodes.Getattr):
            node.node = self._prefix(node.node)
        elif isinstance(node, nodes.Getitem):
            node.node = self._prefix(node.node)
            node.arg = self.visit(node.arg)
        elif not isinstance(node, nodes.Name):
            rewritten: nodes.Expr = self.visit(node)
            return rewritten
        return node


def _compared(left: nodes.Expr, link: nodes.Operand) -> nodes.Expr:
    """Let a test of ours compare: code of Jinja's own would visit without an end."""
    is_sought = link.op in ("in", "notin")
    name = "in" if is_sought else COMPARISON_MARK + link.op
    found = nodes.Test(left, name, [link.expr], [], None, None, lineno=link.lineno)
    return nodes.Not(found, lineno=link.lineno) if link.op == "notin" else found


def _ended(node: nodes.Expr) -> nodes.Expr:
    return _filtered(node, SETTLE_FILTER)


def _filtered(node: nodes.Expr, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _template(root: nodes.Template, flavour: Flavour) -> Callable[[Scope], Template]:
    """Compile a template for strict playbooks at once, and for lenient ones when one runs."""
    strict = _compiled(root, sandbox.environment(flavour))
    lenient: list[Template] = []

    def template_for(scope: Scope) -> Template:
        if not undefined.is_lenient(scope):
            return strict
        if not lenient:
            lenient.append(_compiled(root, sandbox.environment(flavour, is_lenient=True)))
        return lenient[0]

    return template_for


def _compiled(root: nodes.Template, environment: PlaybookEnvironment) -> Template:
    rewritten = _Rewriter().visit(copy.deepcopy(root))
    rewritten.set_environment(environment)
    return environment.from_string(rewritten)


def value(tree: Tree, expression: nodes.Expr) -> Run:
    """Compile a whole-value template with Jinja; gives its native value."""
    target = nodes.Name(_RESULT, "store", lineno=1)
    body: list[nodes.Node] = [nodes.Assign(target, expression, lineno=1)]
    template_for = _template(nodes.Template(body, lineno=1), "text")
    names = tuple(syntax.names(tree))

    def run(scope: Scope) -> Any:
        template = template_for(scope)
        context = template.new_context(_slice(scope, names))
        for _ in template.root_render_func(context):
            pass
        return context.vars[_RESULT]

    return run


def text(tree: Tree, flavour: Flavour) -> Callable[[Scope], str]:
    """Compile a text template with Jinja."""
    template_for = _template(tree.root, flavour)
    names = tuple(syntax.names(tree))

    def run(scope: Scope) -> str:
        template = template_for(scope)
        context = template.new_context(_slice(scope, names))
        return rendering.joined(template.root_render_func(context))

    return run


def _slice(scope: Scope, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {BUDGET: Budget()}
    for name in names:
        try:
            found[name] = scope[name]
        except KeyError:
            found[name] = undefined.missing_name(scope, name)
    return found
