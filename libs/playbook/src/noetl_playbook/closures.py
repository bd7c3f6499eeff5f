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

from noetl_playbook import filters, lookup, sandbox, syntax, undefined
from noetl_playbook.lookup import MISSING, Lookup
from noetl_playbook.sandbox import GLOBALS
from noetl_playbook.undefined import Absent, Undefined

Scope = Mapping[str, Any]
Run = Callable[[Scope], Any]

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **sandbox.COMPARISONS,
    "in": lambda item, container: lookup.contains(container, item),
    "notin": lambda item, container: not lookup.contains(container, item),
}
_BINARY: dict[type[nodes.BinExpr], Callable[[Any, Any], Any]] = {
    nodes.Add: lookup.added,
    nodes.Sub: operator.sub,
    nodes.Mul: lookup.multiplied,
    nodes.Div: operator.truediv,
    nodes.FloorDiv: operator.floordiv,
    nodes.Mod: lookup.modulo,
    nodes.Pow: lookup.powered,
}
_SIMPLE = frozenset({str, int, float, bool, type(None), dict, list, Undefined, Absent})


class NotTranslatedError(Exception):
    """An expression that only Jinja's own code covers."""


def translate(node: nodes.Expr) -> Run:
    """Translate an expression; a path ends settled."""
    translator = _TRANSLATORS.get(type(node))
    if translator is None:
        raise NotTranslatedError(type(node).__name__)
    return translator(node)


def _constant(node: Any) -> Run:
    value = node.value
    return lambda _scope: value


def _not(node: Any) -> Run:
    run = translate(node.node)
    return lambda scope: not run(scope)


def _list(node: Any) -> Run:
    runs = [translate(item) for item in node.items]
    return lambda scope: [run(scope) for run in runs]


def _dict(node: Any) -> Run:
    entries = [(translate(pair.key), translate(pair.value)) for pair in node.items]
    return lambda scope: {key(scope): value(scope) for key, value in entries}


def _settled(run: Run) -> Run:
    def settled(scope: Scope) -> Any:
        value = run(scope)
        if type(value) in _SIMPLE or not isinstance(value, Lookup):
            return value
        return value.settled()

    return settled


def _prefix(node: nodes.Expr) -> Run:
    """Translate a path whose value is still to be looked into."""
    root, keys = syntax.chain(node)
    if isinstance(root, nodes.Name):
        return _path(root.name, keys, settles=False) if keys else _name(root.name)
    if keys:
        return _members(_prefix(root), keys)
    if isinstance(root, nodes.Getitem):
        if isinstance(root.arg, nodes.Slice):
            raise NotTranslatedError("Slice")
        return _computed(_prefix(root.node), translate(root.arg), _text(root.node))
    return translate(root)


def _text(node: nodes.Expr) -> str:
    """Spell the path that a node reads, as far as it is constant."""
    root, keys = syntax.chain(node)
    name = root.name if isinstance(root, nodes.Name) else "…"
    return _spelled(name, keys)


def _spelled(name: str, keys: list[syntax.Key]) -> str:
    return name + "".join(f".{key}" if isinstance(key, str) else f"[{key}]" for key in keys)


def _name(name: str) -> Run:
    fallback = GLOBALS.get(name)

    def run(scope: Scope) -> Any:
        try:
            return scope[name]
        except KeyError:
            return undefined.missing_name(scope, name) if fallback is None else fallback

    return run


def _path(name: str, keys: list[syntax.Key], *, settles: bool) -> Run:
    """Translate the commonest path: keys of a name, in one function where it ends settled too."""
    if name in GLOBALS:
        found_below = _members(_name(name), keys)
        return _settled(found_below) if settles else found_below
    find = lookup.member
    whole = _spelled(name, keys)
    # One key may occur twice in a path; the hint then speaks of the first.
    missing = {
        key: (_spelled(name, keys[: i + 1]), keys[i:]) for i, key in reversed([*enumerate(keys)])
    }

    def run(scope: Scope) -> Any:
        try:
            value = scope[name]
        except KeyError:
            return undefined.missing_name(scope, name, keys)
        for key in keys:
            if type(value) is dict and key in value:
                value = value[key]
                continue
            found = MISSING if value is None else find(value, key)
            if found is MISSING:
                if isinstance(value, Undefined) and value.path:
                    return value
                first, rest = missing[key]
                return undefined.missing_member(scope, value, rest, name=whole, missing=first)
            value = found
        if settles and type(value) not in _SIMPLE and isinstance(value, Lookup):
            return value.settled()
        return value

    return run


def _members(base: Run, keys: list[syntax.Key]) -> Run:
    def run(scope: Scope) -> Any:
        getitem = sandbox.environment_for(scope).getitem
        value = base(scope)
        for key in keys:
            value = getitem(value, key)
        return value

    return run


def _computed(base: Run, argument: Run, text: str) -> Run:
    def run(scope: Scope) -> Any:
        owner = base(scope)
        key = argument(scope)
        if isinstance(key, Undefined):
            key.fail()
        found = lookup.member(owner, key) if owner is not None else MISSING
        if found is not MISSING:
            return found
        return undefined.missing_member(scope, owner, [key], name=f"{text}[{key!r}]")

    return run


def _and(node: Any) -> Run:
    left, right = translate(node.left), translate(node.right)

    def run(scope: Scope) -> Any:
        value = left(scope)
        return right(scope) if value else value

    return run


