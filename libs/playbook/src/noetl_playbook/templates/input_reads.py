"""Which values templates and Python code read, as paths of names."""

import ast
import re
from collections.abc import Iterable, Iterator

from jinja2 import nodes
from msgspec import Struct, structs

from noetl_playbook.templates import syntax
from noetl_playbook.templates.syntax import TemplateTree

WORKLOAD = "workload"
# Names of the inputs as a whole: in templates, and in Python code.
WHOLE_NAMES = frozenset({WORKLOAD, "payload"})
_IN_CODE = frozenset({WORKLOAD, "context"})
_MENTIONED = re.compile(rf"\b(?:{'|'.join(sorted(_IN_CODE))})\b")

Keys = tuple[str, ...]


class InputRead(Struct, frozen=True, kw_only=True):
    """A value that is read: the name that it begins with, and the keys below it.

    `is_asked` says that it may be missing: it is read by `is defined`, `default(…)`, `.get()` or
    `in`.
    """

    root: str
    keys: Keys = ()
    is_asked: bool = False


def find_template_reads(tree: TemplateTree) -> frozenset[InputRead]:
    """Return the paths that a template reads from its scope, for lint and checks of inputs.

    A path ends before its first computed key.
    """
    names = syntax.list_names(tree)
    return frozenset(
        input_read for input_read in _find_reads(tree.root) if input_read.root in names
    )


def _find_reads(node: nodes.Node) -> Iterator[InputRead]:
    input_read, inner_nodes = _take_read(node)
    if input_read is not None:
        yield input_read
    for inner_node in inner_nodes:
        yield from _find_reads(inner_node)


def _take_read(node: nodes.Node) -> tuple[InputRead | None, Iterable[nodes.Node]]:
    """Find what a node reads by itself, and the nodes in which further reads may be."""
    below = node.iter_child_nodes()
    match node:
        case nodes.Name() | nodes.Getattr() | nodes.Getitem():
            input_read = _parse_read(node)
            return (None, below) if input_read is None else (input_read, ())
        case nodes.Call(node=nodes.Getattr(node=owner, attr=method)):
            input_read = _parse_read(owner)
            return (None, below) if input_read is None else _take_call(node, input_read, method)
        case nodes.Compare(
            expr=nodes.Const(value=str() as key),
            ops=[nodes.Operand(op="in" | "notin", expr=owner)],
        ):
            input_read = _parse_read(owner)
            return (None, below) if input_read is None else (_read_below(input_read, key), ())
        case nodes.Filter(name=name) | nodes.Test(name=name) if name in syntax.ASKING_NAMES:
            input_read = None if node.node is None else _parse_read(node.node)
            return (
                None if input_read is None else structs.replace(input_read, is_asked=True)
            ), below
        case _:
            return None, below


def _take_call(
    node: nodes.Call, input_read: InputRead, method: str
) -> tuple[InputRead, Iterable[nodes.Node]]:
    """Read by a method: `a.get('b')` asks for one value, others such as `a.items()` take all."""
    arguments: list[nodes.Node] = [*node.args, *node.kwargs]
    first = arguments[0] if arguments else None
    if method == "get" and isinstance(first, nodes.Const) and isinstance(first.value, str):
        return _read_below(input_read, first.value), arguments[1:]
    return input_read, arguments


def _parse_read(node: nodes.Expr) -> InputRead | None:
    """Read a path such as `workload.a.b`; None for anything else."""
    root, keys = syntax.split_path(node)
    if not isinstance(root, nodes.Name):
        return None
    listed: list[str] = []
    for key in keys:
        if not isinstance(key, str):
            break
        listed.append(key)
    return InputRead(root=root.name, keys=tuple(listed))


def _read_below(input_read: InputRead, key: str) -> InputRead:
    return InputRead(root=input_read.root, keys=(*input_read.keys, key), is_asked=True)


def find_code_reads(code: str | None) -> frozenset[InputRead]:
    """Find what Python code reads of `workload` and `context`; None is code that is elsewhere."""
    whole = frozenset({InputRead(root=WORKLOAD)})
    if code is None:
        return whole
    if _MENTIONED.search(code) is None:
        return frozenset()
    try:
        return frozenset(_find_reads_in_code(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return whole


def _find_reads_in_code(root: ast.AST) -> Iterator[InputRead]:
    waiting: list[ast.AST] = [root]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name(id=name):
                if name in _IN_CODE:
                    yield InputRead(root=WORKLOAD)
            case (
                ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str() as key))
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id=owner), attr="get"),
                    args=[ast.Constant(value=str() as key), *_],
                )
            ) if owner in _IN_CODE:
                # `context["workload"]` holds them all.
                yield InputRead(
                    root=WORKLOAD, keys=() if key == WORKLOAD else (key,), is_asked=True
                )
                if isinstance(node, ast.Call):
                    waiting += [*node.args[1:], *node.keywords]
            case _:
                waiting += ast.iter_child_nodes(node)
