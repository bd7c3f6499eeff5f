"""SQL text as tokens, as the engine that runs it would read them."""

import importlib
import re
from functools import cache
from typing import Any, Literal, NoReturn

from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure, failure

Dialect = Literal["postgres", "duckdb", "spark"]

# A dollar that opens no dollar quote begins a placeholder: the tokenizer would take `$1,$` for a
# tag. `{#` is a comment of templates for it, in every dialect. Both are hidden by one letter, so
# that every place in the text stays where it is.
_HIDDEN = re.compile(r"(?<![\w$])\$(?!(?:[^\W\d]\w*)?\$)|(?<=\{)#")
# The library tells the place of a quote that does not end in words only.
_TOLD_START = re.compile(r"from \d+:(\d+)$")
_COMMENT = re.compile(r"--|/\*|\*/")
_LINE_END = re.compile(r"[\r\n]")


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
        found = dialects.reader(dialect).read(_HIDDEN.sub("_", text))
    except dialects.TokenError as problem:
        _refuse_open(text, dialect, problem)
    tokens: list[Token] = []
    end, before = 0, None
    for one in found:
        if one.start - end > 1:
            _check_comments(text, end, one.start, dialect)
        if before is not None and dialects.is_continued(before, one):
            _check_continued(text, end, one.start, one.end, dialect)
        before, end = one, one.end + 1
        raw = text[one.start : end]
        tokens.append(Token(one.start, end, raw, raw.lower() if dialects.is_word(one) else ""))
    _check_comments(text, end, len(text), dialect)
    return tokens


@cache
def load_dialects() -> Any:
    """Load the library: it takes half a second, which a process spends once and when it must."""
    return importlib.import_module("noetl_worker.domain.sql_dialects")


def is_loaded() -> bool:
    """Tell whether texts are read without a wait for the library."""
    return load_dialects.cache_info().currsize > 0


def refuse(text: str, at: int, reason: str, dialect: Dialect) -> NoReturn:
    """Raise the `ToolFailure` of a text that cannot be cut with certainty."""
    line = text.count("\n", 0, at) + 1
    raise ToolFailure(failure("validation", f"SQL text, line {line}: {reason}", source=dialect))


def _refuse_open(text: str, dialect: Dialect, problem: Exception) -> NoReturn:
    """Raise the `ToolFailure` of a text in which something quoted does not end."""
    told = _TOLD_START.search(str(problem.__cause__ or problem))
    at = int(told[1]) if told else max(0, text.rfind("/*"))
    reason = "a quote or comment that begins here does not end"
    if dialect == "postgres" and re.search(r"\bfrom\s+stdin\b", text[:at], re.IGNORECASE):
        reason += ". Rows of COPY FROM STDIN cannot stand in the text: use kind transfer"
    refuse(text, at, reason, dialect)


def _check_comments(text: str, start: int, end: int, dialect: Dialect) -> None:
    """Refuse a comment that does not end, or that ends elsewhere for Spark."""
    at, depth = start, 0
    while found := _COMMENT.search(text, at, end):
        at = found.end()
        if found[0] == "--" and not depth:
            at = _line_end(text, at, end)
            if dialect == "spark" and text[at - 1] == "\\":
                reason = (
                    "Spark goes on with a comment behind a backslash at the end of its line: "
                    "take the backslash away"
                )
                refuse(text, found.start(), reason, dialect)
        elif found[0] != "--":
            depth += 1 if found[0] == "/*" else -1
    if depth:
        refuse(text, start, "a comment that begins here does not end", dialect)


def _line_end(text: str, at: int, end: int) -> int:
    found = _LINE_END.search(text, at, end)
    return found.start() if found else end


def _check_continued(text: str, start: int, at: int, end: int, dialect: Dialect) -> None:
    """Refuse a string that goes on in the next line by the rules of its escaped beginning."""
    if "\n" in text[start:at] and "\\" in text[at:end]:
        reason = "a string that goes on in another line holds a backslash: write it in one piece"
        refuse(text, at, reason, dialect)
