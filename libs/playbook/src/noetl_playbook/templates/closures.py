"""Expressions as plain Python closures, with the meaning that Jinja's code would have.

A worker renders some twenty-five templates for one request, so the common expressions must not
pay for Jinja's context. What is not translated here raises `NotTranslated` and runs in Jinja.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.nodes import EvalContext
from jinja2.utils import _PassArg

from noetl_playbook.templates import filters, lookup, sandbox, syntax, undefined
from noetl_playbook.templates.lookup import MISSING, Lookup
from noetl_playbook.templates.sandbox import GLOBALS
from noetl_playbook.templates.undefined import AbsentValue, Undefined

Scope = Mapping[str, Any]
Run = Callable[[Scope], Any]

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **sandbox.COMPARISONS,
    "in": lambda item, container: lookup.has_item(container, item),
    "notin": lambda item, container: not lookup.has_item(container, item),
}
_BINARY: dict[type[nodes.BinExpr], Callable[[Any, Any], Any]] = {
    nodes.Add: lookup.add_bounded,
    nodes.Sub: operator.sub,
    nodes.Mul: lookup.multiply_bounded,
    nodes.Div: operator.truediv,
    nodes.FloorDiv: operator.floordiv,
    nodes.Mod: lookup.take_modulo,
    nodes.Pow: lookup.raise_to_power,
}
_SIMPLE = frozenset({str, int, float, bool, type(None), dict, list, Undefined, AbsentValue})


class NotTranslatedError(Exception):
    """An expression that only Jinja's own code covers."""


def translate_expression(node: nodes.Expr) -> Run:
    """Translate an expression; a path ends settled."""
    translator = _TRANSLATORS.get(type(node))
    if translator is None:
        raise NotTranslatedError(type(node).__name__)
    return translator(node)


def _translate_constant(node: Any) -> Run:
    value = node.value
    return lambda _scope: value


def _translate_not(node: Any) -> Run:
    run = translate_expression(node.node)
    return lambda scope: not run(scope)


def _translate_list(node: Any) -> Run:
    runs = [translate_expression(item) for item in node.items]
    return lambda scope: [run(scope) for run in runs]


def _translate_dict(node: Any) -> Run:
    entries = [
        (translate_expression(pair.key), translate_expression(pair.value)) for pair in node.items
    ]
    return lambda scope: {key(scope): value(scope) for key, value in entries}


def _settle_result(run: Run) -> Run:
    def settle_value(scope: Scope) -> Any:
        value = run(scope)
        if type(value) in _SIMPLE or not isinstance(value, Lookup):
            return value
        return value.settle_view()

    return settle_value


def _translate_prefix(node: nodes.Expr) -> Run:
    """Translate a path whose value is still to be looked into."""
    root, keys = syntax.split_path(node)
    if isinstance(root, nodes.Name):
        return (
            _translate_path(root.name, keys, settles=False) if keys else _translate_name(root.name)
        )
    if keys:
        return _translate_members(_translate_prefix(root), keys)
    if isinstance(root, nodes.Getitem):
        if isinstance(root.arg, nodes.Slice):
            raise NotTranslatedError("Slice")
        return _translate_computed_key(
            _translate_prefix(root.node), translate_expression(root.arg), _spell_path(root.node)
        )
    return translate_expression(root)


def _spell_path(node: nodes.Expr) -> str:
    """Spell the path that a node reads, as far as it is constant."""
    root, keys = syntax.split_path(node)
    name = root.name if isinstance(root, nodes.Name) else "…"
    return _join_keys(name, keys)


def _join_keys(name: str, keys: list[syntax.Key]) -> str:
    return name + "".join(f".{key}" if isinstance(key, str) else f"[{key}]" for key in keys)


def _translate_name(name: str) -> Run:
    fallback = GLOBALS.get(name)

    def read_name(scope: Scope) -> Any:
        try:
            return scope[name]
        except KeyError:
            return undefined.make_missing_name(scope, name) if fallback is None else fallback

    return read_name


