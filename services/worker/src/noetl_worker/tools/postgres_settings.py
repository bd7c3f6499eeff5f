"""A postgres credential as settings by libpq's names, for clients that are not ours."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from noetl_worker.domain import postgres_connecting
from noetl_worker.domain.postgres_connecting import Unusable

_LIBPQ_NAMES = {"database": "dbname", "ssl": "sslmode"}
_OF_SERVER = ("host", "port", "user", "password", "database", "ssl")


def settings(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a server's settings, a `dsn` taken apart; raises `Unusable`."""
    known = postgres_connecting.arguments(fields, application="noetl-worker")
    if "dsn" in known:
        return _settings_of(known["dsn"])
    return {
        _LIBPQ_NAMES.get(name, name): str(known[name])
        for name in _OF_SERVER
        if known[name] is not None
    }


def _settings_of(dsn: str) -> dict[str, str]:
    """Take an address apart; the error repeats nothing of it, for it may hold a password."""
    try:
        parts = urlsplit(dsn)
        found = {
            "host": parts.hostname,
            "port": str(parts.port or 5432),
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "dbname": unquote(parts.path.removeprefix("/")),
            **dict(parse_qsl(parts.query)),
        }
    except ValueError as problem:
        text = "'dsn' cannot be read: write it as postgresql://user:password@host:port/database"
        raise Unusable(text) from problem
    return {name: value for name, value in found.items() if value}
