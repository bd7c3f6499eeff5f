"""Errors as playbooks and the API see them (language, 14)."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject

_HTTP_STATUSES = ("status", "status_code", "http_status")


def error_view(error: ErrorObject | Mapping[str, Any]) -> dict[str, Any]:
    """Show an error: always whether it is retryable, an HTTP status under its three names.

    Fields that are absent stay absent: templates see them as undefined.
    """
    given = codec.builtins(error) if isinstance(error, ErrorObject) else error
    found = {key: item for key, item in given.items() if item is not None}
    if "kind" in found:
        found.setdefault("retryable", False)
    status = next((found[name] for name in _HTTP_STATUSES if name in found), None)
    if status is not None:
        found.update(dict.fromkeys(_HTTP_STATUSES, status))
    return found
