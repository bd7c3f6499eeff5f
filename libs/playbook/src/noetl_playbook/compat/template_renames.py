"""Renames what a template reads, on its tokens and its tree, never inside text."""

from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes

from noetl_playbook.model import language_names
from noetl_playbook.model.coercion import is_template
from noetl_playbook.source.problems import write_scalar
from noetl_playbook.templates import syntax
from noetl_playbook.templates.sandbox import get_environment
from noetl_playbook.templates.syntax import SyntaxProblemError

_ADJACENT = frozenset({"whitespace", "comment"})
_BINDS_TIGHTER = frozenset({"~", "+", "-", "*", "/", "//", "%", "**", ".", "[", "(", "|"})

Token = tuple[int, str, str]


class NotAnExpressionError(Exception):
    """A text template stands where one expression is needed."""


def rename_names(source: str, to: Mapping[str, str]) -> str:
    """Replace free names of a template by expressions; what cannot be parsed stays as it is.

    `a.b` stands for that attribute of a name. A name that the template itself binds, with `set`
    or `for`, is left alone everywhere.
    """
    if not is_template(source) or not any(name in source for name in to):
        return source
    try:
        tokens: list[Token] = list(
            get_environment("text").lexer.tokeniter(syntax.spell_literals(source), None)
        )
        free = _find_free_tokens(tokens, to)
    except (jinja2.TemplateSyntaxError, RecursionError):
        return source
    if not free:
        return source
    parts: list[str] = []
    skip_until = 0
    for position, (_, _, text) in enumerate(tokens):
        if position < skip_until:
            continue
        attribute = "".join(token[2] for token in tokens[position : position + 3])
        if position not in free:
            parts.append(text)
        elif attribute in to:
            parts.append(to[attribute])
            skip_until = position + 3
        else:
            parts.append(to[text])
    return "".join(parts)


def rename_names_within(value: Any, to: Mapping[str, str]) -> Any:
    """Replace free names in every template of a value; keys stay."""
    if isinstance(value, str):
        return rename_names(value, to)
    if isinstance(value, dict):
        return {key: rename_names_within(item, to) for key, item in value.items()}
    if isinstance(value, list):
        return [rename_names_within(item, to) for item in value]
    return value


def rename_in_condition(source: str, to: Mapping[str, str]) -> str:
    """Replace free names of a condition, which may be a bare expression."""
    return rename_names(wrap_in_braces(source), to)


def _find_free_tokens(tokens: list[Token], to: Mapping[str, str]) -> set[int]:
    """Find the tokens that read a name from outside the template."""
    marks = {
        position: f"_{position}_{text}"
        for position, (_, kind, text) in enumerate(tokens)
        if kind == "name" and text in to
    }
    if not marks:
        return set()
    marked = "".join(marks.get(position, token[2]) for position, token in enumerate(tokens))
    loaded_names: set[str] = set()
    assigned_names: set[str] = set()
    for node in get_environment("text").parse(marked).find_all(nodes.Name):
        (loaded_names if node.ctx == "load" else assigned_names).add(node.name)
    hidden = {tokens[position][2] for position, mark in marks.items() if mark in assigned_names}
    return {
        position
        for position, mark in marks.items()
        if mark in loaded_names and tokens[position][2] not in hidden
    }


def settle_event(source: str, *, name: str, equal: frozenset[str], step: str) -> str:
    """Settle what a template asks about `event`, whose name is known.

    Comparisons of `event.name` with text become true or false; any other use sees a mapping.
    """
    if "event" not in source:
        return source
    try:
        tokens = list(get_environment("text").lexer.tokeniter(syntax.spell_literals(source), None))
        free = _find_free_tokens(tokens, {"event": ""})
    except (jinja2.TemplateSyntaxError, RecursionError):
        return source
    event_literal = write_literal({"name": name, "step": step})
    parts: list[str] = []
    skip_until = 0
    for position, (_, _, text) in enumerate(tokens):
        if position < skip_until:
            continue
        if position not in free:
            parts.append(text)
            continue
        verdict, skip_until = _settle_comparison(tokens, position, equal)
        parts.append(event_literal if verdict is None else verdict)
    return "".join(parts)


