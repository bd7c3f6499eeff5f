"""Small HTTP requests to servers on this machine."""

import http.client
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

TIMEOUT_S = 5.0
BODY_BYTES_MAX = 1024 * 1024
OK = 200


class Answer(Struct, frozen=True, kw_only=True):
    """What a server said."""

    status: int
    body: bytes


def ask(
    url: str, *, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer | None:
    """Send one request; nothing when nobody answers in time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, path or "/", body=body or None, headers=dict(headers or {}))
        response = connection.getresponse()
        return Answer(status=response.status, body=response.read(BODY_BYTES_MAX))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def status(url: str) -> int | None:
    """Get an address and return its status, or nothing when nobody answers."""
    answer = ask(url)
    return None if answer is None else answer.status
