"""Parses `auth`: a name of a credential, an inline credential, or a form that is refused."""

from typing import Any

from msgspec import Struct

from noetl_playbook.sections import auth_fields
from noetl_worker.domain.failures import ToolFailure, build_error

INLINE = "(inline)"
_DATABASE = frozenset({"db_host", "db_port", "db_user", "db_password", "db_name", "dsn"})
_PARTS = frozenset({"type", "credential", "key", "source", "scope"})
_FIELDS_BY_KIND = {
    "bearer": ("token",),
    "httpBearerAuth": ("token",),
    "basic": ("password",),
    "api_key": ("value",),
    "oauth2": ("token_url", "client_id", "client_secret"),
}


class NamedCredential(Struct, frozen=True, kw_only=True):
    """A stored credential's name, else a keychain entry's."""

    name: str


class InlineCredential(Struct, frozen=True, kw_only=True):
    """A credential written where it is used."""

    kind: str
    fields: dict[str, Any]


def parse_auth(auth: Any) -> NamedCredential | InlineCredential:
    """Understand a rendered `auth`; raises `ToolFailure`."""
    if isinstance(auth, str) and auth:
        return NamedCredential(name=auth)
    if not isinstance(auth, dict) or not auth:
        raise _build_auth_failure(
            "auth names no credential: write a name, {credential: name} or {type: …}"
        )
    if auth.keys() & _DATABASE and "type" not in auth:
        return InlineCredential(kind="postgres", fields=auth)
    if auth.get("source") not in {None, "credential"}:
        raise _build_source_failure(str(auth["source"]))
    name = auth.get("credential") or (auth.get("key") if auth.keys() <= _PARTS else None)
    if isinstance(name, str) and name:
        return NamedCredential(name=name)
    if auth_fields.is_named_beside_type(auth) and isinstance(auth["name"], str) and auth["name"]:
        return NamedCredential(name=auth["name"])
    if "type" in auth:
        return _parse_inline_auth(auth)
    values = list(auth.values())
    if len(values) == 1 and isinstance(values[0], dict | str):
        return parse_auth(values[0])
    if all(isinstance(value, dict) for value in values):
        raise _build_auth_failure(
            f"auth holds {len(values)} aliases ({', '.join(auth)}): only duckdb takes several"
        )
    raise _build_auth_failure(
        "auth names no credential: write a name, {credential: name} or {type: …}"
    )


def _parse_inline_auth(auth: dict[str, Any]) -> InlineCredential:
    kind = str(auth["type"])
    fields = {key: item for key, item in auth.items() if key != "type"}
    absent_fields = [
        name for name in _FIELDS_BY_KIND.get(kind, ()) if fields.get(name) in {None, ""}
    ]
    if absent_fields:
        raise _build_auth_failure(f"inline auth of type {kind} lacks {', '.join(absent_fields)}")
    return InlineCredential(kind=kind, fields=fields)


def infer_credential_kind(fields: dict[str, Any]) -> str:
    """Tell the type of a credential from its fields alone."""
    if isinstance(fields.get("type"), str):
        return str(fields["type"])
    for kind, names in _KIND_BY_FIELDS:
        if all(fields.get(name) is not None for name in names):
            return kind
    return "generic"


_KIND_BY_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("postgres", ("dsn",)),
    ("postgres", ("db_host",)),
    ("postgres", ("host", "database")),
    ("oauth2", ("token_url", "client_id", "client_secret")),
    ("bearer", ("token",)),
    ("api_key", ("header", "value")),
    ("basic", ("username", "password")),
)


def _build_source_failure(source: str) -> ToolFailure:
    if source == "adc":
        return _build_auth_failure(
            "auth asks for the cloud's default credentials, which this worker has none of: "
            "store a credential with `noetl credential put` and name it"
        )
    return _build_auth_failure(f"auth has the unknown source '{source[:40]}': use credential")


def _build_auth_failure(message: str) -> ToolFailure:
    return ToolFailure(build_error("config", message))
