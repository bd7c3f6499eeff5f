"""Checks of `auth`: its form and its source, and secrets that are written into the playbook."""

from typing import Any

from noetl_playbook.model.coercion import is_template
from noetl_playbook.sections.field_types import ANYTHING, TEXT, check_mapping_keys
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_fragment

_SECRET_FIELDS = {
    "bearer": ("token",),
    "httpBearerAuth": ("token",),
    "basic": ("password",),
    "api_key": ("value",),
    "oauth2": ("client_secret",),
    "nats": ("password", "token", "creds"),
}


def check_secret_literals(reading: DocumentReader, auth: Any, path: Path) -> None:
    """Report literal secrets of an inline credential, also below an alias."""
    if not isinstance(auth, dict):
        return
    kind = auth.get("type")
    for name in _SECRET_FIELDS.get(kind, ()) if isinstance(kind, str) else ():
        value = auth.get(name)
        if value is not None and not is_template(value):
            reading.report_problem(
                "E404",
                (*path, name),
                f"'{name}' is a secret in plain text",
                hint=f'take it from the keychain: {name}: "{{{{ keychain.<name>.{name} }}}}"',
            )
    for alias, inner in auth.items():
        if isinstance(inner, dict) and "type" in inner:
            check_secret_literals(reading, inner, (*path, alias))


INLINE_DATABASE = ("db_host", "db_port", "db_user", "db_password", "db_name", "dsn")

_NAMING = {"credential": TEXT, "key": TEXT, "source": TEXT, "type": TEXT, "scope": ANYTHING}
_SOURCES = ("credential", "adc")
# What an inline credential needs, and what it may have besides.
_NEEDED = {
    "bearer": ("token",),
    "httpBearerAuth": ("token",),
    "basic": ("username", "password"),
    "api_key": ("header", "value"),
    "oauth2": ("token_url", "client_id", "client_secret"),
}
_OPTIONAL = {"oauth2": ("scope", "audience")}
# Types whose fields only the tool knows that takes them.
_OPEN = ("postgres", "s3", "gcs_hmac", "service_account", "nats", "kubernetes", "generic")
_TYPES = (*_NEEDED, *_OPEN)


def check_auth(reading: DocumentReader, auth: Any, path: Path) -> None:
    """Report an `auth` that names no credential and is none, and secrets in plain text."""
    if auth is None or isinstance(auth, str):
        return
    if not isinstance(auth, dict):
        reading.report_wrong_type(path, "a credential name or a mapping", auth)
        return
    _check_auth_form(reading, auth, path)
    check_secret_literals(reading, auth, path)


def is_named_beside_type(auth: dict[str, Any]) -> bool:
    """Tell whether a credential is named beside its type, as `{type: bearer, name: shop}`."""
    kind = auth.get("type")
    return auth.keys() == {"type", "name"} and isinstance(kind, str) and kind in _NEEDED


def _report_named(reading: DocumentReader, auth: dict[str, Any], path: Path) -> None:
    name = auth["name"]
    if not isinstance(name, str) or not name:
        reading.report_wrong_type(
            (*path, "name"), "the name of a credential or keychain entry", name
        )
        return
    reading.report_problem(
        "W902",
        path,
        "a name beside the type of 'auth' is an older form: the name says all",
        replacement=write_fragment("auth", name),
    )


def _check_auth_form(reading: DocumentReader, auth: dict[str, Any], path: Path) -> None:
    if auth.keys() & {*INLINE_DATABASE} and "type" not in auth:
        return
    if auth.keys() & {"credential", "source"} or ("key" in auth and auth.keys() <= {*_NAMING}):
        check_mapping_keys(reading, _NAMING, auth, path, about="auth")
        _check_source(reading, auth.get("source"), path)
    elif is_named_beside_type(auth):
        _report_named(reading, auth, path)
    elif "type" in auth:
        _check_inline(reading, auth, path)
    elif len(auth) == 1 or all(isinstance(item, dict) for item in auth.values()):
        for alias, inner in auth.items():
            _check_alias(reading, inner, (*path, alias))
    else:
        _report_nameless(reading, auth, path)


def _check_alias(reading: DocumentReader, value: Any, path: Path) -> None:
    if isinstance(value, dict):
        _check_auth_form(reading, value, path)
    elif not isinstance(value, str):
        reading.report_wrong_type(path, "a credential name or a mapping", value)


def _check_source(reading: DocumentReader, source: Any, path: Path) -> None:
    if isinstance(source, str) and source not in _SOURCES and not is_template(source):
        reading.report_problem(
            "E104",
            (*path, "source"),
            f"'source' takes one of {', '.join(_SOURCES)}, found '{source}'",
            hint=reading.suggest_word(source, _SOURCES),
        )


def _check_inline(reading: DocumentReader, auth: dict[str, Any], path: Path) -> None:
    kind = auth["type"]
    if not isinstance(kind, str):
        reading.report_wrong_type((*path, "type"), "a type of credential", kind)
        return
    if is_template(kind) or kind in _OPEN:
        return
    if kind not in _NEEDED:
        reading.report_problem(
            "E104",
            (*path, "type"),
            f"'{kind}' is not a type of credential",
            hint=reading.suggest_word(kind, _TYPES) or f"one of {', '.join(_TYPES)}",
        )
        return
    needed_fields = _NEEDED[kind]
    fields = dict.fromkeys(("type", *needed_fields, *_OPTIONAL.get(kind, ())), TEXT)
    check_mapping_keys(reading, fields, auth, path, about=f"auth of type {kind}")
    for name in needed_fields:
        if auth.get(name) is None:
            reading.report_problem("E104", path, f"auth of type {kind} needs '{name}'")


def _report_nameless(reading: DocumentReader, auth: dict[str, Any], path: Path) -> None:
    """Report a mapping that is no form of `auth`, at the key that was probably meant."""
    hints = {key: reading.suggest_word(key, _NAMING) for key in auth}
    key = next((key for key in hints if hints[key]), None)
    reading.report_problem(
        "E104",
        path if key is None else (*path, key),
        "auth names no credential",
        hint=hints.get(key or "") or "write a name, {credential: name} or {type: …, …}",
        of_key=key is not None,
    )
