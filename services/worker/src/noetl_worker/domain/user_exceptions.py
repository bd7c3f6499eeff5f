"""Exceptions of user code as errors: class, message, and the author's own line.

The message stays what the exception says, for rules look into it; `summarize_error` joins all.
"""

from typing import Any

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import failure
from noetl_worker.domain.texts import shortened

_MESSAGE_CHARACTERS_MAX = 2 * 1024
_LINE_CHARACTERS_MAX = 200
_TRACEBACK_CHARACTERS_MAX = 4 * 1024


def of_exception(
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
    are cut, which an ellipsis shows: whoever has secrets to mask does so before.
    """
    kind = _kind_of(bases)
    details: dict[str, Any] = {}
    if line:
        details |= {"line": line, "line_text": shortened(line_text, _LINE_CHARACTERS_MAX)}
    if traceback:
        details["traceback"] = _last_part(traceback, _TRACEBACK_CHARACTERS_MAX)
    shown = shortened(message or exception_type, _MESSAGE_CHARACTERS_MAX)
    return failure(
        kind,
        f"{shown} ({hint})" if hint else shown,
        exception_type=exception_type,
        code=exception_type if kind == "transform" else None,
        source="python",
        details=details or None,
    )


def _kind_of(bases: list[str]) -> str:
    if "TimeoutError" in bases:
        return "timeout"
    if "ConnectionError" in bases:
        return "connection"
    return "assertion" if "AssertionError" in bases else "transform"


def _last_part(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else "…" + text[-(characters_max - 1) :]
