"""SQL text, cut into statements whose placeholders PostgreSQL understands."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

Slot = str | int

_TOKEN = re.compile(
    r"""
      (?P<line>--[^\n]*)
    | (?P<block>/\*)
    | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*")
    | (?P<dollar>\$(?:[A-Za-z_][A-Za-z_0-9]*)?\$)
    | (?P<word>[A-Za-z_\u0080-\uffff][\w$]*)
    | (?P<number>\d[\w.]*)
    | (?P<cast>::)
    | (?P<position>\$\d+)
    | (?P<named>(?<![\w\])"'.]):[A-Za-z_]\w*)
    | (?P<percent>%(?:s|%|\([A-Za-z_]\w*\)s))
    | (?P<semicolon>;)
    | (?P<space>\s+)
    """,
    re.VERBOSE | re.DOTALL,
)
_OWN_TRANSACTION = frozenset({"begin", "start", "commit", "rollback", "end", "abort"})
_OUTSIDE = re.compile(
    r"(?:vacuum\b|alter\s+system\b|(?:create|drop)\s+(?:database|tablespace)\b"
    r"|(?:create|drop)\s+subscription\b|alter\s+database\b.*?\bset\s+tablespace\b"
    r"|reindex\s+(?:\([^)]*\)\s*)?(?:database|system)\b|reindex\b.*?\bconcurrently\b"
    r"|(?:create\s+(?:unique\s+)?index|drop\s+index)\s+concurrently\b"
    r"|alter\s+table\b.*?\bdetach\s+partition\b.*?\bconcurrently\b)",
    re.IGNORECASE | re.DOTALL,
)
_CLIENT_ENDS = frozenset({"stdin", "stdout"})
_PLAIN_VERBS = frozenset(
    {"select", "insert", "update", "delete", "with", "values", "merge", "table", "begin", "commit"}
)
_WORKING_VERBS = _PLAIN_VERBS - _OWN_TRANSACTION
_STATEFUL = ("set_config", "advisory", "dblink")
# A pattern that begins with plain letters is looked for an order faster than one with a condition.
_TEMPORARY = re.compile(r"temp(?<!\wtemp)(?:orary)?\b")
_FIRST_WORD = re.compile(r"(?:\s+|--[^\n]*\n)*([A-Za-z]+)\b")


class PlaceholderError(Exception):
    """A statement asks for a parameter that `params` does not hold."""


class Statement(Struct, frozen=True, kw_only=True):
    """One statement; `slots` names the parameter behind each of `$1`, `$2`, ..."""

    text: str
    slots: tuple[Slot, ...]
    is_transaction_control: bool
    is_outside_transactions: bool
    leaves_session_state: bool
    is_client_copy: bool = False


class _Scan:
    """Walks a text once, collecting statements."""

    def __init__(self, text: str, *, style: str) -> None:
        self._text = text
        self._style = style
        self._statements: list[Statement] = []
        self._parts: list[str] = []
        self._slots: list[Slot] = []
        self._words: list[str] = []
        self._percents = 0
        self._atomic = 0

    def run(self) -> tuple[Statement, ...]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                self._parts.append(self._text[at])
                at += 1
                continue
            at = self._take(found)
        self._finish()
        return tuple(self._statements)

    def _take(self, found: re.Match[str]) -> int:
        piece, kind, end = found.group(), found.lastgroup, found.end()
        if kind in {"line", "space"}:
            self._parts.append("\n" if kind == "line" and self._style else piece)
        elif kind == "block":
            end = self._block_end(end)
            self._parts.append(self._text[found.start() : end])
        elif kind == "dollar":
            end = self._dollar_end(piece, end)
            self._parts.append(self._text[found.start() : end])
        elif kind == "semicolon" and not self._atomic:
            self._finish()
        elif kind in {"position", "named", "percent"}:
            self._parts.append(self._placeholder(piece, str(kind)))
        else:
            self._note(piece, str(kind))
            self._parts.append(piece)
        return end

    def _note(self, piece: str, kind: str) -> None:
        """Remember leading words, and the depth of `BEGIN ATOMIC ... END` bodies."""
        word = piece.lower() if kind == "word" else ""
        if (word == "atomic" and self._words and self._words[-1] == "begin") or (
            self._atomic and word == "case"
        ):
            self._atomic += 1
        elif self._atomic and word == "end":
            self._atomic -= 1
        self._words.append(word)

    def _block_end(self, at: int) -> int:
        depth = 1
        for found in re.finditer(r"/\*|\*/", self._text[at:]):
            depth += 1 if found.group() == "/*" else -1
            if not depth:
                return at + found.end()
        return len(self._text)

    def _dollar_end(self, tag: str, at: int) -> int:
        self._words.append("")
        end = self._text.find(tag, at)
        return len(self._text) if end < 0 else end + len(tag)

    def _placeholder(self, piece: str, kind: str) -> str:
        self._words.append("")
        slot: Slot
        if kind == "position" and self._style == "list":
            slot = int(piece[1:]) - 1
        elif kind == "named" and self._style == "mapping":
            slot = piece[1:]
        elif kind == "percent" and self._style:
            if piece == "%%":
                return "%"
            if (piece == "%s") != (self._style == "list"):
                return piece
            slot = self._percents if piece == "%s" else piece[2:-2]
            self._percents += 1
        else:
            return piece
        if slot not in self._slots:
            self._slots.append(slot)
        return f"${self._slots.index(slot) + 1}"

    def _finish(self) -> None:
        text = "".join(self._parts).strip()
        words = [word for word in self._words if word]
        if self._words:
            first = words[0] if words else ""
            self._statements.append(
                Statement(
                    text=text,
                    slots=tuple(self._slots),
                    is_transaction_control=first in _OWN_TRANSACTION,
                    is_outside_transactions=_OUTSIDE.match(_bare(text)) is not None,
                    leaves_session_state=first not in _PLAIN_VERBS or _is_stateful(text),
                    is_client_copy=first == "copy" and not _CLIENT_ENDS.isdisjoint(words),
                )
            )
        self._parts, self._slots, self._words = [], [], []


def _bare(text: str) -> str:
    """Drop comments in front of a statement."""
    return re.sub(r"\A(?:\s+|--[^\n]*\n|/\*.*?\*/)+", "", text, flags=re.DOTALL)


def _is_stateful(text: str) -> bool:
    """Tell whether a statement may leave something on the session, however it begins."""
    lower = text.lower()
    return any(word in lower for word in _STATEFUL) or _TEMPORARY.search(lower) is not None


@lru_cache(maxsize=512)
def statements(text: str, style: str) -> tuple[Statement, ...]:
    """Cut a text; `style` says how it names parameters: `list`, `mapping`, or "" for not at all."""
    return _Scan(text, style=style).run() if style or ";" in text else _uncut(text)


def _uncut(text: str) -> tuple[Statement, ...]:
    """Take a text with nothing to cut and nothing to fill in, as claims render it, for what it is.

    It comes once, as its values are written in it. Its first word tells all but what it leaves.
    """
    first = _FIRST_WORD.match(text)
    if first is None or first[1].lower() not in _WORKING_VERBS:
        return _Scan(text, style="").run()
    one = Statement(
        text=text.strip(),
        slots=(),
        is_transaction_control=False,
        is_outside_transactions=False,
        leaves_session_state=_is_stateful(text),
    )
    return (one,)


def style_of(params: Any) -> str:
    """Tell which placeholders a `params` value fills."""
    if type(params) is dict or isinstance(params, Mapping):
        return "mapping"
    return "" if params is None else "list"


def arguments(statement: Statement, params: Any) -> list[Any]:
    """Order the parameter values as the statement's placeholders; raises `PlaceholderError`."""
    if type(params) is dict or isinstance(params, Mapping):
        try:
            return [params[slot] for slot in statement.slots]
        except KeyError as absent:
            raise _unnamed(params, str(absent.args[0])) from absent
    if statement.slots and not isinstance(params, (list, tuple)):
        raise PlaceholderError("params must be a list or a mapping")
    return [_positional(params, int(slot)) for slot in statement.slots]


def _unnamed(params: Mapping[Slot, Any], name: str) -> PlaceholderError:
    known = ", ".join(sorted(map(str, params))) or "none"
    return PlaceholderError(f"the statement names :{name}, but params has only: {known}")


def _positional(params: Sequence[Any], index: int) -> Any:
    if index >= len(params):
        raise PlaceholderError(
            f"the statement names ${index + 1}, but params holds {len(params)} values"
        )
    return params[index]
