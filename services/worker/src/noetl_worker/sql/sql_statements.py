"""Splits SQL text into statements, with placeholders as `$1`, `$2`, ... and transaction needs."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct

from noetl_worker.sql.lexer import Dialect, Token, split_statements

# A name in a mapping of parameters, or an index in a list of them.
ParameterKey = str | int

_NAME = re.compile(r"[A-Za-z_]\w*")
_POSITION = re.compile(r"\$\d+")
# A character before a colon that makes it a slice or a cast, no placeholder.
_BEFORE_COLON = re.compile(r"[\w\])\"'.:]")
_CACHED_CHARACTERS_MAX = 65_536
_TRANSACTION_CONTROL_VERBS = frozenset({"begin", "start", "commit", "rollback", "end", "abort"})
# Statements that PostgreSQL refuses inside a transaction block.
_OUTSIDE_TRANSACTIONS = re.compile(
    r"(?:vacuum\b|alter\s+system\b|(?:create|drop)\s+(?:database|tablespace)\b"
    r"|(?:create|drop)\s+subscription\b|alter\s+database\b.*?\bset\s+tablespace\b"
    r"|reindex\s+(?:\([^)]*\)\s*)?(?:database|system)\b|reindex\b.*?\bconcurrently\b"
    r"|(?:create\s+(?:unique\s+)?index|drop\s+index)\s+concurrently\b"
    r"|alter\s+table\b.*?\bdetach\s+partition\b.*?\bconcurrently\b)",
    re.IGNORECASE | re.DOTALL,
)
_OUTSIDE_TRANSACTION_VERBS = frozenset({"vacuum", "alter", "create", "drop", "reindex"})
# Words by which COPY reads from the client or writes to it.
_COPY_CLIENT_STREAMS = frozenset({"stdin", "stdout"})
# Statements that by themselves leave nothing on the session.
_STATELESS_VERBS = frozenset(
    {"select", "insert", "update", "delete", "with", "values", "merge", "table", "begin", "commit"}
)
_DATA_VERBS = _STATELESS_VERBS - _TRANSACTION_CONTROL_VERBS
# Parts of function names whose calls leave state on the session.
_SESSION_STATE_WORDS = ("set_config", "advisory", "dblink")
# Begins with plain letters: `re` finds such a pattern ten times faster than one with a lookbehind.
_TEMPORARY = re.compile(r"temp(?<!\wtemp)(?:orary)?\b")
_FIRST_WORD = re.compile(r"(?:\s+|--[^\n]*\n)*([A-Za-z]+)\b")
# Longer texts are left out, not truncated: a truncated secret would pass the mask.
_STATEMENT_CHARACTERS_MAX = 2_000
_LINE_CHARACTERS_MAX = 300


class PlaceholderError(Exception):
    """A statement has a placeholder for which `params` has no value."""


class Statement(Struct, frozen=True, kw_only=True):
    """One statement; `slots` has the key in `params` (name or index) of each of `$1`, `$2`, ..."""

    text: str
    slots: tuple[ParameterKey, ...]
    is_transaction_control: bool
    is_outside_transactions: bool
    leaves_session_state: bool
    is_client_copy: bool = False


class _PlaceholderWriter:
    """Writes the placeholders of a text's statements as `$1`, `$2`, ..."""

    def __init__(self, text: str, style: str) -> None:
        self._text = text
        self._style = style
        self._tokens: list[Token] = []
        self._slots: list[ParameterKey] = []
        # `%s` counts on from one statement to the next.
        self._percents = 0

    def write_statement(
        self, start: int, end: int, tokens: list[Token]
    ) -> tuple[str, tuple[ParameterKey, ...]]:
        """Return the statement between two offsets, and the keys of its parameters."""
        if not self._style:
            return self._text[start:end].strip(), ()
        self._tokens, self._slots = tokens, []
        parts: list[str] = []
        index = 0
        while index < len(self._tokens):
            token = self._tokens[index]
            count, piece = self._write_placeholder(index)
            if count:
                last = self._tokens[index + count - 1]
                parts += (self._text[start : token.start], piece)
                start = last.end
            index += count or 1
        parts.append(self._text[start:end])
        return "".join(parts).strip(), tuple(self._slots)

    def _write_placeholder(self, index: int) -> tuple[int, str]:
        """Return how many tokens a placeholder has (0: it is none), and their replacement."""
        token = self._tokens[index]
        if token.word and token.raw[0] == "$":
            if self._style != "list" or not _POSITION.fullmatch(token.raw):
                return 0, ""
            return 1, self._write_slot(int(token.raw[1:]) - 1)
        if token.raw == ":" and self._style == "mapping":
            return self._write_named(index)
        return self._write_percent(index) if token.raw == "%" else (0, "")

    def _write_named(self, index: int) -> tuple[int, str]:
        (word,) = self._list_adjacent_tokens(index, 1) or ("",)
        at = self._tokens[index].start
        if not _NAME.fullmatch(word) or (at and _BEFORE_COLON.match(self._text, at - 1)):
            return 0, ""
        return 2, self._write_slot(word)

    def _write_percent(self, index: int) -> tuple[int, str]:
        following = self._list_adjacent_tokens(index, 1)
        if following == ["%"]:
            return 2, "%"
        if self._style == "list":
            if following != ["s"]:
                return 0, ""
            self._percents += 1
            return 2, self._write_slot(self._percents - 1)
        match self._list_adjacent_tokens(index, 4):
            case ["(", name, ")", "s"] if _NAME.fullmatch(name):
                return 5, self._write_slot(name)
        return 0, ""

    def _list_adjacent_tokens(self, index: int, count: int) -> list[str]:
        """Return the tokens that follow a token without a gap."""
        adjacent_tokens: list[str] = []
        for before, token in pairwise(self._tokens[index : index + count + 1]):
            if before.end != token.start:
                break
            adjacent_tokens.append(token.raw)
        return adjacent_tokens

    def _write_slot(self, slot: ParameterKey) -> str:
        if slot not in self._slots:
            self._slots.append(slot)
        return f"${self._slots.index(slot) + 1}"


