"""Checks a credential against the table of types before it is sealed."""

from typing import Any
from urllib.parse import urlsplit

from noetl_contracts import spelling
from noetl_contracts.credentials import TYPE_ALIASES, TYPES, CredentialField, CredentialType
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_playbook.model import coercion

_DSN = "postgresql://user:password@host:port/database"
_DSN_SCHEMES = ("postgresql", "postgres")
_PORT_MAX = 65_535


def get_credential_type(name: str) -> CredentialType:
    """Find a type by its name; raises `ApiError`."""
    credential_type = TYPES.get(TYPE_ALIASES.get(name, name))
    if credential_type is None:
        known_names = ", ".join(TYPES)
        near = spelling.suggest_word(name, (*TYPES, *TYPE_ALIASES))
        raise problems.build_bad_request_error(
            f"{name!r} is not a type of credential",
            hint=f"{near} It is one of {known_names}" if near else f"it is one of {known_names}",
        )
    return credential_type


def check_credential_fields(
    kind: CredentialType, name: str, data: dict[str, Any]
) -> dict[str, Any]:
    """Give the fields as they are kept; raises `ApiError` that names every fault."""
    if kind.is_open:
        return data
    credential_fields: dict[str, Any] = {}
    faults: list[str] = []
    for key, value in data.items():
        field = kind.find_field(key)
        if field is None:
            near = spelling.suggest_word(key, kind.list_keys())
            faults.append(f"unknown field '{key}'" + (f" ({near})" if near else ""))
        elif (fault := _find_value_fault(kind, field, value)) is not None:
            faults.append(f"'{key}' {fault}")
        else:
            credential_fields[field.name if key in field.renames else key] = value
    faults += _list_missing_fields(kind, credential_fields, data)
    if faults:
        raise _build_fields_error(kind, name, faults)
    return credential_fields


def _list_missing_fields(
    kind: CredentialType, stored_fields: dict[str, Any], data: dict[str, Any]
) -> list[str]:
    """Say which fields are needed and neither there nor wrong."""
    written = {field.name for key in data if (field := kind.find_field(key)) is not None}
    present = {
        field.name
        for key, value in stored_fields.items()
        if (field := kind.find_field(key)) is not None and value not in (None, "")
    }
    return [
        "it needs " + " or ".join(f"'{item}'" for item in group)
        for group in kind.needs
        if not (present & {*group}) and not (written - {*stored_fields} & {*group})
    ]


def _find_value_fault(kind: CredentialType, field: CredentialField, value: Any) -> str | None:
    """Say what is wrong with a value; the value itself may be a secret."""
    if isinstance(value, dict | list):
        return "is not a text"
    if kind.name == "postgres" and field.name == "port" and value not in (None, ""):
        number = coercion.coerce_integer(value)
        is_port = number is not None and 0 < number <= _PORT_MAX
        return None if is_port else f"is not a number from 1 to {_PORT_MAX}"
    if kind.name == "postgres" and field.name == "dsn" and value and not _is_dsn(value):
        return f"is not an address, as {_DSN}"
    return None


def _is_dsn(value: Any) -> bool:
    try:
        parts = urlsplit(str(value))
        # Reading a port that is no number, or is too large, raises.
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in _DSN_SCHEMES and port != 0


def _build_fields_error(kind: CredentialType, name: str, faults: list[str]) -> ApiError:
    listed = "; ".join(
        f"{field.name}" + (f" (or {', '.join(field.spellings)})" if field.spellings else "")
        for field in kind.fields
    )
    return problems.build_bad_request_error(
        f"credential '{name}' of type {kind.name}: {'; '.join(faults)}",
        hint=f"type {kind.name} takes {listed}",
    )
