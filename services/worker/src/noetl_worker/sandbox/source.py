"""User code: compiled once to one of three contracts, and the traceback of its errors."""

import ast
import inspect
import keyword
import linecache
import unicodedata
from collections.abc import Iterator
from traceback import StackSummary, TracebackException
from types import CodeType
from typing import Literal

from msgspec import Struct

Contract = Literal["body", "main", "result"]

BODY = "__noetl_body__"
FILE = "<code>"
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
# The worker masks secrets and then keeps less: a secret that is cut here does not reach its part.
_MESSAGE_CHARACTERS_MAX = 8 * 1024
_TRACEBACK_CHARACTERS_MAX = 16 * 1024
_LINE_CHARACTERS_MAX = 2 * 1024
_CHAIN_MAX = 8


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
    nodes = list(_own_nodes(tree))
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in nodes):
        return _compile_as_function(tree, nodes, input_names, file)
    has_main = any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "main"
        for node in tree.body
    )
    code = compile(tree, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return Program(
        code=code,
        contract="main" if has_main else "result",
        assigns_result=any(_binds_result(node) for node in nodes),
    )


def _compile_as_function(
    tree: ast.Module, own_nodes: list[ast.AST], input_names: tuple[str, ...], file: str
) -> Program:
    """Make the source the body of a function whose parameters are the inputs."""
    is_async = any(_is_awaiting(node) for node in own_nodes)
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


class UserTraceback(Struct, frozen=True, kw_only=True):
    """What one exception says; `line` is 0 when no line of the source was reached."""

    message: str
    traceback: str
    line: int = 0
    line_text: str = ""


def read_user_traceback(problem: BaseException, *, source: str, file: str) -> UserTraceback:
    """Read an exception of code that was compiled under the name `file`.

    The traceback shows the lines of that source alone, those of its causes included.
    """
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)
    chain = TracebackException.from_exception(problem)
    for item in _list_chain(chain):
        item.stack = StackSummary.from_list([line for line in item.stack if line.filename == file])
        for frame in item.stack:
            # The author has written no function of this name.
            frame.name = "<module>" if frame.name == BODY else frame.name
    line = _find_line(problem, chain, file=file)
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return UserTraceback(
        message=_build_message(problem, chain)[:_MESSAGE_CHARACTERS_MAX],
        traceback="".join(chain.format())[-_TRACEBACK_CHARACTERS_MAX:],
        line=line,
        line_text=text[:_LINE_CHARACTERS_MAX],
    )


def _find_line(problem: BaseException, chain: TracebackException, *, file: str) -> int:
    """Return the innermost line of the source that the exception went through, else 0."""
    if isinstance(problem, SyntaxError) and problem.filename == file:
        # A syntax error is no frame: it names its place itself.
        return problem.lineno or 0
    return (chain.stack[-1].lineno or 0) if chain.stack else 0


def _build_message(problem: BaseException, chain: TracebackException) -> str:
    if isinstance(problem, SyntaxError) and problem.msg:
        return str(problem.msg)
    return str(chain)


def _list_chain(chain: TracebackException) -> list[TracebackException]:
    """List an exception and those that led to it."""
    exceptions = [chain]
    for exception in exceptions:
        if len(exceptions) < _CHAIN_MAX:
            exceptions += [
                cause for cause in (exception.__cause__, exception.__context__) if cause is not None
            ]
    for exception in exceptions[_CHAIN_MAX - 2 :]:
        exception.__cause__ = exception.__context__ = None
    return exceptions
