"""What can go wrong: the exception tree, and the error object that playbooks see."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

# Kinds whose code is not their own name in upper case (language, 14).
_CODES = {
    "connection": "CONN",
    "payload_too_large": "TOO_LARGE",
    "storage_access": "STORE",
    "storage_quota": "STORE",
}
# Errors that running a shard again cannot repair (language, 7.7).
KINDS_NOT_RETRIED = frozenset(
    {
        *("template", "validation", "config", "unsupported_tool"),
        *("assertion", "policy", "cancelled"),
    }
)
# How many failed attempts of a task are kept: the latest.
TRIES_MAX = 20
_USER_CODE, _POSTGRES, _HTTP = "python", "postgres", "http"


class NoetlError(Exception):
    """Something that NoETL can name went wrong."""


class Retryable(NoetlError):  # noqa: N818 - the two words tell the caller what to do
    """The same call may succeed later."""


class Permanent(NoetlError):  # noqa: N818 - the two words tell the caller what to do
    """The same call will fail again until something is changed."""


class MalformedMessage(Permanent):
    """A message does not decode as what its subject promises."""


class ResultMalformed(Permanent, ValueError):  # noqa: N818 - the tree names what is wrong
    """What came, or was stored, as a result does not have the form of one.

    A template that touches it fails as one does that meets any other value of the wrong kind.
    """


class UnknownEventType(Permanent):
    """An event names a type or schema version that this release does not know."""


class LocatorError(Permanent):
    """A locator does not follow the `noetl://` grammar."""


class PayloadSealBroken(Permanent):
    """A sealed payload does not open: its bytes were changed, or it stands at another place."""


class PayloadKeyUnknown(Permanent):
    """A payload was sealed with a key that this process does not hold."""


class SubjectError(Permanent):
    """A subject does not follow the subject grammar."""


def get_error_code(kind: str) -> str:
    """Return the code of an error that nothing more particular is known of."""
    return _CODES.get(kind, kind.upper())


class FailedTry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt of a task that failed and was followed by another; `at` is when it began."""

    task: str
    attempt: int
    at: datetime
    kind: str
    message: str
    code: str | None = None


class ErrorObject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as playbooks, events and the API see it; absent fields are undefined.

    `tries` are the attempts of the task that failed before the one of this error.
    """

    kind: str
    message: str
    retryable: bool = False
    code: str | None = None
    status: int | None = None
    retry_after: float | None = None
    pg_code: str | None = None
    exception_type: str | None = None
    source: str | None = None
    step: str | None = None
    task: str | None = None
    attempt: int | None = None
    details: dict[str, Any] | None = None
    tries: list[FailedTry] = []


def summarize_error(error: Mapping[str, Any]) -> str:
    """Write `KeyError: 'missing' (line 5: return rows["missing"])`, or the message as it is.

    An exception of user code has its class before its message, which says little alone, and the
    line that raised it behind. What PostgreSQL refused has the statement, what an HTTP server
    refused the start of its answer. Takes an error's fields as the API and events show them.
    """
    message = str(error.get("message") or error.get("kind") or "")
    if error.get("source") == _POSTGRES:
        return message + _describe_statement(error.get("details"))
    if error.get("source") == _HTTP:
        return message + _describe_answer(error.get("details"))
    if error.get("source") != _USER_CODE:
        return message
    name = error.get("exception_type")
    text = f"{name}: {message}" if name and not message.startswith(str(name)) else message
    details = error.get("details")
    line = details.get("line") if isinstance(details, Mapping) else None
    if not isinstance(details, Mapping) or not line:
        return text
    source = details.get("line_text")
    return f"{text} (line {line}{': ' if source else ''}{source or ''})"


def _describe_statement(details: Any) -> str:
    """Write ` (statement 2, line 1: SELECT …)` of what is known."""
    if not isinstance(details, Mapping) or not isinstance(details.get("statement"), int):
        return ""
    place = f"statement {details['statement'] + 1}"
    if details.get("line"):
        place += f", line {details['line']}"
    text = details.get("line_text")
    return f" ({place}: {text})" if text else f" ({place})"


def _describe_answer(details: Any) -> str:
    start = details.get("body_start") if isinstance(details, Mapping) else None
    return f": {start}" if start else ""
