"""What a `postgres` credential says about its server."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from noetl_playbook.model import coercion

CONNECT_S = 10.0
PORT = 5432
_PORT_MAX = 65_535
_DSN = "postgresql://user:password@host:port/database"


class UnusableCredential(Exception):  # noqa: N818 - it says what a credential is
    """A credential does not say how to reach its server."""


def build_connect_arguments(fields: Mapping[str, Any], *, application: str) -> dict[str, Any]:
    """Return what the client is opened with; raises `UnusableCredential`."""
    known_names: dict[str, Any] = {
        "timeout": CONNECT_S,
        "statement_cache_size": 0,
        "server_settings": {"application_name": application},
    }
    dsn = fields.get("dsn")
    if dsn:
        if not isinstance(dsn, str):
            raise UnusableCredential(f"'dsn' is not an address, as {_DSN}")
        return {"dsn": dsn, **known_names}
    return {
        "host": _find_text_field(fields, "host"),
        "port": _parse_port(_find_field(fields, "port") or PORT),
        "user": _find_text_field(fields, "user", "username"),
        "password": _find_text_field(fields, "password"),
        "database": _find_text_field(fields, "database", "name"),
        "ssl": _find_text_field(fields, "sslmode"),
        **known_names,
    }


@contextmanager
def translate_credential_errors(fields: Mapping[str, Any]) -> Iterator[None]:
    """Tell what the client cannot read in a credential from what becomes of a connection.

    Raises `UnusableCredential`, which repeats nothing of a `dsn`: what is wrong with one may be
    part of its password.
    """
    try:
        yield
    except OSError:
        # Some of TLS are values as well.
        raise
    except (ValueError, OverflowError) as problem:
        text = f"'dsn' cannot be read: write it as {_DSN}" if fields.get("dsn") else str(problem)
        raise UnusableCredential(text) from problem


def _find_text_field(fields: Mapping[str, Any], *names: str) -> str | None:
    """Return the first field that is there; a number is as good as its digits."""
    for name in names:
        field = _find_field(fields, name)
        if isinstance(field, dict | list):
            raise UnusableCredential(f"'{name}' is not a text")
        if field:
            return str(field)
    return None


def _parse_port(value: Any) -> int:
    port = coercion.coerce_integer(value)
    if port is None or not 0 < port <= _PORT_MAX:
        raise UnusableCredential(f"'port' is not a number from 1 to {_PORT_MAX}")
    return port


def _find_field(fields: Mapping[str, Any], name: str) -> Any:
    return fields.get(name, fields.get(f"db_{name}"))
