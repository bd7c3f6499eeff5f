"""Secrets that are written into a playbook instead of being taken from the keychain."""

from typing import Any

from noetl_playbook.coercion import is_template
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

_SECRET_FIELDS = {
    "bearer": ("token",),
    "httpBearerAuth": ("token",),
    "basic": ("password",),
    "api_key": ("value",),
    "oauth2": ("client_secret",),
    "nats": ("password", "token", "creds"),
}


def check_literals(reading: Reading, auth: Any, path: Path) -> None:
    """Report literal secrets of an inline credential, also below an alias."""
    if not isinstance(auth, dict):
        return
    kind = auth.get("type")
    for name in _SECRET_FIELDS.get(kind, ()) if isinstance(kind, str) else ():
        value = auth.get(name)
        if value is not None and not is_template(value):
            reading.report(
                "E404",
                (*path, name),
                f"'{name}' is a secret in plain text",
                hint=f'take it from the keychain: {name}: "{{{{ keychain.<name>.{name} }}}}"',
            )
    for alias, inner in auth.items():
        if isinstance(inner, dict) and "type" in inner:
            check_literals(reading, inner, (*path, alias))