def _translate_path(name: str, keys: list[syntax.Key], *, settles: bool) -> Run:
    """Translate the commonest path: keys of a name, in one function where it ends settled too."""
    if name in GLOBALS:
        found_below = _translate_members(_translate_name(name), keys)
        return _settle_result(found_below) if settles else found_below
    find = lookup.look_up_member
    path_text = _join_keys(name, keys)
    # One key may occur twice in a path; the hint then speaks of the first.
    missing = {
        key: (_join_keys(name, keys[: i + 1]), keys[i:]) for i, key in reversed([*enumerate(keys)])
    }

    def read_path(scope: Scope) -> Any:
        try:
            value = scope[name]
        except KeyError:
            return undefined.make_missing_name(scope, name, keys)
        for key in keys:
            if type(value) is dict and key in value:
                value = value[key]
                continue
            member = MISSING if value is None else find(value, key)
            if member is MISSING:
                if isinstance(value, Undefined) and value.path:
                    return value
                first, missing_keys = missing[key]
                return undefined.make_missing_member(
                    scope, value, missing_keys, name=path_text, missing=first
                )
            value = member
        if settles and type(value) not in _SIMPLE and isinstance(value, Lookup):
            return value.settle_view()
        return value

    return read_path


def _translate_members(base: Run, keys: list[syntax.Key]) -> Run:
    def read_members(scope: Scope) -> Any:
        getitem = sandbox.get_environment_for(scope).getitem
        value = base(scope)
        for key in keys:
            value = getitem(value, key)
        return value

    return read_members


def _translate_computed_key(base: Run, argument: Run, text: str) -> Run:
    def read_computed(scope: Scope) -> Any:
        owner = base(scope)
        key = argument(scope)
        if isinstance(key, Undefined):
            key.fail()
        member = lookup.look_up_member(owner, key) if owner is not None else MISSING
        if member is not MISSING:
            return member
        return undefined.make_missing_member(scope, owner, [key], name=f"{text}[{key!r}]")

    return read_computed


def _translate_and(node: Any) -> Run:
    left, right = translate_expression(node.left), translate_expression(node.right)

    def evaluate_and(scope: Scope) -> Any:
        value = left(scope)
        return right(scope) if value else value

    return evaluate_and


def _translate_or(node: Any) -> Run:
    left, right = translate_expression(node.left), translate_expression(node.right)

    def evaluate_or(scope: Scope) -> Any:
        value = left(scope)
        return value or right(scope)

    return evaluate_or


def _apply_binary(apply: Callable[[Any, Any], Any], left: Run, right: Run) -> Run:
    return lambda scope: apply(left(scope), right(scope))


def _apply_unary(apply: Callable[[Any], Any], inner: Run) -> Run:
    return lambda scope: apply(inner(scope))


def _translate_concat(node: Any) -> Run:
    runs = [translate_expression(part) for part in node.nodes]
    return lambda scope: "".join([lookup.to_bounded_text(run(scope)) for run in runs])


def _translate_comparison(node: nodes.Compare) -> Run:
    left = translate_expression(node.expr)
    links = [(_COMPARISONS[item.op], translate_expression(item.expr)) for item in node.ops]
    if len(links) == 1:
        ((apply, right),) = links
        return lambda scope: apply(left(scope), right(scope))

    def compare_chain(scope: Scope) -> Any:
        value = left(scope)
        holds: Any = True
        for apply, right in links:
            following = right(scope)
            holds = apply(value, following)
            if not holds:
                return holds
            value = following
        return holds

    return compare_chain


def _translate_conditional(node: nodes.CondExpr) -> Run:
    test, then = translate_expression(node.test), translate_expression(node.expr1)
    if node.expr2 is not None:
        other = translate_expression(node.expr2)
        return lambda scope: then(scope) if test(scope) else other(scope)
    hint = "the inline if is false and has no else"
    return lambda scope: then(scope) if test(scope) else undefined.make_missing_branch(scope, hint)


