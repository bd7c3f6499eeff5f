"""From template text to a checked Jinja tree, and what the tree reads."""

from collections.abc import Iterable, Iterator

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.meta import TrackingCodeGenerator

from noetl_contracts import spelling
from noetl_playbook.model.language_names import SEAL
from noetl_playbook.templates import sandbox

SOURCE_CHARACTERS_MAX = 1024 * 1024
# What follows walks the tree by recursion, several calls to a level.
DEPTH_MAX = 100
NOT_AVAILABLE = "is not available"

_LITERAL_OPENS = "{{`"
_LITERAL_CLOSES = "`}}"
_FORBIDDEN = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.Block,
    nodes.Macro,
    nodes.CallBlock,
    nodes.ExtensionAttribute,
    nodes.ImportedName,
    nodes.EnvironmentAttribute,
    # What `autoescape` makes.
    nodes.EvalContextModifier,
)

_ASKING = (nodes.Filter, nodes.Test)
ASKING_NAMES = frozenset({"default", "d", "defined", "undefined"})

Key = str | int


class SyntaxProblemError(Exception):
    """A template that cannot be compiled: `E301` for its syntax, `E302` for an unknown name."""

    def __init__(self, code: str, message: str, *, line: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.line = line
        self.hint = hint
        self.others: tuple[SyntaxProblemError, ...] = ()


class TemplateTree(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed template; `value` is the expression when it is a whole-value template."""

    source: str
    root: nodes.Template
    value: nodes.Expr | None


def parse_template(source: str) -> TemplateTree:
    """Parse and check a template."""
    if len(source) > SOURCE_CHARACTERS_MAX:
        raise SyntaxProblemError(
            "E602", f"a template has at most {SOURCE_CHARACTERS_MAX} characters", line=1
        )
    text = spell_literals(source)
    root = _parse_tree(text)
    value = None
    stripped = root if text == text.strip() else _parse_tree(text.strip())
    match stripped.body:
        case [nodes.Output(nodes=[nodes.Expr() as only])] if not isinstance(
            only, nodes.TemplateData
        ):
            value = only
            root = stripped
    _check_tree(root)
    return TemplateTree(source=source, root=root, value=value)


def spell_literals(source: str) -> str:
    """Write every ``{{`text`}}`` as a string, in one pass, also where one is not closed."""
    parts: list[str] = []
    end = 0
    while True:
        opens = source.find(_LITERAL_OPENS, end)
        closes = -1 if opens < 0 else source.find(_LITERAL_CLOSES, opens + len(_LITERAL_OPENS))
        if closes < 0:
            return "".join((*parts, source[end:])) if parts else source
        text = msgspec.json.encode(source[opens + len(_LITERAL_OPENS) : closes]).decode()
        parts += [source[end:opens], "{{ " + text + " }}"]
        end = closes + len(_LITERAL_CLOSES)


def _parse_tree(source: str) -> nodes.Template:
    try:
        return sandbox.get_environment("text").parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise SyntaxProblemError(
            "E301", error.message or "not a template", line=error.lineno
        ) from error
    except RecursionError as error:
        raise SyntaxProblemError("E301", "too deeply nested", line=1) from error


def _check_tree_depth(root: nodes.Template) -> None:
    level: list[nodes.Node] = [root]
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise SyntaxProblemError("E301", "too deeply nested", line=1)


def _check_tree(root: nodes.Template) -> None:
    _check_tree_depth(root)
    problems = [
        problem for node in root.find_all(nodes.Node) if (problem := _find_fault(node)) is not None
    ]
    if problems:
        first, *others = sorted(problems, key=lambda each: each.line)
        first.others = tuple(others)
        raise first


def _find_fault(node: nodes.Node) -> SyntaxProblemError | None:
    environment = sandbox.get_environment("text")
    if isinstance(node, _FORBIDDEN) or (isinstance(node, nodes.For) and node.recursive):
        name = type(node).__name__.lower()
        return SyntaxProblemError("E301", f"'{name}' {NOT_AVAILABLE}", line=node.lineno)
    if isinstance(node, nodes.Filter) and node.name not in environment.filters:
        return _build_unknown_name_error("filter", node.name, environment.filters, node.lineno)
    if isinstance(node, nodes.Test) and node.name not in environment.tests:
        return _build_unknown_name_error("test", node.name, environment.tests, node.lineno)
    return None


def _build_unknown_name_error(
    noun: str, name: str, known_names: Iterable[str], line: int
) -> SyntaxProblemError:
    names = [known_name for known_name in known_names if known_name.isidentifier()]
    return SyntaxProblemError(
        "E302", f"unknown {noun} '{name}'", line=line, hint=spelling.suggest_word(name, names)
    )


def split_path(node: nodes.Expr) -> tuple[nodes.Expr, list[Key]]:
    """Split `a.b[0].c` into its root and the constant keys that follow."""
    keys: list[Key] = []
    while True:
        match node:
            case nodes.Getattr(node=inner, attr=name):
                keys.append(name)
            case nodes.Getitem(node=inner, arg=nodes.Const(value=str() | int() as key)) if (
                not isinstance(key, bool)
            ):
                keys.append(key)
            case _:
                return node, keys[::-1]
        node = inner


def list_names(tree: TemplateTree) -> frozenset[str]:
    """List the top-level names that a template reads from its scope."""
    if all(isinstance(node, nodes.Output) for node in tree.root.body):
        names = {node.name for node in tree.root.find_all(nodes.Name)} - sandbox.GLOBALS.keys()
    else:
        names = _list_undeclared(tree.root)
    if any(node.name == "random" for node in tree.root.find_all(nodes.Filter)):
        names.add("uuid4")
    # Also by name, as in map('encrypt_secret').
    if "encrypt_secret" in tree.source:
        names.add(SEAL)
    return frozenset(names)


def _list_undeclared(root: nodes.Template) -> set[str]:
    """Follow the scopes of statements, folding no constants."""
    generator = TrackingCodeGenerator(sandbox.get_environment("text"))
    generator.optimizer = None
    generator.visit(root)
    return generator.undeclared_identifiers


def list_asked_names(tree: TemplateTree) -> frozenset[str]:
    """List the names that a template asks for, as `x is defined` and `x | default(…)` do."""
    return frozenset(
        name.name for node in tree.root.find_all(nodes.Expr) for name in _list_asked(node)
    )


def _list_asked(node: nodes.Expr) -> Iterator[nodes.Name]:
    if isinstance(node, _ASKING) and node.name in ASKING_NAMES and node.node is not None:
        root, _ = split_path(node.node)
        if isinstance(root, nodes.Name):
            yield root


def list_paths(tree: TemplateTree, names: frozenset[str]) -> frozenset[str]:
    """List the dotted prefixes that a template reads, up to the first computed or numeric key."""
    return frozenset(path for path in _walk_paths(tree.root) if path.split(".", 1)[0] in names)


def _walk_paths(node: nodes.Node, *, is_method: bool = False) -> Iterator[str]:
    if isinstance(node, nodes.Name):
        yield node.name
        return
    if isinstance(node, nodes.Getattr | nodes.Getitem):
        root, keys = split_path(node)
        if isinstance(root, nodes.Name):
            yield _join_prefix(root.name, keys[:-1] if is_method else keys)
            return
        if root is not node:
            yield from _walk_paths(root)
            return
        if isinstance(root, nodes.Getitem):
            yield from _walk_paths(root.node)
            yield from _walk_paths(root.arg)
            return
    for child in node.iter_child_nodes():
        yield from _walk_paths(child, is_method=isinstance(node, nodes.Call) and child is node.node)


def _join_prefix(name: str, keys: list[Key]) -> str:
    parts = [name]
    for key in keys:
        if not isinstance(key, str) or "." in key or not key:
            break
        parts.append(key)
    return ".".join(parts)


def list_snippets(source: str) -> list[str]:
    """List the source of every `{{ … }}` of a template, in order."""
    snippets: list[str] = []
    current: list[str] | None = None
    for _line, token, text in sandbox.get_environment("text").lexer.tokeniter(
        spell_literals(source), None
    ):
        if token == "variable_begin":  # noqa: S105 (a token of the lexer)
            current = []
        if current is not None:
            current.append(text)
        if token == "variable_end" and current is not None:  # noqa: S105 (a token of the lexer)
            snippets.append("".join(current))
            current = None
    return snippets
