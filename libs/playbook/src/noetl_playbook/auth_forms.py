"""What `auth` may say: a stored credential's name, or a mapping that is one or names one."""

from typing import Any

from noetl_playbook.auth_literals import check_literals
from noetl_playbook.coercion import is_template
from noetl_playbook.field_types import ANYTHING, TEXT, check_keys
from noetl_playbook.fragments import fragment
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

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


def check_auth(reading: Reading, auth: Any, path: Path) -> None:
    """Report an `auth` that names no credential and is none, and secrets in plain text."""
    if auth is None or isinstance(auth, str):
        return
    if not isinstance(auth, dict):
        reading.wrong(path, "a credential name or a mapping", auth)
        return
    _check_form(reading, auth, path)
    check_literals(reading, auth, path)


def names_by_type(auth: dict[str, Any]) -> bool:
    """Tell whether a credential is named beside its type, as `{type: bearer, name: shop}`."""
    kind = auth.get("type")
    return auth.keys() == {"type", "name"} and isinstance(kind, str) and kind in _NEEDED


def _report_named(reading: Reading, auth: dict[str, Any], path: Path) -> None:
    name = auth["name"]
    if not isinstance(name, str) or not name:
        reading.wrong((*path, "name"), "the name of a credential or keychain entry", name)
        return
    reading.report(
        "W902",
        path,
        "a name beside the type of 'auth' is an older form: the name says all",
        replacement=fragment("auth", name),
    )


def _check_form(reading: Reading, auth: dict[str, Any], path: Path) -> None:
    if auth.keys() & {*INLINE_DATABASE} and "type" not in auth:
        return
    if auth.keys() & {"credential", "source"} or ("key" in auth and auth.keys() <= {*_NAMING}):
        check_keys(reading, _NAMING, auth, path, about="auth")
        _check_source(reading, auth.get("source"), path)
    elif names_by_type(auth):
        _report_named(reading, auth, path)
    elif "type" in auth:
        _check_inline(reading, auth, path)
    elif len(auth) == 1 or all(isinstance(each, dict) for each in auth.values()):
        for alias, inner in auth.items():
            _check_alias(reading, inner, (*path, alias))
    else:
        _report_nameless(reading, auth, path)


def _check_alias(reading: Reading, value: Any, path: Path) -> None:
    if isinstance(value, dict):
        _check_form(reading, value, path)
    elif not isinstance(value, str):
        reading.wrong(path, "a credential name or a mapping", value)


def _check_source(reading: Reading, source: Any, path: Path) -> None:
    if isinstance(source, str) and source not in _SOURCES and not is_template(source):
        reading.report(
            "E104",
            (*path, "source"),
            f"'source' takes one of {', '.join(_SOURCES)}, found '{source}'",
            hint=reading.hint(source, _SOURCES),
        )


def _check_inline(reading: Reading, auth: dict[str, Any], path: Path) -> None:
    kind = auth["type"]
    if not isinstance(kind, str):
        reading.wrong((*path, "type"), "a type of credential", kind)
        return
    if is_template(kind) or kind in _OPEN:
        return
    if kind not in _NEEDED:
        reading.report(
            "E104",
            (*path, "type"),
            f"'{kind}' is not a type of credential",
            hint=reading.hint(kind, _TYPES) or f"one of {', '.join(_TYPES)}",
        )
        return
    needed = _NEEDED[kind]
    fields = dict.fromkeys(("type", *needed, *_OPTIONAL.get(kind, ())), TEXT)
    check_keys(reading, fields, auth, path, about=f"auth of type {kind}")
    for name in needed:
        if auth.get(name) is None:
            reading.report("E104", path, f"auth of type {kind} needs '{name}'")


def _report_nameless(reading: Reading, auth: dict[str, Any], path: Path) -> None:
    """Report a mapping that is no form of `auth`, at the key that was probably meant."""
    hints = {key: reading.hint(key, _NAMING) for key in auth}
    key = next((key for key in hints if hints[key]), None)
    reading.report(
        "E104",
        path if key is None else (*path, key),
        "auth names no credential",
        hint=hints.get(key or "") or "write a name, {credential: name} or {type: …, …}",
        of_key=key is not None,
    )
