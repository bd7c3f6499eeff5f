"""Errors as playbooks see them: which kind, which code, whether trying again may help."""

import errno
from typing import Any

from noetl_contracts.errors import ErrorObject, code_of

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


class ToolFailure(Exception):  # noqa: N818 - it carries an outcome, it is not one of the errors
    """Ends an attempt early with an error."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


def failure(kind: str, message: str, **fields: Any) -> ErrorObject:
    """Build an error of a kind; its code and retryability follow from the kind."""
    return ErrorObject(
        kind=kind,
        message=message,
        retryable=fields.pop("retryable", kind in _RETRYABLE),
        code=fields.pop("code", None) or code_of(kind),
        **fields,
    )


def not_a_text() -> ErrorObject:
    """Say that a template made a text with half of a surrogate pair, which no UTF-8 can hold."""
    text = "a text that one of its templates gave holds a part of a character alone"
    return failure("template", text)


def of_file(problem: OSError, name: str, *, source: str) -> ErrorObject:
    """Classify what the file system said of a file: a full disk may pass, a folder stays one."""
    is_below_a_file = problem.errno in (errno.EEXIST, errno.ENOTDIR)
    reason = "a part of its path is a file" if is_below_a_file else problem.strerror or str(problem)
    text = f"{name!r:.120} cannot be used: {reason}"
    if problem.errno == errno.ENOENT:
        return failure("not_found", text, source=source)
    is_passing = problem.errno not in _LASTING
    return failure("storage_access", text, source=source, retryable=is_passing)


def no_room(problem: OSError) -> ErrorObject:
    """Say that rows cannot be written to the worker's own disk."""
    text = (
        f"the rows do not fit on the worker's disk: {problem}: give its temporary directory more "
        "room, or select less"
    )
    return failure("storage_access", text, source="store")


def of_status(status: int, message: str, *, retry_after: float | None) -> ErrorObject:
    """Classify an HTTP answer of status 400 and above."""
    kind, retryable = _status_kind(status)
    return ErrorObject(
        kind=kind,
        message=message,
        retryable=retryable,
        code=f"HTTP_{status}",
        status=status,
        retry_after=retry_after,
        source="http",
    )


def _status_kind(status: int) -> tuple[str, bool]:
    if status == _STATUS_RATE_LIMIT:
        return "rate_limit", True
    if status in _STATUS_AUTH:
        return "auth", False
    if status == _STATUS_NOT_FOUND:
        return "not_found", False
    if status < _STATUS_SERVER:
        return "client_error", status in _RETRYABLE_CLIENT_STATUS
    return "server_error", True


def of_sqlstate(sqlstate: str, message: str, *, details: dict[str, Any]) -> ErrorObject:
    """Classify an error of PostgreSQL by its SQLSTATE."""
    kind = _sqlstate_kind(sqlstate)
    return failure(
        kind,
        message,
        code=f"PG_{sqlstate}",
        pg_code=sqlstate,
        source="postgres",
        details=details or None,
    )


def _sqlstate_kind(sqlstate: str) -> str:
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
