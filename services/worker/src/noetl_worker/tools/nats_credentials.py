"""What a credential of type `nats` says about its server, as the client takes it."""

import re
from typing import Any
from urllib.parse import urlsplit

import nkeys

from noetl_worker.credentials import Credential
from noetl_worker.domain.failures import ToolFailure, failure

_SCHEMES = ("nats", "tls")
# As the tools of NATS write it: https://docs.nats.io/using-nats/developer/connecting/creds
_PARTS = ("NATS USER JWT", "USER NKEY SEED")
_FOUND = {
    part: re.compile(rf"^-+BEGIN {part}-+\s+([A-Za-z0-9_.-]+)\s+-+END {part}-+\s*$", re.MULTILINE)
    for part in _PARTS
}


def arguments(credential: Credential) -> dict[str, Any]:
    """Return what the client is opened with; raises `ToolFailure`."""
    return {
        "servers": [_url(credential)],
        **{name: _text(credential, name) for name in ("user", "password", "token")},
    }


def _url(credential: Credential) -> str:
    url = credential.fields.get("url")
    if not isinstance(url, str) or not url:
        raise _unusable(credential, "has no 'url'")
    # What is wrong with an address may be part of a password, so it is not told.
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        is_address = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise _unusable(credential, "has a 'url' that is no nats://host:port, nor tls://host:port")
    return url


def creds(credential: Credential) -> str | None:
    """Write the text of a credentials file anew; raises `ToolFailure` for what is none.

    Of a text without its parts the client would read on without end.
    """
    given = credential.fields.get("creds")
    if not given:
        return None
    found = [_FOUND[part].search(str(given)) for part in _PARTS]
    if None in found or not _is_seed(found[1][1] if found[1] else ""):
        text = "has 'creds' that are not the text of a credentials file, a user's JWT and its seed"
        raise _unusable(credential, text)
    lines = [
        f"-----BEGIN {part}-----\n{one[1]}\n------END {part}------\n"
        for part, one in zip(_PARTS, found, strict=True)
        if one is not None
    ]
    return "\n".join(lines)


def _is_seed(text: str) -> bool:
    try:
        nkeys.from_seed(bytearray(text.encode()))
    except (nkeys.NkeysError, ValueError):
        return False
    return True


def _text(credential: Credential, name: str) -> str | None:
    value = credential.fields.get(name)
    if isinstance(value, dict | list):
        raise _unusable(credential, f"has a '{name}' that is no text")
    return str(value) if value else None


def _unusable(credential: Credential, text: str) -> ToolFailure:
    return ToolFailure(failure("config", f"credential '{credential.name}' {text}", source="nats"))
