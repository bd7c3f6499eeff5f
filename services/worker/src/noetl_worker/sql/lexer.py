"""Tokens of SQL text in the dialect of its engine, and the statements that they make."""

import importlib
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Literal, NoReturn

from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure, build_error

Dialect = Literal["postgres", "duckdb", "spark"]

# A dollar that opens no dollar quote begins a placeholder: the tokenizer would take `$1,$` for a
# tag. `{#` is a comment of templates for it, in every dialect. Both are hidden by one letter, so
# that every place in the text stays where it is.
_HIDDEN = re.compile(r"(?<![\w$])\$(?!(?:[^\W\d]\w*)?\$)|(?<=\{)#")
# The library tells the place of a quote that does not end in words only.
_TOLD_START = re.compile(r"from \d+:(\d+)$")
_COMMENT = re.compile(r"--|/\*|\*/")
_LINE_END = re.compile(r"[\r\n]")
_CLOSERS = {")": "(", "]": "[", "}": "{"}
_ROUTINE = frozenset({"function", "procedure"})
# Blocks of Spark's scripts that end with their own word behind `END`.
_NAMED_ENDS = frozenset({"if", "while", "loop", "repeat", "for"})
_BEFORE_LABEL = frozenset({"as", "."})
_TEMPORARY = frozenset({"temp", "temporary"})


class Token(Struct, frozen=True):
    """A word, a mark, or something quoted; `word` is the word in small letters, or ""."""

    start: int
    end: int
    raw: str
    word: str = ""


def read_tokens(text: str, dialect: Dialect) -> list[Token]:
    """Return the tokens of a text, comments left out; raises `ToolFailure` with the line."""
    dialects = load_dialects()
    try:
        reading = dialects.reader(dialect).read(_HIDDEN.sub("_", text))
    except dialects.TokenError as problem:
        _refuse_unclosed_quote(text, dialect, problem)
    tokens: list[Token] = []
    end, before = 0, None
    for item in reading:
        if item.start - end > 1:
            _check_comments(text, end, item.start, dialect)
        if before is not None and dialects.is_continued(before, item):
            _check_continued_string(text, end, item.start, item.end, dialect)
        before, end = item, item.end + 1
        raw = text[item.start : end]
        tokens.append(Token(item.start, end, raw, raw.lower() if dialects.is_word(item) else ""))
    _check_comments(text, end, len(text), dialect)
    return tokens


@cache
def load_dialects() -> Any:
    """Load the library: it takes half a second, which a process spends once and when it must."""
    return importlib.import_module("noetl_worker.sql.dialects")


def is_dialects_loaded() -> bool:
    """Tell whether texts are read without a wait for the library."""
    return load_dialects.cache_info().currsize > 0


def refuse_text(text: str, at: int, reason: str, dialect: Dialect) -> NoReturn:
    """Raise the `ToolFailure` of a text that cannot be cut with certainty."""
    line = text.count("\n", 0, at) + 1
    raise ToolFailure(build_error("validation", f"SQL text, line {line}: {reason}", source=dialect))


def _refuse_unclosed_quote(text: str, dialect: Dialect, problem: Exception) -> NoReturn:
    """Raise the `ToolFailure` of a text in which something quoted does not end."""
    match = _TOLD_START.search(str(problem.__cause__ or problem))
    at = int(match[1]) if match else max(0, text.rfind("/*"))
    reason = "a quote or comment that begins here does not end"
    if dialect == "postgres" and re.search(r"\bfrom\s+stdin\b", text[:at], re.IGNORECASE):
        reason += ". Rows of COPY FROM STDIN cannot stand in the text: use kind transfer"
    refuse_text(text, at, reason, dialect)


def _check_comments(text: str, start: int, end: int, dialect: Dialect) -> None:
    """Refuse a comment that does not end, or that ends elsewhere for Spark."""
    at, depth = start, 0
    while match := _COMMENT.search(text, at, end):
        at = match.end()
        if match[0] == "--" and not depth:
            at = _find_line_end(text, at, end)
            if dialect == "spark" and text[at - 1] == "\\":
                reason = (
                    "Spark goes on with a comment behind a backslash at the end of its line: "
                    "take the backslash away"
                )
                refuse_text(text, match.start(), reason, dialect)
        elif match[0] != "--":
            depth += 1 if match[0] == "/*" else -1
    if depth:
        refuse_text(text, start, "a comment that begins here does not end", dialect)


