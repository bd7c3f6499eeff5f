"""User code, compiled once: which of the three contracts it follows, and how to call it."""

import ast
import inspect
import keyword
import unicodedata
from collections.abc import Iterator
from types import CodeType
from typing import Literal

from msgspec import Struct

Contract = Literal["body", "main", "result"]

BODY = "__noetl_body__"
FILE = "<code>"
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


class Program(Struct, frozen=True, kw_only=True):
    """Compiled code; `parameters` are those of the function made of a returning source."""

    code: CodeType
    contract: Contract
    assigns_result: bool
    parameters: tuple[str, ...] = ()

    @property
    def is_awaited(self) -> bool:
        """Tell whether running the module body gives a coroutine."""
        return bool(self.code.co_flags & inspect.CO_COROUTINE)


def compile_source(source: str, input_names: tuple[str, ...], file: str = FILE) -> Program:
    """Compile a source, whose tracebacks name a file; raises `SyntaxError`."""
    tree = ast.parse(source, file)
    own = list(_own_nodes(tree))
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in own):
        return _as_function(tree, own, input_names, file)
    has_main = any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "main"
        for node in tree.body
    )
    code = compile(tree, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return Program(
        code=code,
        contract="main" if has_main else "result",
        assigns_result=any(_binds_result(node) for node in own),
    )


def _as_function(
    tree: ast.Module, own: list[ast.AST], input_names: tuple[str, ...], file: str
) -> Program:
    """Make the source the body of a function whose parameters are the inputs."""
    is_async = any(_is_awaiting(node) for node in own)
    parameters = tuple(name for name in input_names if _can_be_parameter(name))
    head = f"{'async ' if is_async else ''}def {BODY}({', '.join(parameters)}): pass"
    wrapper = ast.parse(head, file)
    function = wrapper.body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.body = tree.body
    return Program(
        code=compile(wrapper, file, "exec", dont_inherit=True),
        contract="body",
        assigns_result=False,
        parameters=parameters,
    )


def _can_be_parameter(name: str) -> bool:
    """Tell whether code can name an input; others are read by `inputs[…]` alone."""
    is_free = name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"
    # The compiler would spell it in another way.
    return is_free and unicodedata.is_normalized("NFKC", name)


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk the nodes outside nested functions and classes."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, _SCOPES):
            yield from _own_nodes(node)


def _is_awaiting(node: ast.AST) -> bool:
    if isinstance(node, ast.comprehension):
        return bool(node.is_async)
    return isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)


def _binds_result(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id == "result" and isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == "result"
    return isinstance(node, ast.alias) and (node.asname or node.name) == "result"
