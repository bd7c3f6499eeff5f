"""An exception of user code, as the worker is told of it: its kind, its words, its own lines."""

import errno
import socket

from noetl_worker.sandbox.calling import Answer
from noetl_worker.sandbox.source import FILE
from noetl_worker.sandbox.user_traceback import read_user_traceback

_CHAIN_MAX = 8
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EACCES, errno.EPERM})


def describe(problem: BaseException, *, source: str, has_network: bool, file: str = FILE) -> Answer:
    """Turn an exception into an answer whose traceback shows the source's own lines alone."""
    found = read_user_traceback(problem, source=source, file=file)
    kind = type(problem)
    return Answer(
        exception=kind.__name__,
        bases=[one.__name__ for one in kind.__mro__],
        message=found.message,
        traceback=found.traceback,
        line=found.line,
        line_text=found.line_text,
        lacks_network=not has_network and _is_unreachable(problem),
        absent_module=_absent_module(problem),
    )


def _absent_module(problem: BaseException) -> str:
    """Return the module that an exception did not find, else nothing."""
    name = problem.name if isinstance(problem, ModuleNotFoundError) else None
    return name or ""


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