def _or(node: Any) -> Run:
    left, right = translate(node.left), translate(node.right)

    def run(scope: Scope) -> Any:
        value = left(scope)
        return value or right(scope)

    return run


def _binary(apply: Callable[[Any, Any], Any], left: Run, right: Run) -> Run:
    return lambda scope: apply(left(scope), right(scope))


def _unary(apply: Callable[[Any], Any], inner: Run) -> Run:
    return lambda scope: apply(inner(scope))


def _concat(node: Any) -> Run:
    runs = [translate(part) for part in node.nodes]
    return lambda scope: "".join([lookup.text(run(scope)) for run in runs])


def _compare(node: nodes.Compare) -> Run:
    left = translate(node.expr)
    links = [(_COMPARISONS[each.op], translate(each.expr)) for each in node.ops]
    if len(links) == 1:
        ((apply, right),) = links
        return lambda scope: apply(left(scope), right(scope))

    def run(scope: Scope) -> Any:
        value = left(scope)
        holds: Any = True
        for apply, right in links:
            following = right(scope)
            holds = apply(value, following)
            if not holds:
                return holds
            value = following
        return holds

    return run


def _conditional(node: nodes.CondExpr) -> Run:
    test, then = translate(node.test), translate(node.expr1)
    if node.expr2 is not None:
        other = translate(node.expr2)
        return lambda scope: then(scope) if test(scope) else other(scope)
    hint = "the inline if is false and has no else"
    return lambda scope: then(scope) if test(scope) else undefined.missing_branch(scope, hint)


def _applied(node: nodes.Filter | nodes.Test) -> Run:
    """Translate a filter or a test with its arguments."""
    if node.dyn_args is not None or node.dyn_kwargs is not None or node.node is None:
        raise NotTranslatedError(node.name)
    environment = sandbox.environment("text")
    is_filter = isinstance(node, nodes.Filter)
    known: dict[str, Any] = environment.filters if is_filter else environment.tests
    function: Callable[..., Any] = known[node.name]
    leading = _leading(function)
    value = translate(node.node)
    arguments = [translate(each) for each in node.args]
    named = [(str(each.key), translate(each.value)) for each in node.kwargs]
    if named:
        return lambda scope: function(
            *leading(scope),
            value(scope),
            *[each(scope) for each in arguments],
            **{key: each(scope) for key, each in named},
        )
    if leading is not _no_leading or len(arguments) > 1:
        return lambda scope: function(
            *leading(scope), value(scope), *[each(scope) for each in arguments]
        )
    if arguments:
        (only,) = arguments
        return _binary(function, value, only)
    if (inner := filters.unchecked(function)) is not None:
        return _checked(inner, value)
    return _unary(function, value)


def _checked(apply: Callable[[Any], Any], inner: Run) -> Run:
    def run(scope: Scope) -> Any:
        value = inner(scope)
        if isinstance(value, Undefined):
            value.fail()
        return apply(value)

    return run


def _no_leading(_scope: Scope) -> tuple[Any, ...]:
    return ()


def _leading(function: Callable[..., Any]) -> Callable[[Scope], tuple[Any, ...]]:
    """Give what finds the argument that some of Jinja's filters want first."""
    match _PassArg.from_obj(function):
        case None:
            return _no_leading
        case _PassArg.environment:
            return lambda scope: (sandbox.environment_for(scope),)
        case _PassArg.eval_context:
            return lambda scope: (EvalContext(sandbox.environment_for(scope)),)
        case _:
            raise NotTranslatedError(getattr(function, "__name__", "filter"))


def _call(node: nodes.Call) -> Run:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise NotTranslatedError("call")
    function = _callee(node.node)
    arguments = [translate(each) for each in node.args]
    named = [(str(each.key), translate(each.value)) for each in node.kwargs]
    call = sandbox.call
    return lambda scope: call(
        function(scope),
        *[each(scope) for each in arguments],
        **{key: each(scope) for key, each in named},
    )


def _callee(node: nodes.Expr) -> Run:
    if not isinstance(node, nodes.Getattr):
        return translate(node)
    method = sandbox.environment("text").method
    owner, name, text = translate(node.node), node.attr, _text(node)

    def run(scope: Scope) -> Any:
        value = owner(scope)
        if value is None or isinstance(value, Undefined):
            return undefined.missing_member(scope, value, [name], name=text)
        return method(value, name)

    return run


def _operated(node: Any) -> Run:
    return _binary(_BINARY[type(node)], translate(node.left), translate(node.right))


def _looked_up(node: Any) -> Run:
    root, keys = syntax.chain(node)
    if isinstance(root, nodes.Name) and keys:
        return _path(root.name, keys, settles=True)
    return _settled(_prefix(node))


_TRANSLATORS: dict[type[nodes.Node], Callable[[Any], Run]] = {
    nodes.Const: _constant,
    **dict.fromkeys((nodes.Name, nodes.Getattr, nodes.Getitem), _looked_up),
    nodes.And: _and,
    nodes.Or: _or,
    nodes.Not: _not,
    nodes.Compare: _compare,
    **dict.fromkeys(_BINARY, _operated),
    **dict.fromkeys((nodes.Filter, nodes.Test), _applied),
    nodes.Call: _call,
    nodes.CondExpr: _conditional,
    nodes.Neg: lambda node: _unary(operator.neg, translate(node.node)),
    nodes.Pos: lambda node: _unary(operator.pos, translate(node.node)),
    nodes.Concat: _concat,
    nodes.List: _list,
    nodes.Dict: _dict,
}