def _settle_comparison(
    tokens: list[Token], position: int, equal: frozenset[str]
) -> tuple[str | None, int]:
    """Judge `event.name == 'x'` that begins at a token; also tell where it ends."""
    places = [i for i in range(position, len(tokens)) if tokens[i][1] not in _ADJACENT][:6]
    texts = [tokens[i][2] for i in places]
    match texts[1:]:
        case [".", "name", "==" | "!=" as operator, literal, following] if literal[0] in "'\"":
            if following in _BINDS_TIGHTER:
                return None, position + 1
            is_equal = (literal[1:-1] in equal) == (operator == "==")
            return ("true" if is_equal else "false"), places[4] + 1
        case _:
            return None, position + 1


def wrap_in_braces(source: str) -> str:
    """Write a condition as a template."""
    return source if is_template(source) else "{{ " + source.strip() + " }}"


def extract_expression(source: str) -> str:
    """Give the one expression of a template; raises `NotAnExpressionError`."""
    try:
        tree = syntax.parse_template(source)
    except SyntaxProblemError as error:
        raise NotAnExpressionError(error.message) from error
    if tree.value is None:
        raise NotAnExpressionError("the template is text around expressions")
    (snippet,) = syntax.list_snippets(source)
    return _strip_braces(snippet)


def _strip_braces(snippet: str) -> str:
    text = snippet.strip().removeprefix("{{").removesuffix("}}")
    # The sign beside a brace controls white space; it is not part of the expression.
    return text[text[:1] in {"-", "+"} : len(text) - (text[-1:] == "-")].strip()


def extract_condition(value: Any) -> str:
    """Give a condition's expression; nothing is true. Raises `NotAnExpressionError`."""
    if value is None or isinstance(value, bool):
        return "false" if value is False else "true"
    if not isinstance(value, str):
        raise NotAnExpressionError("a condition is text or true or false")
    return extract_expression(wrap_in_braces(value))


def write_literal(value: Any) -> str:
    """Write a value with its templates as one expression; raises `NotAnExpressionError`."""
    if isinstance(value, dict):
        items = (f"{write_scalar(key)}: {write_literal(value[key])}" for key in value)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(write_literal(item) for item in value) + "]"
    if is_template(value):
        return _write_template_literal(value)
    return "none" if value is None else write_scalar(value)


def _write_template_literal(source: str) -> str:
    try:
        tree = syntax.parse_template(source)
    except SyntaxProblemError as error:
        raise NotAnExpressionError(error.message) from error
    if tree.value is not None:
        return extract_expression(source)
    snippets = iter(syntax.list_snippets(source))
    parts: list[str] = []
    for statement in tree.root.body:
        if not isinstance(statement, nodes.Output):
            raise NotAnExpressionError("the template has statements")
        for node in statement.nodes:
            if isinstance(node, nodes.TemplateData):
                parts.append(write_scalar(node.data))
            else:
                parts.append(f"({_strip_braces(next(snippets))})")
    return " ~ ".join(parts)


def quote_word(text: str) -> str:
    """Write a word as a string of an expression."""
    return f"'{text}'" if text.isprintable() and not {"'", "\\"} & set(text) else write_scalar(text)


def write_reference(name: str, path: str = "") -> str:
    """Write how a template reads a task's result, and what a dotted path leads to in it."""
    is_free = language_names.is_identifier(name) and name not in language_names.FIXED_NAMES
    return append_path(name if is_free else f"results[{write_scalar(name)}]", path)


def append_path(root: str, path: str) -> str:
    """Write a dotted path with `[i]` below an expression."""
    for part in path.removeprefix("$").replace("[", ".[").split("."):
        if language_names.is_identifier(part):
            root += f".{part}"
        elif part.startswith("[") and _is_index(part[1:-1]):
            root += part
        elif _is_index(part):
            root += f"[{part}]"
        elif part:
            root += f"[{write_scalar(part)}]"
    return root


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit()


def append_key(root: str, key: str) -> str:
    """Write one key of a mapping below an expression."""
    if language_names.is_identifier(key):
        return f"{root}.{key}"
    return f"{root}[{write_scalar(key)}]"


def list_texts(*values: Any) -> Iterator[str]:
    """List every text inside values."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from list_texts(*value.values())
        elif isinstance(value, list):
            yield from list_texts(*value)


def list_reads(source: Any) -> tuple[frozenset[str], frozenset[str]]:
    """List the names and the dotted paths that a condition reads; none if it is no template."""
    if not isinstance(source, str):
        return frozenset(), frozenset()
    try:
        tree = syntax.parse_template(wrap_in_braces(source))
    except SyntaxProblemError:
        return frozenset(), frozenset()
    names = syntax.list_names(tree)
    return names, syntax.list_paths(tree, names)
