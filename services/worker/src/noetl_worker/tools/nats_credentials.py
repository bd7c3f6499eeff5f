"""What a credential of type `nats` says about its server, as the client takes it."""

import re
from typing import Any
from urllib.parse import urlsplit

import nkeys

from noetl_worker.keys.credential_vault import Credential

_SCHEMES = ("nats", "tls")
# As the tools of NATS write it: https://docs.nats.io/using-nats/developer/connecting/creds
_FILE = """\
-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
_JWT, _SEED = (
    re.compile(rf"^-+BEGIN {part}-+\s+([A-Za-z0-9_.-]+)\s+-+END {part}-+\s*$", re.MULTILINE)
    for part in ("NATS USER JWT", "USER NKEY SEED")
)


def arguments(credential: Credential) -> dict[str, Any]:
    """Return what the client is opened with; raises `ToolFailure`."""
    return {
        "servers": [_url(credential)],
        **{name: credential.text(name) or None for name in ("user", "password", "token")},
    }


def _url(credential: Credential) -> str:
    url = credential.fields.get("url")
    if not isinstance(url, str) or not url:
        raise credential.unusable("has no 'url'")
    # What is wrong with an address may be part of a password, so it is not told.
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        is_address = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise credential.unusable("has a 'url' that is no nats://host:port, nor tls://host:port")
    return url


def creds(credential: Credential) -> str | None:
    """Write the text of a credentials file anew; raises `ToolFailure` for what is none.

    Of a text without its parts the client would read on without end.
    """
    given = credential.text("creds")
    if not given:
        return None
    jwt, seed = _JWT.search(given), _SEED.search(given)
    if jwt is None or seed is None or not _is_seed(seed[1]):
        raise credential.unusable(
            "has 'creds' that are not the text of a credentials file, a user's JWT and its seed"
        )
    return _FILE.format(jwt=jwt[1], seed=seed[1])


def _is_seed(text: str) -> bool:
    try:
        nkeys.from_seed(bytearray(text.encode()))
    except (nkeys.NkeysError, ValueError):
        return False
    return True