def _find_line_end(text: str, at: int, end: int) -> int:
    match = _LINE_END.search(text, at, end)
    return match.start() if match else end


def _check_continued_string(text: str, start: int, at: int, end: int, dialect: Dialect) -> None:
    """Refuse a string that goes on in the next line by the rules of its escaped beginning."""
    if "\n" in text[start:at] and "\\" in text[at:end]:
        reason = "a string that goes on in another line holds a backslash: write it in one piece"
        refuse_text(text, at, reason, dialect)


class _StatementNesting:
    """The brackets and bodies of one statement that are open, in which no semicolon ends it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.tokens: list[Token] = []
        self._brackets: list[Token] = []
        self._bodies: list[Token] = []

    @property
    def open_token(self) -> Token | None:
        """The token that opened what is still open, None when a semicolon ends the statement."""
        if self._brackets:
            return self._brackets[-1]
        return self._bodies[-1] if self._bodies else None

    def add_token(self, token: Token, following: Token | None) -> bool:
        """Take the next token; False when it closes a bracket that is not open."""
        if token.raw in {"(", "[", "{"}:
            self._brackets.append(token)
        elif token.raw in _CLOSERS:
            if not self._brackets or self._brackets.pop().raw != _CLOSERS[token.raw]:
                return False
        elif token.word and not self._brackets:
            self._note_word(token, following)
        self.tokens.append(token)
        return True

    def _note_word(self, token: Token, following: Token | None) -> None:
        before = self.tokens[-1].raw.lower() if self.tokens else ""
        if before in _BEFORE_LABEL:
            return
        is_body = token.word == "begin" and self._opens_body(following)
        if is_body or (self._bodies and token.word == "case" and before != "end"):
            self._bodies.append(token)
        elif self._bodies and token.word == "end" and not self._is_named_end(following):
            self._bodies.pop()

    def _opens_body(self, following: Token | None) -> bool:
        if self._dialect == "spark":
            # A script, perhaps with a label; within it every `BEGIN` opens a block.
            is_labelled = [token.raw for token in self.tokens[1:]] == [":"]
            return bool(self._bodies) or not self.tokens or is_labelled
        if self._dialect == "duckdb" or following is None or following.word != "atomic":
            return False
        words = [token.word for token in self.tokens[:4]]
        return words[:1] == ["create"] and not _ROUTINE.isdisjoint(words[1:])

    def _is_named_end(self, following: Token | None) -> bool:
        is_script = self._dialect == "spark"
        return is_script and following is not None and following.word in _NAMED_ENDS


def split_statements(text: str, dialect: Dialect) -> Iterator[tuple[int, int, list[Token]]]:
    """Yield start, end and tokens of each statement that is not empty.

    What cannot be cut with certainty raises `ToolFailure` with its line.
    """
    tokens = read_tokens(text, dialect)
    start = 0
    nesting = _StatementNesting(dialect)
    for index, token in enumerate(tokens):
        if token.raw == ";" and nesting.open_token is None:
            if nesting.tokens:
                yield start, token.start, nesting.tokens
            start, nesting = token.end, _StatementNesting(dialect)
            continue
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        if not nesting.add_token(token, following):
            refuse_text(text, token.start, f"'{token.raw}' closes nothing that is open", dialect)
    if nesting.open_token is not None:
        token = nesting.open_token
        refuse_text(text, token.start, f"'{token.raw}' is not closed", dialect)
    if nesting.tokens:
        yield start, len(text), nesting.tokens


@lru_cache(maxsize=64)
def cut_spark_statements(text: str) -> tuple[str, ...]:
    """Return the statements of a text; raises `ToolFailure` where it cannot be cut."""
    return tuple(text[start:end].strip() for start, end, _ in split_statements(text, "spark"))


def parse_temporary_view(statement: str) -> tuple[str, str] | None:
    """Return the name and the query of a temporary view, None for another statement.

    Views are made of their queries: Spark's own statement takes no parameters.
    """
    tokens = read_tokens(statement, "spark")
    words = [token.word for token in tokens]
    at = 3 if words[1:3] == ["or", "replace"] else 1
    if words[:1] != ["create"] or words[at + 1 : at + 2] != ["view"] or words[at] not in _TEMPORARY:
        return None
    match tokens[at + 2 : at + 4]:
        case [name, keyword] if keyword.word == "as":
            quoted = name.raw[1:-1].replace("``", "`") if name.raw.startswith("`") else ""
            known_names = quoted or (name.word and name.raw)
            return (known_names, statement[keyword.end :]) if known_names else None
    return None