def _translate_applied(node: nodes.Filter | nodes.Test) -> Run:
    """Translate a filter or a test with its arguments."""
    if node.dyn_args is not None or node.dyn_kwargs is not None or node.node is None:
        raise NotTranslatedError(node.name)
    environment = sandbox.get_environment("text")
    is_filter = isinstance(node, nodes.Filter)
    functions: dict[str, Any] = environment.filters if is_filter else environment.tests
    function: Callable[..., Any] = functions[node.name]
    leading = _find_leading_arguments(function)
    value = translate_expression(node.node)
    arguments = [translate_expression(arg) for arg in node.args]
    named = [(str(kwarg.key), translate_expression(kwarg.value)) for kwarg in node.kwargs]
    if named:
        return lambda scope: function(
            *leading(scope),
            value(scope),
            *[argument(scope) for argument in arguments],
            **{key: item(scope) for key, item in named},
        )
    if leading is not _no_leading_arguments or len(arguments) > 1:
        return lambda scope: function(
            *leading(scope), value(scope), *[argument(scope) for argument in arguments]
        )
    if arguments:
        (only,) = arguments
        return _apply_binary(function, value, only)
    if (inner := filters.find_unchecked(function)) is not None:
        return _apply_to_defined(inner, value)
    return _apply_unary(function, value)


def _apply_to_defined(apply: Callable[[Any], Any], inner: Run) -> Run:
    def apply_checked(scope: Scope) -> Any:
        value = inner(scope)
        if isinstance(value, Undefined):
            value.fail()
        return apply(value)

    return apply_checked


def _no_leading_arguments(_scope: Scope) -> tuple[Any, ...]:
    return ()


def _find_leading_arguments(function: Callable[..., Any]) -> Callable[[Scope], tuple[Any, ...]]:
    """Give what finds the argument that some of Jinja's filters want first."""
    match _PassArg.from_obj(function):
        case None:
            return _no_leading_arguments
        case _PassArg.environment:
            return lambda scope: (sandbox.get_environment_for(scope),)
        case _PassArg.eval_context:
            return lambda scope: (EvalContext(sandbox.get_environment_for(scope)),)
        case _:
            raise NotTranslatedError(getattr(function, "__name__", "filter"))


def _translate_call(node: nodes.Call) -> Run:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise NotTranslatedError("call")
    function = _translate_callee(node.node)
    arguments = [translate_expression(arg) for arg in node.args]
    named = [(str(kwarg.key), translate_expression(kwarg.value)) for kwarg in node.kwargs]
    call = sandbox.call_safely
    return lambda scope: call(
        function(scope),
        *[argument(scope) for argument in arguments],
        **{key: item(scope) for key, item in named},
    )


def _translate_callee(node: nodes.Expr) -> Run:
    if not isinstance(node, nodes.Getattr):
        return translate_expression(node)
    method = sandbox.get_environment("text").get_method
    owner, name, text = translate_expression(node.node), node.attr, _spell_path(node)

    def read_method(scope: Scope) -> Any:
        value = owner(scope)
        if value is None or isinstance(value, Undefined):
            return undefined.make_missing_member(scope, value, [name], name=text)
        return method(value, name)

    return read_method


def _translate_operator(node: Any) -> Run:
    return _apply_binary(
        _BINARY[type(node)], translate_expression(node.left), translate_expression(node.right)
    )


def _translate_lookup(node: Any) -> Run:
    root, keys = syntax.split_path(node)
    if isinstance(root, nodes.Name) and keys:
        return _translate_path(root.name, keys, settles=True)
    return _settle_result(_translate_prefix(node))


_TRANSLATORS: dict[type[nodes.Node], Callable[[Any], Run]] = {
    nodes.Const: _translate_constant,
    **dict.fromkeys((nodes.Name, nodes.Getattr, nodes.Getitem), _translate_lookup),
    nodes.And: _translate_and,
    nodes.Or: _translate_or,
    nodes.Not: _translate_not,
    nodes.Compare: _translate_comparison,
    **dict.fromkeys(_BINARY, _translate_operator),
    **dict.fromkeys((nodes.Filter, nodes.Test), _translate_applied),
    nodes.Call: _translate_call,
    nodes.CondExpr: _translate_conditional,
    nodes.Neg: lambda node: _apply_unary(operator.neg, translate_expression(node.node)),
    nodes.Pos: lambda node: _apply_unary(operator.pos, translate_expression(node.node)),
    nodes.Concat: _translate_concat,
    nodes.List: _translate_list,
    nodes.Dict: _translate_dict,
}
