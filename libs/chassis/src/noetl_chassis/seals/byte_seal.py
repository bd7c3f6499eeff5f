"""Seals bytes with a key that is used for them alone."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl_chassis.seals.credential_seal import NONCE_BYTES


def seal_bytes(data: bytes, key: bytes) -> bytes:
    """Return bytes that only who has the key reads: AES-256-GCM, behind its nonce."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, None)


def open_bytes(data: bytes, key: bytes) -> bytes:
    """Return what was sealed; raises `ValueError` for what was changed."""
    try:
        return AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], None)
    except InvalidTag as failure:
        raise ValueError("sealed bytes were changed, or belong to another key") from failure
