"""Secrets in the text of a playbook: inline credentials must take theirs from the keychain."""

from typing import Any

from noetl_playbook import syntax
from noetl_playbook.coercion import is_template
from noetl_playbook.keychain import NAME, TOKEN
from noetl_playbook.names import SEAL
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.syntax import SyntaxProblemError

_SOURCES = frozenset({NAME, TOKEN})
_SECRET_FIELDS = frozenset(
    {
        *("token", "password", "value", "client_secret", "secret_access_key", "private_key"),
        *("dsn", "db_password", "secret_key"),
    }
)


def check_inline(reading: Reading, auth: Any, path: Path) -> None:
    """Report secrets that stand in an inline `auth` in the clear."""
    if not isinstance(auth, dict):
        return
    for key, item in auth.items():
        if isinstance(item, dict):
            check_inline(reading, item, (*path, key))
        elif "type" in auth and key in _SECRET_FIELDS and not _is_from_keychain(item):
            reading.report(
                "W904",
                (*path, key),
                f"'{key}' of an inline credential must come from the keychain",
                hint="store the credential and name it, or write {{ keychain.<entry>.<field> }}",
                replacement="auth: <credential name>",
            )


def _is_from_keychain(value: Any) -> bool:
    if not is_template(value):
        return value is None
    try:
        read = syntax.names(syntax.parse(value))
    except SyntaxProblemError:
        return True
    return bool(read & _SOURCES) or SEAL in read
