"""What `auth` may say: a name, an inline credential, or something that this release refuses."""

from typing import Any

from msgspec import Struct

from noetl_playbook import auth_forms
from noetl_worker.domain.failures import ToolFailure, failure

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


class Named(Struct, frozen=True, kw_only=True):
    """A stored credential's name, else a keychain entry's."""

    name: str


class Inline(Struct, frozen=True, kw_only=True):
    """A credential written where it is used."""

    kind: str
    fields: dict[str, Any]


def read(auth: Any) -> Named | Inline:
    """Understand a rendered `auth`; raises `ToolFailure`."""
    if isinstance(auth, str) and auth:
        return Named(name=auth)
    if not isinstance(auth, dict) or not auth:
        raise _refused(f"auth must name a credential, not {type(auth).__name__}")
    if auth.keys() & _DATABASE and "type" not in auth:
        return Inline(kind="postgres", fields=auth)
    if auth.get("source") not in {None, "credential"}:
        raise _of_source(str(auth["source"]))
    name = auth.get("credential") or (auth.get("key") if auth.keys() <= _PARTS else None)
    if isinstance(name, str) and name:
        return Named(name=name)
    if auth_forms.names_by_type(auth) and isinstance(auth["name"], str) and auth["name"]:
        return Named(name=auth["name"])
    if "type" in auth:
        return _inline(auth)
    values = list(auth.values())
    if len(values) == 1 and isinstance(values[0], dict | str):
        return read(values[0])
    if all(isinstance(value, dict) for value in values):
        raise _refused(
            f"auth holds {len(values)} aliases ({', '.join(auth)}): only duckdb takes several"
        )
    raise _refused("auth names no credential: write a name, {credential: name} or {type: …}")


def _inline(auth: dict[str, Any]) -> Inline:
    kind = str(auth["type"])
    fields = {key: item for key, item in auth.items() if key != "type"}
    absent = [name for name in _FIELDS_BY_KIND.get(kind, ()) if fields.get(name) in {None, ""}]
    if absent:
        raise _refused(f"inline auth of type {kind} lacks {', '.join(absent)}")
    return Inline(kind=kind, fields=fields)


def kind_of(fields: dict[str, Any]) -> str:
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


def _of_source(source: str) -> ToolFailure:
    if source == "adc":
        return _refused(
            "auth asks for the cloud's default credentials, which this worker has none of: "
            "store a credential with `noetl credential put` and name it"
        )
    return _refused(f"auth has the unknown source '{source[:40]}': use credential")


def _refused(message: str) -> ToolFailure:
    return ToolFailure(failure("config", message))
