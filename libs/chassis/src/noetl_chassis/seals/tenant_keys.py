"""Keys of tenants that can be turned and destroyed: each lies beside the tenant's payloads.

A tenant's key is 256 random bits, stored wrapped with the deployment's keys. It wraps the keys of
the tenant's objects. Without it nothing opens them, not even the deployment's keys: to destroy it
is to erase them. A destroyed key is remembered by a process for `REMEMBERED_S` at most.
"""

import os
import secrets
import threading
from base64 import b64decode, b64encode
from datetime import datetime
from time import monotonic
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from noetl_chassis.seals.credential_seal import KEY_BYTES, NONCE_BYTES
from noetl_chassis.seals.key_management import KeyService, Owner
from noetl_contracts import codec
from noetl_contracts.errors import PayloadKeyUnknown, PayloadSealBroken

REMEMBERED_S = 60.0
PREFIX = "t-"
_RANDOM_BYTES = 4
_TRIES_MAX = 5


class TenantKeyObjects(Protocol):
    """Where the wrapped keys of tenants lie; calls may block."""

    def list_key_ids(self, owner: Owner) -> list[str]:
        """Return the ids of an owner's keys, the oldest first."""

    def read_key(self, owner: Owner, key_id: str) -> bytes | None:
        """Return a wrapped key, or None."""

    def find_made_at(self, owner: Owner, key_id: str) -> datetime | None:
        """Return when a key was written, or None."""

    def create_key(self, owner: Owner, key_id: str, data: bytes) -> None:
        """Write a wrapped key."""

    def delete_key(self, owner: Owner, key_id: str) -> None:
        """Remove a key for good."""


class _WrappedKey(Struct, frozen=True, kw_only=True):
    """A tenant's key as it is stored, and the deployment's key that wraps it."""

    wrapped_by: str
    wrapped: str


class _Opened(Struct, frozen=True):
    cipher: AESGCM | None
    until: float


class TenantKeys:
    """A `KeyService` over another one: objects' keys are wrapped with their tenant's.

    What the other one has wrapped itself, before there were keys of tenants, it still unwraps.
    """

    def __init__(self, keys: KeyService, objects: TenantKeyObjects) -> None:
        self._keys = keys
        self._objects = objects
        self._current: dict[tuple[str, str], tuple[str, float]] = {}
        self._opened: dict[tuple[str, str, str], _Opened] = {}
        self._lock = threading.Lock()

    def get_key_id(self, owner: Owner) -> str:
        """Name the owner's newest key, which is made where there is none."""
        place = _get_place(owner)
        with self._lock:
            key_id, until = self._current.get(place, ("", 0.0))
        if until > monotonic():
            return key_id
        key_ids = self._objects.list_key_ids(owner)
        newest = key_ids[-1] if key_ids else self.make_key(owner)
        with self._lock:
            self._current[place] = newest, monotonic() + REMEMBERED_S
        return newest

    def wrap_key(self, owner: Owner, key: bytes, associated_data: bytes) -> bytes:
        """Wrap an object's key with the owner's newest key."""
        for _ in range(_TRIES_MAX):
            cipher = self._find_cipher(owner, self.get_key_id(owner))
            if cipher is not None:
                nonce = os.urandom(NONCE_BYTES)
                return nonce + cipher.encrypt(nonce, key, associated_data)
            # It was destroyed since it was looked up.
            self.forget_keys(owner)
        raise PayloadKeyUnknown(
            f"the keys of {owner.tenant_id}/{owner.organization_id} are destroyed as fast as they "
            "are made"
        )

    def unwrap_key(
        self, owner: Owner, key_id: str, wrapped: bytes, associated_data: bytes
    ) -> bytes:
        """Return an object's key; raises `PayloadKeyUnknown`, `PayloadSealBroken`."""
        if not key_id.startswith(PREFIX):
            return self._keys.unwrap_key(owner, key_id, wrapped, associated_data)
        cipher = self._find_cipher(owner, key_id)
        if cipher is None:
            raise PayloadKeyUnknown(
                f"key {key_id!r} of {owner.tenant_id}/{owner.organization_id} was destroyed: what "
                "it sealed is erased (noetl audit log --what tenant)"
            )
        try:
            return cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], associated_data)
        except (InvalidTag, ValueError) as failure:
            raise PayloadSealBroken(
                f"the key of a sealed payload does not open with key {key_id!r}"
            ) from failure

    def make_key(self, owner: Owner) -> str:
        """Make a key for an owner, which seals from now on; return its id."""
        # The number stands first, so that the newest is the last of a listing.
        numbers = [_read_number(key_id) for key_id in self._objects.list_key_ids(owner)]
        number = max(numbers, default=0) + 1
        key_id = f"{PREFIX}{number:06d}-{secrets.token_hex(_RANDOM_BYTES)}"
        wrapped_key = self._keys.wrap_key(
            owner, AESGCM.generate_key(KEY_BYTES * 8), _build_associated_data(key_id)
        )
        stored_key = _WrappedKey(
            wrapped_by=self._keys.get_key_id(owner), wrapped=b64encode(wrapped_key).decode()
        )
        self._objects.create_key(owner, key_id, codec.encode_json(stored_key))
        self.forget_keys(owner)
        return key_id

    def destroy_keys(self, owner: Owner, key_ids: list[str]) -> None:
        """Remove keys for good: what they sealed can never be opened again."""
        for key_id in key_ids:
            self._objects.delete_key(owner, key_id)
        self.forget_keys(owner)

    def list_key_ids(self, owner: Owner) -> list[str]:
        """Return the ids of an owner's keys, the oldest first."""
        return self._objects.list_key_ids(owner)

    def find_made_at(self, owner: Owner, key_id: str) -> datetime | None:
        """Return when a key was made, None for one that is destroyed."""
        return self._objects.find_made_at(owner, key_id)

    def forget_keys(self, owner: Owner) -> None:
        """Ask for an owner's keys anew."""
        place = _get_place(owner)
        with self._lock:
            self._current.pop(place, None)
            for name in [name for name in self._opened if name[:2] == place]:
                del self._opened[name]

    def _find_cipher(self, owner: Owner, key_id: str) -> AESGCM | None:
        name = (*_get_place(owner), key_id)
        with self._lock:
            opened_key = self._opened.get(name)
        if opened_key is None or opened_key.until <= monotonic():
            opened_key = _Opened(self._open_key(owner, key_id), monotonic() + REMEMBERED_S)
            with self._lock:
                self._opened[name] = opened_key
        return opened_key.cipher

    def _open_key(self, owner: Owner, key_id: str) -> AESGCM | None:
        data = self._objects.read_key(owner, key_id)
        if data is None:
            return None
        try:
            stored_key = codec.decode_as(data, _WrappedKey)
            wrapped_key = b64decode(stored_key.wrapped, validate=True)
        except (msgspec.DecodeError, ValueError) as failure:
            raise PayloadSealBroken(f"key {key_id!r} was changed in the store") from failure
        return AESGCM(
            self._keys.unwrap_key(
                owner, stored_key.wrapped_by, wrapped_key, _build_associated_data(key_id)
            )
        )


def _get_place(owner: Owner) -> tuple[str, str]:
    return owner.tenant_id, owner.organization_id


def _read_number(key_id: str) -> int:
    number = key_id.removeprefix(PREFIX).partition("-")[0]
    return int(number) if number.isdigit() else 0


def _build_associated_data(key_id: str) -> bytes:
    return f"tenant-key/{key_id}".encode()
