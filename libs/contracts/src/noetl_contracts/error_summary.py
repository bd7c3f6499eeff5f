"""An error in one line: what playbooks see in its fields, written for people."""

from collections.abc import Mapping
from typing import Any

_USER_CODE, _POSTGRES, _HTTP = "python", "postgres", "http"


def summarize_error(error: Mapping[str, Any]) -> str:
    """Write `KeyError: 'missing' (line 5: return rows["missing"])`, or the message as it is.

    An exception of user code has its class before its message, which says little alone, and the
    line that raised it behind. What PostgreSQL refused has the statement, what an HTTP server
    refused the start of its answer. Takes an error's fields as the API and events show them.
    """
    message = str(error.get("message") or error.get("kind") or "")
    if error.get("source") == _POSTGRES:
        return message + _statement_place(error.get("details"))
    if error.get("source") == _HTTP:
        return message + _answer_start(error.get("details"))
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


def _statement_place(details: Any) -> str:
    """Write ` (statement 2, line 1: SELECT …)` of what is known."""
    if not isinstance(details, Mapping) or not isinstance(details.get("statement"), int):
        return ""
    place = f"statement {details['statement'] + 1}"
    if details.get("line"):
        place += f", line {details['line']}"
    text = details.get("line_text")
    return f" ({place}: {text})" if text else f" ({place})"


def _answer_start(details: Any) -> str:
    start = details.get("body_start") if isinstance(details, Mapping) else None
    return f": {start}" if start else ""
