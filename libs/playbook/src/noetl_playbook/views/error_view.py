"""Views of errors for templates and the API: the stored fields, and defaults for the others."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject, summarize_error
from noetl_playbook.templates.lookup import Record
from noetl_playbook.templates.undefined import DETAILS, ERROR_FIELDS

_HTTP_STATUSES = ("status", "status_code", "http_status")


def show_error(error: ErrorObject | Mapping[str, Any]) -> dict[str, Any]:
    """Return an error's fields without nulls, with `retryable` and all names of an HTTP status.

    Events store only fields that differ from their default; templates always see `retryable`
    (language reference, section 14).
    """
    stored_error = codec.to_builtins(error) if isinstance(error, ErrorObject) else error
    fields = {key: item for key, item in stored_error.items() if item is not None}
    if "kind" in fields:
        fields.setdefault("retryable", False)
    status = next((fields[name] for name in _HTTP_STATUSES if name in fields), None)
    if status is not None:
        fields.update(dict.fromkeys(_HTTP_STATUSES, status))
    return fields


def show_error_record(error: ErrorObject | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an error as a record that templates read by attribute; None for None."""
    return None if error is None else build_error_record(show_error(error))


def show_error_summary(error: ErrorObject | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the record of an error with a `summary` of one line for people; None for None."""
    record = show_error_record(error)
    if record is not None:
        record["summary"] = summarize_error(record)
    return record


def build_error_record(fields: Mapping[str, Any]) -> Record:
    """Make the record of an error: the fields that do not apply are absent, and any detail is."""
    record = Record(fields, optional=ERROR_FIELDS)
    details = fields.get(DETAILS)
    if type(details) is dict:
        record[DETAILS] = Record(details, optional=None)
    return record
