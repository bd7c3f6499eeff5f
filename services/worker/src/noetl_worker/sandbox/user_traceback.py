"""The part of an exception that its author can read: message, own lines, own traceback."""

import linecache
from traceback import StackSummary, TracebackException

from msgspec import Struct

from noetl_worker.sandbox.source import BODY

# The worker masks secrets and then keeps less: a secret that is cut here does not reach its part.
_MESSAGE_CHARACTERS_MAX = 8 * 1024
_TRACEBACK_CHARACTERS_MAX = 16 * 1024
_LINE_CHARACTERS_MAX = 2 * 1024
_CHAIN_MAX = 8


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
    whole = TracebackException.from_exception(problem)
    for one in _chain(whole):
        one.stack = StackSummary.from_list([line for line in one.stack if line.filename == file])
        for frame in one.stack:
            # The author has written no function of this name.
            frame.name = "<module>" if frame.name == BODY else frame.name
    line = _line_of(problem, whole, file=file)
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return UserTraceback(
        message=_message_of(problem, whole)[:_MESSAGE_CHARACTERS_MAX],
        traceback="".join(whole.format())[-_TRACEBACK_CHARACTERS_MAX:],
        line=line,
        line_text=text[:_LINE_CHARACTERS_MAX],
    )


def _line_of(problem: BaseException, whole: TracebackException, *, file: str) -> int:
    """Return the innermost line of the source that the exception went through, else 0."""
    if isinstance(problem, SyntaxError) and problem.filename == file:
        # A syntax error is no frame: it names its place itself.
        return problem.lineno or 0
    return (whole.stack[-1].lineno or 0) if whole.stack else 0


def _message_of(problem: BaseException, whole: TracebackException) -> str:
    if isinstance(problem, SyntaxError) and problem.msg:
        return str(problem.msg)
    return str(whole)


def _chain(whole: TracebackException) -> list[TracebackException]:
    """List an exception and those that led to it."""
    found = [whole]
    for one in found:
        if len(found) < _CHAIN_MAX:
            found += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    for one in found[_CHAIN_MAX - 2 :]:
        one.__cause__ = one.__context__ = None
    return found
