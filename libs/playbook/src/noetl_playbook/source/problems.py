"""What is wrong with a document, where, and what to write instead."""

import re
from enum import StrEnum
from typing import Any, assert_never

import msgspec

from noetl_playbook.source.code_table import CODES, CodeWeight

Segment = str | int
Path = tuple[Segment, ...]


class Level(StrEnum):
    """How strictly a document is judged."""

    TOLERANT = "tolerant"
    STRICT = "strict"


class Severity(StrEnum):
    """Whether a problem refuses the document."""

    ERROR = "error"
    WARNING = "warning"


class TextPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A 1-based position in the submitted text; a block scalar's content starts a line later.

    `line_end` is the last line of a scalar that spans several.
    """

    line: int
    column: int
    is_block: bool = False
    line_end: int = 0


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnostic, as registration and lint report it."""

    code: str
    severity: Severity
    level: Level
    path: str
    line: int
    column: int
    message: str
    step: str | None = None
    hint: str | None = None
    replacement: str | None = None

    @property
    def is_error(self) -> bool:
        """Whether this problem refuses the document."""
        return self.severity is Severity.ERROR


def find_severity(code: str, level: Level) -> Severity | None:
    """Tell how a check weighs at a level; `None` when it says nothing there."""
    match CODES[code].weight:
        case CodeWeight.ERROR:
            return Severity.ERROR
        case CodeWeight.STRICT_ERROR:
            return Severity.ERROR if level is Level.STRICT else Severity.WARNING
        case CodeWeight.WARNING:
            return Severity.WARNING
        case CodeWeight.STRICT_WARNING:
            return Severity.WARNING if level is Level.STRICT else None
        case _ as never:
            assert_never(never)


def format_path(path: Path) -> str:
    """Write a path as `workflow[3].next.arcs[0].step`."""
    parts: list[str] = []
    for segment in path:
        if isinstance(segment, int):
            parts.append(f"[{segment}]")
        elif segment.replace("-", "_").isidentifier():
            parts.append(f".{segment}" if parts else segment)
        else:
            parts.append(f'["{segment}"]')
    return "".join(parts)


def format_problem(problem: Problem, *, file: str) -> str:
    """Write a problem as one line for people."""
    place_text = f"{file}:{problem.line}:{problem.column}: {problem.severity} {problem.code}"
    subject = f" {problem.path}" if problem.path else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"{place_text}{subject}: {problem.message}{hint}"


CHARACTERS_MAX = 8_000

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_YAML_LITERALS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def write_fragment(key: str, value: Any) -> str:
    """Write `key: value` in flow style; what is too long to show is cut to its key."""
    text = f"{_write_text(key)}: {write_flow(value)}"
    return text if len(text) <= CHARACTERS_MAX else f"{_write_text(key)}: …"


def write_flow(value: Any) -> str:
    """Write a value of JSON types as YAML on one line."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_write_text(key)}: {write_flow(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(write_flow(item) for item in value) + "]"
    return _write_text(value) if isinstance(value, str) else write_scalar(value)


def write_scalar(value: Any) -> str:
    """Write a scalar as JSON; a whole number of any size is written whole."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return msgspec.json.encode(value).decode()


def _write_text(text: str) -> str:
    if _PLAIN.match(text) and text.lower() not in _YAML_LITERALS:
        return text
    return write_scalar(text)


def nest_value(path: tuple[str, ...], value: Any) -> Any:
    """Put a value under keys, outermost first."""
    for key in reversed(path):
        value = {key: value}
    return value
