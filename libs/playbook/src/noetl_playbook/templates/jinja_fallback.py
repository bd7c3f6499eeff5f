"""What the closures do not cover, run by Jinja's own compiled code with the same meaning."""

import copy
from collections.abc import Callable
from typing import Any

from jinja2 import Template, nodes
from jinja2.visitor import NodeTransformer

from noetl_playbook.templates import render_limits, sandbox, syntax, undefined
from noetl_playbook.templates.closures import Run, Scope
from noetl_playbook.templates.render_limits import LoopBudget
from noetl_playbook.templates.sandbox import (
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
from noetl_playbook.templates.syntax import TemplateTree

_RESULT = "noetl_value"


class _TemplateRewriter(NodeTransformer):
    """Marks methods, settles the ends of paths, and gives `in` its meaning for undefined."""

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        return _settle_node(node) if node.ctx == "load" else node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        return _settle_node(self._rewrite_prefix(node))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        return _settle_node(self._rewrite_prefix(node))

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        callee = node.node
        if isinstance(callee, nodes.Getattr):
            callee.node = self.visit(callee.node)
            callee.attr = METHOD_MARK + callee.attr
        node.args = [self.visit(arg) for arg in node.args]
        for named in node.kwargs:
            named.value = self.visit(named.value)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, COUNT_FILTER, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        node.nodes = [_wrap_in_filter(part, TEXT_FILTER) for part in node.nodes]
        # Inside a loop a text could double itself.
        return nodes.Filter(node, BOUND_FILTER, [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        left, comparisons = node.expr, []
        for link in node.ops:
            comparisons.append(_rewrite_comparison(left, link))
            left = copy.deepcopy(link.expr)
        whole = comparisons[0]
        for item in comparisons[1:]:
            whole = nodes.And(whole, item, lineno=node.lineno)
        return whole

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802 (Jinja's visitor)
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _wrap_in_filter(node.key, KEY_FILTER)
        return node

    def _rewrite_prefix(self, node: nodes.Expr) -> nodes.Expr:
        if isinstance(node, nodes.Getattr):
            node.node = self._rewrite_prefix(node.node)
        elif isinstance(node, nodes.Getitem):
            node.node = self._rewrite_prefix(node.node)
            node.arg = self.visit(node.arg)
        elif not isinstance(node, nodes.Name):
            rewritten: nodes.Expr = self.visit(node)
            return rewritten
        return node


def _rewrite_comparison(left: nodes.Expr, link: nodes.Operand) -> nodes.Expr:
    """Let a test of ours compare: code of Jinja's own would visit without an end."""
    is_sought = link.op in ("in", "notin")
    name = "in" if is_sought else COMPARISON_MARK + link.op
    comparison = nodes.Test(left, name, [link.expr], [], None, None, lineno=link.lineno)
    return nodes.Not(comparison, lineno=link.lineno) if link.op == "notin" else comparison


def _settle_node(node: nodes.Expr) -> nodes.Expr:
    return _wrap_in_filter(node, SETTLE_FILTER)


def _wrap_in_filter(node: nodes.Expr, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _compile_template(root: nodes.Template, flavour: Flavour) -> Callable[[Scope], Template]:
    """Compile a template for strict playbooks at once, and for lenient ones when one runs."""
    strict = _compile_rewritten(root, sandbox.get_environment(flavour))
    lenient: list[Template] = []

    def choose_template(scope: Scope) -> Template:
        if not undefined.is_lenient(scope):
            return strict
        if not lenient:
            lenient.append(
                _compile_rewritten(root, sandbox.get_environment(flavour, is_lenient=True))
            )
        return lenient[0]

    return choose_template


def _compile_rewritten(root: nodes.Template, environment: PlaybookEnvironment) -> Template:
    rewritten = _TemplateRewriter().visit(copy.deepcopy(root))
    rewritten.set_environment(environment)
    return environment.from_string(rewritten)


def compile_value_by_jinja(tree: TemplateTree, expression: nodes.Expr) -> Run:
    """Compile a whole-value template with Jinja; gives its native value."""
    target = nodes.Name(_RESULT, "store", lineno=1)
    body: list[nodes.Node] = [nodes.Assign(target, expression, lineno=1)]
    template_for = _compile_template(nodes.Template(body, lineno=1), "text")
    names = tuple(syntax.list_names(tree))

    def evaluate_by_jinja(scope: Scope) -> Any:
        template = template_for(scope)
        context = template.new_context(_slice_scope(scope, names))
        for _ in template.root_render_func(context):
            pass
        return context.vars[_RESULT]

    return evaluate_by_jinja


def compile_text_by_jinja(tree: TemplateTree, flavour: Flavour) -> Callable[[Scope], str]:
    """Compile a text template with Jinja."""
    template_for = _compile_template(tree.root, flavour)
    names = tuple(syntax.list_names(tree))

    def render_by_jinja(scope: Scope) -> str:
        template = template_for(scope)
        context = template.new_context(_slice_scope(scope, names))
        return render_limits.join_parts(template.root_render_func(context))

    return render_by_jinja


def _slice_scope(scope: Scope, names: tuple[str, ...]) -> dict[str, Any]:
    scope_slice: dict[str, Any] = {BUDGET: LoopBudget()}
    for name in names:
        try:
            scope_slice[name] = scope[name]
        except KeyError:
            scope_slice[name] = undefined.make_missing_name(scope, name)
    return scope_slice
