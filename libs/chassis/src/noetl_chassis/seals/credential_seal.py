"""Seals credentials at rest and opens them again, with the deployment's key."""

import binascii
import os
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl_contracts import codec, credentials
from noetl_contracts.credentials import TEXT_PREFIX, SealedCredential
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import OrganizationId, TenantId

KEY_BYTES = 32
NONCE_BYTES = 12
_KEY_ID_CHARACTERS = 8


class KeyUnusable(Permanent):
    """The key for sealed credentials is not 32 bytes in base64."""


class SealBroken(Permanent):
    """A sealed credential does not open: another key sealed it, or its bytes were changed."""


class CredentialSealer:
    """Holds the key; neither the key nor what it opens ever shows in `repr` or errors."""

    def __init__(self, key: str) -> None:
        raw = decode_key(key)
        self._cipher = AESGCM(raw)
        self.key_id = codec.digest_hex(raw)[:_KEY_ID_CHARACTERS]

    def seal_credential(
        self,
        fields: dict[str, Any],
        *,
        name: str,
        version: int,
        kind: str,
        tenant_id: TenantId,
        organization_id: OrganizationId,
    ) -> SealedCredential:
        """Seal a credential's fields, bound to its name, version and owner."""
        nonce = os.urandom(NONCE_BYTES)
        associated_data = credentials.build_associated_data(
            tenant_id, organization_id, name, version
        )
        ciphertext = self._cipher.encrypt(nonce, codec.encode_json(fields), associated_data)
        return SealedCredential(
            name=name,
            version=version,
            kind=kind,
            key_id=self.key_id,
            nonce=b64encode(nonce).decode(),
            ciphertext=b64encode(ciphertext).decode(),
        )

    def open_credential(
        self, sealed: SealedCredential, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> dict[str, Any]:
        """Return a credential's fields; raises `SealBroken`."""
        associated_data = credentials.build_associated_data(
            tenant_id, organization_id, sealed.name, sealed.version
        )
        try:
            plain_bytes = self._cipher.decrypt(
                b64decode(sealed.nonce), b64decode(sealed.ciphertext), associated_data
            )
            return codec.decode_as(plain_bytes, dict[str, Any])
        except (InvalidTag, binascii.Error, ValueError, msgspec.DecodeError) as failure:
            raise SealBroken(
                f"credential {sealed.name!r} was sealed with key {sealed.key_id!r} and does not "
                f"open with key {self.key_id!r}: put it again, or set the key that sealed it"
            ) from failure

    def seal_text(self, text: str, *, tenant_id: TenantId, organization_id: OrganizationId) -> str:
        """Seal one text to its tenant; the sealed form may stand in any value."""
        nonce = os.urandom(NONCE_BYTES)
        associated_data = _build_text_associated_data(tenant_id, organization_id)
        sealed = nonce + self._cipher.encrypt(nonce, text.encode(), associated_data)
        sealed_text = urlsafe_b64encode(sealed).decode().rstrip("=")
        return f"{TEXT_PREFIX}{self.key_id}:{sealed_text}"

    def open_text(
        self, sealed: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> str:
        """Return what `seal_text` was given; raises `SealBroken`."""
        key_id, _, sealed_text = sealed.removeprefix(TEXT_PREFIX).partition(":")
        try:
            raw = urlsafe_b64decode(sealed_text + "=" * (-len(sealed_text) % 4))
            associated_data = _build_text_associated_data(tenant_id, organization_id)
            return self._cipher.decrypt(
                raw[:NONCE_BYTES], raw[NONCE_BYTES:], associated_data
            ).decode()
        except (InvalidTag, binascii.Error, ValueError) as failure:
            raise SealBroken(
                f"a sealed value was made with key {key_id!r} or for another tenant, and does not "
                f"open with key {self.key_id!r}: make it again, or set the key that sealed it"
            ) from failure


def _build_text_associated_data(tenant_id: TenantId, organization_id: OrganizationId) -> bytes:
    return f"text/{tenant_id}/{organization_id}".encode()


def decode_key(key: str) -> bytes:
    """Return the bytes of a key in base64; raises `KeyUnusable`."""
    try:
        raw = b64decode(key, validate=True)
    except binascii.Error as failure:
        raise KeyUnusable(
            "the secret key is not base64: it must be 32 bytes in base64"
        ) from failure
    if len(raw) != KEY_BYTES:
        raise KeyUnusable(f"the secret key has {len(raw)} bytes: it must be 32 bytes in base64")
    return raw
