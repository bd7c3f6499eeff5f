"""What a `postgres` credential says about its server."""

from collections.abc import Mapping
from typing import Any

CONNECT_S = 10.0


def arguments(fields: Mapping[str, Any], *, application: str) -> dict[str, Any]:
    """Return what the client is opened with."""
    known: dict[str, Any] = {
        "timeout": CONNECT_S,
        "statement_cache_size": 0,
        "server_settings": {"application_name": application},
    }
    if fields.get("dsn"):
        return {"dsn": str(fields["dsn"]), **known}
    return {
        "host": _field(fields, "host"),
        "port": int(_field(fields, "port") or 5432),
        "user": _field(fields, "user") or _field(fields, "username"),
        "password": _field(fields, "password"),
        "database": _field(fields, "database") or _field(fields, "name"),
        "ssl": fields.get("sslmode"),
        **known,
    }


def _field(fields: Mapping[str, Any], name: str) -> Any:
    return fields.get(name, fields.get(f"db_{name}"))
