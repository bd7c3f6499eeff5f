"""Builds errors of tasks: their kind, code, and whether a retry may help."""

import errno
from collections.abc import Iterable
from typing import Any

from noetl_contracts.errors import ErrorObject, get_error_code
from noetl_contracts.json_values import list_repeated_names
from noetl_worker.domain.text_values import shorten_text

_RETRYABLE = frozenset(
    {
        "connection",
        "timeout",
        "rate_limit",
        "server_error",
        "db_connection",
        "db_deadlock",
        "db_timeout",
        "storage_access",
        "reference_not_available",
        "container_start",
        "container_evicted",
        "file_conflict",
        "internal",
    }
)
_RETRYABLE_CLIENT_STATUS = frozenset({408, 425})
_STATUS_RATE_LIMIT = 429
_STATUS_NOT_FOUND = 404
_STATUS_AUTH = frozenset({401, 403})
_STATUS_SERVER = 500
_DEADLOCKS = frozenset({"40001", "40P01", "55P03"})
_DB_CANCELLED = "57014"
_UNIQUE_VIOLATION = "23505"
# What a file system says again however often it is asked.
_LASTING = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.EISDIR, errno.ENOTDIR),
        *(errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
    }
)
_MESSAGE_CHARACTERS_MAX = 2 * 1024
_LINE_CHARACTERS_MAX = 200
_TRACEBACK_CHARACTERS_MAX = 4 * 1024


class ToolFailure(Exception):  # noqa: N818 - it carries an outcome, it is not one of the errors
    """Ends an attempt early with an error."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


def build_error(kind: str, message: str, **fields: Any) -> ErrorObject:
    """Build an error of a kind; its code and retryability follow from the kind."""
    return ErrorObject(
        kind=kind,
        message=message,
        retryable=fields.pop("retryable", kind in _RETRYABLE),
        code=fields.pop("code", None) or get_error_code(kind),
        **fields,
    )


def format_problem(problem: Exception) -> str:
    """Write an exception with what was noted of the server that it is about."""
    notes = getattr(problem, "__notes__", [])
    text = str(problem).strip() or type(problem).__name__
    return f"{text} ({'; '.join(notes)})" if notes else text


def check_column_names(columns: Iterable[str], *, source: str, subject: str = "the result") -> None:
    """Refuse columns of one name: a row would hold the values of the last of them alone.

    `subject` is what has the columns. Raises `ToolFailure`.
    """
    repeated_names = list_repeated_names(columns)
    if not repeated_names:
        return
    way_out = (
        "give each a name of its own with AS" if subject == "the result" else "rename all but one"
    )
    text = f"{subject} has several columns named '{repeated_names[0]}': {way_out}"
    raise ToolFailure(build_error("schema", text, source=source))


def build_broken_text_error() -> ErrorObject:
    """Say that a template made a text with half of a surrogate pair, which no UTF-8 can hold."""
    text = "a text that one of its templates gave holds a part of a character alone"
    return build_error("template", text)


def classify_file_error(problem: OSError, name: str, *, source: str) -> ErrorObject:
    """Classify what the file system said of a file: a full disk may pass, a folder stays one."""
    is_below_a_file = problem.errno in (errno.EEXIST, errno.ENOTDIR)
    reason = "a part of its path is a file" if is_below_a_file else problem.strerror or str(problem)
    text = f"{name!r:.120} cannot be used: {reason}"
    if problem.errno == errno.ENOENT:
        return build_error("not_found", text, source=source)
    is_passing = problem.errno not in _LASTING
    return build_error("storage_access", text, source=source, retryable=is_passing)


def build_disk_full_error(problem: OSError) -> ErrorObject:
    """Say that rows cannot be written to the worker's own disk."""
    text = (
        f"the rows do not fit on the worker's disk: {problem}: give its temporary directory more "
        "room, or select less"
    )
    return build_error("storage_access", text, source="store")


def classify_http_status(status: int, message: str, *, retry_after: float | None) -> ErrorObject:
    """Classify an HTTP answer of status 400 and above."""
    kind, retryable = _classify_status_kind(status)
    return ErrorObject(
        kind=kind,
        message=message,
        retryable=retryable,
        code=f"HTTP_{status}",
        status=status,
        retry_after=retry_after,
        source="http",
    )


def _classify_status_kind(status: int) -> tuple[str, bool]:
    if status == _STATUS_RATE_LIMIT:
        return "rate_limit", True
    if status in _STATUS_AUTH:
        return "auth", False
    if status == _STATUS_NOT_FOUND:
        return "not_found", False
    if status < _STATUS_SERVER:
        return "client_error", status in _RETRYABLE_CLIENT_STATUS
    return "server_error", True


_HINTS = {
    "42P10": "give the columns of the key a unique index, or use mode: merge of a transfer",
}


def classify_sqlstate(sqlstate: str, message: str, *, details: dict[str, Any]) -> ErrorObject:
    """Classify an error of PostgreSQL by its SQLSTATE."""
    kind = _classify_sqlstate_kind(sqlstate)
    hint = _HINTS.get(sqlstate)
    return build_error(
        kind,
        message if hint is None else f"{message}: {hint}",
        code=f"PG_{sqlstate}",
        pg_code=sqlstate,
        source="postgres",
        details=details or None,
    )


def _classify_sqlstate_kind(sqlstate: str) -> str:
    if sqlstate == _DB_CANCELLED:
        return "db_timeout"
    if sqlstate in _DEADLOCKS:
        return "db_deadlock"
    if sqlstate.startswith(("08", "57P")) or sqlstate == "53300":
        return "db_connection"
    if sqlstate.startswith("28"):
        return "auth"
    return "db_constraint" if sqlstate.startswith("23") else "db_error"


def is_unique_violation(error: ErrorObject) -> bool:
    """Tell whether a claim met its own queue's unique index and is to be repeated."""
    return error.pg_code == _UNIQUE_VIOLATION


def classify_exception(
    exception_type: str,
    bases: list[str],
    message: str,
    *,
    traceback: str = "",
    line: int = 0,
    line_text: str = "",
    hint: str = "",
) -> ErrorObject:
    """Classify an exception that user code did not catch, and say where it was raised.

    `line` counts from 1, and is 0 where no line of the code was reached. Texts that are too long
    are cut, which an ellipsis shows: a caller that must mask secrets masks them before.
    """
    kind = _classify_base_classes(bases)
    details: dict[str, Any] = {}
    if line:
        details |= {"line": line, "line_text": shorten_text(line_text, _LINE_CHARACTERS_MAX)}
    if traceback:
        details["traceback"] = _keep_last_part(traceback, _TRACEBACK_CHARACTERS_MAX)
    short_message = shorten_text(message or exception_type, _MESSAGE_CHARACTERS_MAX)
    return build_error(
        kind,
        f"{short_message} ({hint})" if hint else short_message,
        exception_type=exception_type,
        code=exception_type if kind == "transform" else None,
        source="python",
        details=details or None,
    )


def _classify_base_classes(bases: list[str]) -> str:
    if "TimeoutError" in bases:
        return "timeout"
    if "ConnectionError" in bases:
        return "connection"
    return "assertion" if "AssertionError" in bases else "transform"


def _keep_last_part(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else "…" + text[-(characters_max - 1) :]
