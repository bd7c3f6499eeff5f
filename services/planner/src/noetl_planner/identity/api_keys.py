"""API keys: how one is made, found by its prefix, and compared with what is stored of it."""

import hmac
import secrets

from noetl_contracts import codec
from noetl_contracts.identity.role_bindings import ApiKey

KEY_SCHEME = "noetl_"
_PREFIX_BYTES = 6
_SECRET_BYTES = 32
_PREFIX_CHARACTERS = len(KEY_SCHEME) + 2 * _PREFIX_BYTES


def make_key() -> str:
    """Make a new API key: its scheme, a prefix by which it is found, and 256 random bits."""
    prefix = secrets.token_hex(_PREFIX_BYTES)
    return f"{KEY_SCHEME}{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def find_key_prefix(key: str) -> str | None:
    """Return the part of a key by which it is found, None for what is no API key."""
    is_key = key.startswith(KEY_SCHEME) and key[_PREFIX_CHARACTERS : _PREFIX_CHARACTERS + 1] == "_"
    return key[:_PREFIX_CHARACTERS] if is_key else None


def digest_key(key: str) -> bytes:
    """Return what is stored of a key instead of it."""
    return codec.digest_bytes(key.encode())


def is_key_of(key: str, api_key: ApiKey) -> bool:
    """Tell whether a key is the one that was stored; takes the same time for any other."""
    return hmac.compare_digest(digest_key(key), api_key.digest)
