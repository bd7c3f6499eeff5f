"""An exception of user code, as the worker is told of it: its kind, its words, its own lines."""

import errno
import linecache
import socket
from traceback import StackSummary, TracebackException

from noetl_worker.sandbox.calling import Answer
from noetl_worker.sandbox.source import FILE

_MESSAGE_CHARACTERS_MAX = 4 * 1024
_TRACEBACK_CHARACTERS_MAX = 8 * 1024
_CHAIN_MAX = 8
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EACCES, errno.EPERM})
_NO_NETWORK = (
    " (python tasks of this worker have no network: an operator can grant it with "
    "NOETL_WORKER_PYTHON_NETWORK=true)"
)


def describe(problem: BaseException, *, source: str, has_network: bool) -> Answer:
    """Turn an exception into an answer whose traceback shows the source's own lines alone."""
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    whole = TracebackException.from_exception(problem)
    for one in _chain(whole):
        one.stack = StackSummary.from_list([line for line in one.stack if line.filename == FILE])
    message = str(whole)[:_MESSAGE_CHARACTERS_MAX]
    if not has_network and _is_unreachable(problem):
        message += _NO_NETWORK
    kind = type(problem)
    return Answer(
        exception=kind.__name__,
        bases=[one.__name__ for one in kind.__mro__],
        message=message,
        traceback="".join(whole.format())[-_TRACEBACK_CHARACTERS_MAX:],
    )


def _chain(whole: TracebackException) -> list[TracebackException]:
    """List an exception and those that led to it."""
    found = [whole]
    for one in found:
        if len(found) < _CHAIN_MAX:
            found += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    for one in found[_CHAIN_MAX - 2 :]:
        one.__cause__ = one.__context__ = None
    return found


def _is_unreachable(problem: BaseException) -> bool:
    """Tell whether an exception, or one that led to it, is of a network that is not there."""
    one: BaseException | None = problem
    for _ in range(_CHAIN_MAX):
        if one is None:
            return False
        if isinstance(one, socket.gaierror):
            return True
        if isinstance(one, OSError) and one.filename is None and one.errno in _UNREACHABLE:
            return True
        one = one.__cause__ or one.__context__
    return False