def _build_statement(piece: str, slots: tuple[ParameterKey, ...], tokens: list[Token]) -> Statement:
    words = [token.word for token in tokens if token.word]
    first = words[0] if words else ""
    return Statement(
        text=piece,
        slots=slots,
        is_transaction_control=first in _TRANSACTION_CONTROL_VERBS,
        is_outside_transactions=first in _OUTSIDE_TRANSACTION_VERBS
        and _is_outside_transactions(tokens),
        leaves_session_state=first not in _STATELESS_VERBS or _leaves_session_state(piece),
        is_client_copy=first == "copy" and not _COPY_CLIENT_STREAMS.isdisjoint(words),
    )


def _is_outside_transactions(tokens: list[Token]) -> bool:
    """Return whether PostgreSQL refuses a statement inside a transaction block."""
    return (
        _OUTSIDE_TRANSACTIONS.match(" ".join(token.word or token.raw for token in tokens))
        is not None
    )


def _leaves_session_state(text: str) -> bool:
    """Return whether a statement may leave state on the session, by the functions that it calls."""
    lower = text.lower()
    return (
        any(word in lower for word in _SESSION_STATE_WORDS) or _TEMPORARY.search(lower) is not None
    )


def cut_statements(text: str, style: str, dialect: Dialect = "postgres") -> tuple[Statement, ...]:
    """Split a text into statements; `style` is `list` or `mapping`, "" for no parameters.

    Raises `ToolFailure` with the line for a text that cannot be split with certainty.
    """
    if len(text) > _CACHED_CHARACTERS_MAX:
        return _cut_without_cache(text, style, dialect)
    return _cut_with_cache(text, style, dialect)


def _cut_without_cache(text: str, style: str, dialect: Dialect) -> tuple[Statement, ...]:
    statement = _build_single_statement(text) if not style and ";" not in text else None
    if statement is not None:
        return (statement,)
    placeholders = _PlaceholderWriter(text, style)
    return tuple(
        _build_statement(*placeholders.write_statement(start, end, tokens), tokens)
        for start, end, tokens in split_statements(text, dialect)
    )


_cut_with_cache = lru_cache(maxsize=512)(_cut_without_cache)


def _build_single_statement(text: str) -> Statement | None:
    """Return a text without parameters and semicolons as one statement, without parsing it.

    Rendered claims are such texts. None when the first word does not decide how it must run.
    """
    first = _FIRST_WORD.match(text)
    if first is None or first[1].lower() not in _DATA_VERBS:
        return None
    return Statement(
        text=text.strip(),
        slots=(),
        is_transaction_control=False,
        is_outside_transactions=False,
        leaves_session_state=_leaves_session_state(text),
    )


def get_placeholder_style(params: Any) -> str:
    """Return the placeholder style of a `params` value."""
    if type(params) is dict or isinstance(params, Mapping):
        return "mapping"
    return "" if params is None else "list"


def order_arguments(statement: Statement, params: Any) -> list[Any]:
    """Order the parameter values as the statement's placeholders; raises `PlaceholderError`."""
    if type(params) is dict or isinstance(params, Mapping):
        try:
            return [params[slot] for slot in statement.slots]
        except KeyError as missing_slot:
            raise _build_missing_name_error(params, str(missing_slot.args[0])) from missing_slot
    if statement.slots and not isinstance(params, (list, tuple)):
        raise PlaceholderError("params must be a list or a mapping")
    return [_get_positional(params, int(slot)) for slot in statement.slots]


def _build_missing_name_error(params: Mapping[ParameterKey, Any], name: str) -> PlaceholderError:
    known_names = ", ".join(sorted(map(str, params))) or "none"
    return PlaceholderError(f"the statement names :{name}, but params has only: {known_names}")


def _get_positional(params: Sequence[Any], index: int) -> Any:
    if index >= len(params):
        raise PlaceholderError(
            f"the statement names ${index + 1}, but params holds {len(params)} values"
        )
    return params[index]


def describe_fault_place(statement: str, position: int | None) -> dict[str, Any]:
    """Return the statement's text, and the line and column of a character that counts from 1.

    A text or line that is too long is left out.
    """
    place: dict[str, Any] = {}
    if 0 < len(statement) <= _STATEMENT_CHARACTERS_MAX:
        place["statement_text"] = statement.strip()
    if position is None or not 0 < position <= len(statement):
        return place
    before = statement[: position - 1]
    place["line"] = before.count("\n") + 1
    place["column"] = len(before) - (before.rfind("\n") + 1) + 1
    line_text = statement.splitlines()[place["line"] - 1].strip()
    if len(line_text) <= _LINE_CHARACTERS_MAX:
        place["line_text"] = line_text
    return place
