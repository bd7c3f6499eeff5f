"""Master keys in a key management service: each tenant's key is wrapped with one of them.

A process makes a key for a tenant when it first seals for it, has it wrapped once, and wraps the
keys of objects with it itself. What it writes beside an object is the tenant's key, wrapped, and
the object's key, wrapped with that: a process that opens objects asks for a tenant's key once, not
for every object. Turning the master key rewrites heads, as with keys that a process holds itself.
"""

import os
import threading
from collections.abc import Mapping
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap,
    aes_key_wrap,
)

from noetl_chassis.seals.credential_seal import KEY_BYTES, NONCE_BYTES
from noetl_contracts.errors import PayloadKeyUnknown, PayloadSealBroken
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.lru_cache import LruCache

_LENGTH_BYTES = 2
_KEPT_MAX = 4096
# After so many objects a tenant gets a new key: far below what one key may seal with nonces.
_OBJECTS_MAX = 2**24


class Owner(Protocol):
    """The tenant and organization that an object belongs to."""

    @property
    def tenant_id(self) -> TenantId:
        """Name the tenant."""

    @property
    def organization_id(self) -> OrganizationId:
        """Name the organization."""


class KeyService(Protocol):
    """Wraps keys with the tenants' keys: in this process, or by a key management service.

    `associated_data` names the object: a key wrapped for one object does not unwrap for another.
    """

    def get_key_id(self, owner: Owner) -> str:
        """Name the key that wraps for an owner now."""

    def wrap_key(self, owner: Owner, key: bytes, associated_data: bytes) -> bytes:
        """Wrap an object's key with the owner's current key."""

    def unwrap_key(
        self, owner: Owner, key_id: str, wrapped: bytes, associated_data: bytes
    ) -> bytes:
        """Return an object's key; raises `PayloadKeyUnknown`, `PayloadSealBroken`."""


class KeyManagement(Protocol):
    """Holds master keys that never leave it; calls may block.

    `context` is bound into the wrapping: a key that was wrapped under one does not unwrap under
    another.
    """

    def get_key_id(self) -> str:
        """Name the master key that wraps now."""

    def wrap_key(self, key: bytes, context: Mapping[str, str]) -> bytes:
        """Wrap a key of 32 bytes with it; raises a `Retryable` when nobody answers."""

    def unwrap_key(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return a key; raises `PayloadKeyUnknown`, `PayloadSealBroken`, and as `wrap_key` does."""


class LocalKeyManagement:
    """Master keys in this process, newest first: a key management service for one machine.

    Wraps with AES-KW (RFC 3394), under a key that is derived for the context.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    def get_key_id(self) -> str:
        """Name the newest key."""
        return next(iter(self._keys))

    def wrap_key(self, key: bytes, context: Mapping[str, str]) -> bytes:
        """Wrap a key of 32 bytes with the newest master key."""
        return aes_key_wrap(self._derive_context_key(self.get_key_id(), context), key)

    def unwrap_key(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return a key; raises `PayloadKeyUnknown`, `PayloadSealBroken`."""
        if key_id not in self._keys:
            raise PayloadKeyUnknown(
                f"a payload was sealed under master key {key_id!r}, and those here are "
                f"{', '.join(map(repr, self._keys))}: keep every key until `noetl payloads "
                "rotate` has run"
            )
        try:
            return aes_key_unwrap(self._derive_context_key(key_id, context), wrapped)
        except (InvalidUnwrap, ValueError) as failure:
            raise PayloadSealBroken(
                f"a tenant's key does not open with master key {key_id!r}"
            ) from failure

    def _derive_context_key(self, key_id: str, context: Mapping[str, str]) -> bytes:
        about = "/".join(f"{name}={context[name]}" for name in sorted(context))
        derive = HKDF(
            algorithm=SHA256(), length=KEY_BYTES, salt=None, info=f"noetl/kek/{about}".encode()
        )
        return derive.derive(self._keys[key_id])


class _TenantKey:
    """A tenant's key as this process seals with it."""

    def __init__(self, key: bytes, *, key_id: str, wrapped: bytes) -> None:
        self.cipher = AESGCM(key)
        self.key_id = key_id
        self.wrapped = wrapped
        self.objects = 0


class ManagedKeys:
    """A `KeyService` over key management: one call of it for a tenant, not for every object."""

    def __init__(self, management: KeyManagement) -> None:
        self._management = management
        self._key_by_owner: dict[tuple[str, str], _TenantKey] = {}
        self._cipher_by_key = LruCache[tuple[str, str, bytes], AESGCM](entries_max=_KEPT_MAX)
        self._lock = threading.Lock()

    def get_key_id(self, owner: Owner) -> str:  # noqa: ARG002 - one master key for all tenants
        """Name the master key that wraps now."""
        return self._management.get_key_id()

    def wrap_key(self, owner: Owner, key: bytes, associated_data: bytes) -> bytes:
        """Wrap an object's key with the tenant's, and put that one before it, wrapped."""
        tenant_key = self._get_tenant_key(owner)
        nonce = os.urandom(NONCE_BYTES)
        length = len(tenant_key.wrapped).to_bytes(_LENGTH_BYTES, "big")
        return (
            length
            + tenant_key.wrapped
            + nonce
            + tenant_key.cipher.encrypt(nonce, key, associated_data)
        )

    def unwrap_key(
        self, owner: Owner, key_id: str, wrapped: bytes, associated_data: bytes
    ) -> bytes:
        """Return an object's key; raises as the key management does."""
        end = _LENGTH_BYTES + int.from_bytes(wrapped[:_LENGTH_BYTES], "big")
        tenant_key, wrapped_key = wrapped[_LENGTH_BYTES:end], wrapped[end:]
        try:
            cipher = self._unwrap_tenant_key(owner, key_id, tenant_key)
            return cipher.decrypt(
                wrapped_key[:NONCE_BYTES], wrapped_key[NONCE_BYTES:], associated_data
            )
        except (InvalidTag, ValueError) as failure:
            raise PayloadSealBroken(
                f"the key of a sealed payload does not open under master key {key_id!r}"
            ) from failure

    def _get_tenant_key(self, owner: Owner) -> _TenantKey:
        name = (owner.tenant_id, owner.organization_id)
        with self._lock:
            tenant_key = self._key_by_owner.get(name)
            is_fresh = tenant_key is not None and tenant_key.objects < _OBJECTS_MAX
            if (
                tenant_key is None
                or not is_fresh
                or tenant_key.key_id != self._management.get_key_id()
            ):
                key = AESGCM.generate_key(KEY_BYTES * 8)
                key_id = self._management.get_key_id()
                wrapped_key = self._management.wrap_key(key, _build_wrap_context(owner))
                tenant_key = self._key_by_owner[name] = _TenantKey(
                    key, key_id=key_id, wrapped=wrapped_key
                )
            tenant_key.objects += 1
            return tenant_key

    def _unwrap_tenant_key(self, owner: Owner, key_id: str, wrapped: bytes) -> AESGCM:
        name = (f"{owner.tenant_id}/{owner.organization_id}", key_id, wrapped)
        with self._lock:
            cipher = self._cipher_by_key.find_value(name)
            if cipher is not None:
                return cipher
        cipher = AESGCM(self._management.unwrap_key(key_id, wrapped, _build_wrap_context(owner)))
        with self._lock:
            self._cipher_by_key.keep_value(name, cipher)
        return cipher


def _build_wrap_context(owner: Owner) -> dict[str, str]:
    return {
        "noetl:tenant": str(owner.tenant_id),
        "noetl:organization": str(owner.organization_id),
    }
