"""What is wrong with a document, where, and what to write instead."""

from enum import StrEnum
from typing import assert_never

import msgspec

from noetl_playbook.code_table import CODES
from noetl_playbook.codes import Weight

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


class Place(msgspec.Struct, frozen=True, kw_only=True):
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


def severity_of(code: str, level: Level) -> Severity | None:
    """Tell how a check weighs at a level; `None` when it says nothing there."""
    match CODES[code].weight:
        case Weight.ERROR:
            return Severity.ERROR
        case Weight.STRICT_ERROR:
            return Severity.ERROR if level is Level.STRICT else Severity.WARNING
        case Weight.WARNING:
            return Severity.WARNING
        case Weight.STRICT_WARNING:
            return Severity.WARNING if level is Level.STRICT else None
        case _ as never:
            assert_never(never)


def path_text(path: Path) -> str:
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


def text_form(problem: Problem, *, file: str) -> str:
    """Write a problem as one line for people."""
    where = f"{file}:{problem.line}:{problem.column}: {problem.severity} {problem.code}"
    subject = f" {problem.path}" if problem.path else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"{where}{subject}: {problem.message}{hint}"
