"""Seals payloads: a key of its own for every object, wrapped with a key of the object's tenant.

A sealed object is a head and pieces. The head begins with `NOETLSEA` and the length of what
follows (4 bytes, big-endian): JSON that names the key and holds the object's wrapped key. Pieces
of 64 KiB follow, each sealed by AES-256-GCM with its place in the order and whether it is the last
as its nonce, so that none can be changed, moved, left out or cut off. Because only the head
depends on the tenant's key, turning keys rewrites heads and never opens what they seal.
"""

import binascii
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from noetl_chassis.seals.credential_seal import KEY_BYTES, NONCE_BYTES, KeyUnusable, decode_key
from noetl_chassis.seals.key_management import (
    KeyManagement,
    KeyService,
    LocalKeyManagement,
    ManagedKeys,
    Owner,
)
from noetl_chassis.seals.tenant_keys import TenantKeyObjects, TenantKeys
from noetl_contracts import codec
from noetl_contracts.errors import PayloadKeyUnknown, PayloadSealBroken

MAGIC = b"NOETLSEA"
PIECE_BYTES = 64 * 1024
_TAG_BYTES = 16
_LENGTH_BYTES = 4
_HEAD_BYTES_MAX = 4096
_KEY_ID_CHARACTERS_MAX = 64
_KEYS_MAX = 64
_FORMAT = 1
# A nonce, an object's key and a tag: what a ring of keys makes of a key.
_RING_BYTES = NONCE_BYTES + KEY_BYTES + _TAG_BYTES
_MANAGED, _MANAGED_FILE = "kms+", "kms+file://"
# Before keys, or the address of who holds them: each tenant has a key that can be destroyed.
_BY_TENANT = "tenant+"
# Before keys that are one owner's: they open nothing of others.
_BY_OWNER = "owner+"


class KeyRing:
    """The master keys of a deployment, newest first; every tenant's key is derived from them.

    Keys that are derived already, `is_derived`, are those of one owner.
    """

    def __init__(self, keys: Mapping[str, bytes], *, is_derived: bool = False) -> None:
        self._keys = dict(keys)
        self._is_derived = is_derived
        self._current = next(iter(self._keys))
        self._cipher_by_owner: dict[tuple[str, str, str], AESGCM] = {}

    def get_key_id(self, owner: Owner) -> str:  # noqa: ARG002 - one master key for all tenants
        """Name the newest key."""
        return self._current

    def wrap_key(self, owner: Owner, key: bytes, associated_data: bytes) -> bytes:
        """Wrap an object's key with the owner's current key."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._get_cipher(owner, self._current).encrypt(nonce, key, associated_data)

    def unwrap_key(
        self, owner: Owner, key_id: str, wrapped: bytes, associated_data: bytes
    ) -> bytes:
        """Return an object's key; raises `PayloadKeyUnknown`, `PayloadSealBroken`."""
        if key_id not in self._keys:
            raise PayloadKeyUnknown(
                f"a payload was sealed with key {key_id!r}, and the keys here are "
                f"{', '.join(map(repr, self._keys))}: keep every key until `noetl payloads "
                "rotate` has run"
            )
        try:
            cipher = self._get_cipher(owner, key_id)
            return cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], associated_data)
        except (InvalidTag, ValueError) as failure:
            raise PayloadSealBroken(
                f"the key of a sealed payload does not open with key {key_id!r}"
            ) from failure

    def _get_cipher(self, owner: Owner, key_id: str) -> AESGCM:
        name = (owner.tenant_id, owner.organization_id, key_id)
        if name not in self._cipher_by_owner:
            key = self._keys[key_id]
            cipher_key = key if self._is_derived else _derive_owner_key(key, owner)
            self._cipher_by_owner[name] = AESGCM(cipher_key)
        return self._cipher_by_owner[name]


def _derive_owner_key(key: bytes, owner: Owner) -> bytes:
    about = f"noetl/payloads/{owner.tenant_id}/{owner.organization_id}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=about).derive(key)


class KeyMigration:
    """Key service during a move from local keys to managed keys: local keys only unwrap.

    The length of a wrapped key tells which of the two wrapped it: those of the ring are shorter.
    """

    def __init__(self, managed: ManagedKeys, *, before: KeyRing) -> None:
        self._managed = managed
        self._before = before

    def get_key_id(self, owner: Owner) -> str:
        """Name the master key that wraps now."""
        return self._managed.get_key_id(owner)

    def wrap_key(self, owner: Owner, key: bytes, associated_data: bytes) -> bytes:
        """Wrap an object's key with the managed keys."""
        return self._managed.wrap_key(owner, key, associated_data)

    def unwrap_key(
        self, owner: Owner, key_id: str, wrapped: bytes, associated_data: bytes
    ) -> bytes:
        """Return an object's key; raises `PayloadKeyUnknown`, `PayloadSealBroken`."""
        keys: KeyService = self._before if len(wrapped) == _RING_BYTES else self._managed
        return keys.unwrap_key(owner, key_id, wrapped, associated_data)


class _SealHead(Struct, frozen=True, kw_only=True):
    """What stands before the pieces."""

    v: int
    key_id: str
    key: str


class PayloadSeals:
    """Seals and opens objects; no key ever shows in `repr` or errors."""

    def __init__(self, keys: KeyService, *, has_tenant_keys: bool = False) -> None:
        self._keys = keys
        self._has_tenant_keys = has_tenant_keys

    def find_tenant_keys(self) -> TenantKeys | None:
        """Return the keys of tenants that seal, None where the deployment's keys do."""
        return self._keys if isinstance(self._keys, TenantKeys) else None

    def bind_objects(self, objects: TenantKeyObjects) -> "PayloadSeals":
        """Return the seals of one store, with the keys of tenants that lie in it, if any do."""
        if not self._has_tenant_keys:
            return self
        return PayloadSeals(TenantKeys(self._keys, objects))

    def start_sealing(self, owner: Owner, name: str) -> "_PayloadSealer":
        """Begin to seal with the owner's current key."""
        key = AESGCM.generate_key(KEY_BYTES * 8)
        head = self._build_head(owner, name, key)
        return _PayloadSealer(
            key,
            head=head,
            associated_data=_build_associated_data(owner, name),
            key_id=self._keys.get_key_id(owner),
        )

    def start_unsealing(self, owner: Owner, name: str) -> "_PayloadUnsealer":
        """Begin to open the object with this name."""
        return _PayloadUnsealer(
            self._keys, owner=owner, associated_data=_build_associated_data(owner, name)
        )

    def reseal_head(self, owner: Owner, name: str, head: bytes) -> tuple[int, bytes | None]:
        """Return the length of a head, and the one that the current key makes of it."""
        seal_head, head_bytes = _read_head(head)
        if seal_head is None:
            raise PayloadSealBroken("a sealed payload ends in its head")
        if seal_head.key_id == self._keys.get_key_id(owner):
            return head_bytes, None
        key = _unwrap_object_key(self._keys, owner, seal_head, _build_associated_data(owner, name))
        return head_bytes, self._build_head(owner, name, key)

    def _build_head(self, owner: Owner, name: str, key: bytes) -> bytes:
        wrapped_key = self._keys.wrap_key(owner, key, _build_associated_data(owner, name))
        about = _SealHead(
            v=_FORMAT, key_id=self._keys.get_key_id(owner), key=b64encode(wrapped_key).decode()
        )
        head_bytes = codec.encode_json(about)
        return MAGIC + len(head_bytes).to_bytes(_LENGTH_BYTES, "big") + head_bytes


class _PayloadSealer:
    """Cuts what comes into pieces and seals each; the last one is sealed by `finish_sealing`."""

    def __init__(self, key: bytes, *, head: bytes, associated_data: bytes, key_id: str) -> None:
        self._cipher = AESGCM(key)
        self._associated_data = associated_data
        self._buffer = bytearray()
        self._ready = bytearray(head)
        self._count = 0
        self.key_id = key_id

    def seal_bytes(self, piece: bytes) -> bytes:
        """Take a piece; return what can be written so far."""
        # One byte more than a piece must be there: else it may be the last one.
        for whole_piece in _cut_pieces(self._buffer, piece, PIECE_BYTES):
            self._seal_piece(whole_piece, is_last=False)
        return self._take_ready()

    def finish_sealing(self) -> bytes:
        """Return the rest."""
        self._seal_piece(self._buffer, is_last=True)
        return self._take_ready()

    def _seal_piece(self, piece: bytes | bytearray, *, is_last: bool) -> None:
        self._ready += self._cipher.encrypt(
            _build_nonce(self._count, is_last=is_last), bytes(piece), self._associated_data
        )
        self._count += 1

    def _take_ready(self) -> bytes:
        ready = bytes(self._ready)
        self._ready.clear()
        return ready


class _PayloadUnsealer:
    """Opens piece by piece; the last one is opened by `finish_sealing`."""

    def __init__(self, keys: KeyService, *, owner: Owner, associated_data: bytes) -> None:
        self._keys = keys
        self._owner = owner
        self._associated_data = associated_data
        self._cipher: AESGCM | None = None
        self._buffer = bytearray()
        self._count = 0

    def unseal_bytes(self, piece: bytes) -> bytes:
        """Take sealed bytes; raises `PayloadSealBroken`, `PayloadKeyUnknown`."""
        if self._cipher is None:
            self._buffer += piece
            if not self._read_cipher():
                return b""
            piece = b""
        whole_pieces = _cut_pieces(self._buffer, piece, PIECE_BYTES + _TAG_BYTES)
        return b"".join(
            self._unseal_piece(whole_piece, is_last=False) for whole_piece in whole_pieces
        )

    def finish_unsealing(self) -> bytes:
        """Return the rest; raises `PayloadSealBroken` when something is missing."""
        if self._cipher is None:
            raise PayloadSealBroken("a sealed payload ends in its head")
        return self._unseal_piece(self._buffer, is_last=True)

    def _read_cipher(self) -> bool:
        head, head_bytes = _read_head(self._buffer)
        if head is None:
            return False
        self._cipher = AESGCM(
            _unwrap_object_key(self._keys, self._owner, head, self._associated_data)
        )
        del self._buffer[:head_bytes]
        return True

    def _unseal_piece(self, piece: bytes | bytearray, *, is_last: bool) -> bytes:
        assert self._cipher is not None
        try:
            nonce = _build_nonce(self._count, is_last=is_last)
            plain_bytes = self._cipher.decrypt(nonce, bytes(piece), self._associated_data)
        except (InvalidTag, ValueError) as failure:
            raise PayloadSealBroken(
                f"piece {self._count} of a sealed payload was changed, moved or cut"
            ) from failure
        self._count += 1
        return plain_bytes


def read_payload_keys(
    text: str, *, file: str, managed: Callable[[str], KeyManagement] | None = None
) -> PayloadSeals | None:
    """Read `id:base64` keys, newest first, from a setting or a file; None without any.

    In a setting commas separate them, in a file lines; `#` begins a comment. A setting may be the
    address of who holds the keys instead: `kms+file://<path of such a file>`, and what `managed`
    opens; the keys of a file beside it only open what they have sealed. With `tenant+` before it,
    or alone beside a file, every tenant has a key of its own that can be destroyed. Raises
    `KeyUnusable`, and what `managed` raises.
    """
    has_tenant_keys, text = text.startswith(_BY_TENANT), text.removeprefix(_BY_TENANT)
    is_derived, text = text.startswith(_BY_OWNER), text.removeprefix(_BY_OWNER)
    if text.startswith(_MANAGED):
        service = _build_key_service(_open_key_management(text, managed), file)
        return PayloadSeals(service, has_tenant_keys=has_tenant_keys)
    if text and file:
        raise KeyUnusable("keys for payloads stand in a setting or in a file, not in both")
    entries = _read_key_lines(file) if file else [entry.strip() for entry in text.split(",")]
    keys = _parse_keys([entry for entry in entries if entry])
    if has_tenant_keys and not keys:
        raise KeyUnusable("keys of tenants need a key that wraps them: tenant+<id>:<base64>")
    if not keys:
        return None
    ring = KeyRing(keys, is_derived=is_derived)
    return PayloadSeals(ring, has_tenant_keys=has_tenant_keys)


def narrow_payload_keys(text: str, *, file: str, owner: Owner) -> tuple[str, str]:
    """Return a setting and a file of keys that open what is one owner's, and nothing of others.

    Keys that a service holds stay as they are: who may use them is the service's to say. Raises
    `KeyUnusable`.
    """
    if is_managed_address(text):
        return text, file
    by_tenant = _BY_TENANT if text.startswith(_BY_TENANT) else ""
    listed = text.removeprefix(by_tenant).split(",")
    entries = _read_key_lines(file) if file else [entry.strip() for entry in listed]
    keys = _parse_keys([entry for entry in entries if entry])
    if not keys:
        return "", ""
    narrowed = [
        f"{key_id}:{b64encode(_derive_owner_key(key, owner)).decode()}"
        for key_id, key in keys.items()
    ]
    return f"{by_tenant}{_BY_OWNER}{','.join(narrowed)}", ""


def is_managed_address(text: str) -> bool:
    """Tell whether a setting is the address of who holds the keys."""
    return text.removeprefix(_BY_TENANT).startswith(_MANAGED)


def _build_key_service(management: KeyManagement, file: str) -> KeyService:
    keys = ManagedKeys(management)
    before = _parse_keys([line for line in _read_key_lines(file) if line]) if file else {}
    if not before:
        return keys
    if management.get_key_id() in before:
        raise KeyUnusable(
            "the master key and a key of the file are both named "
            f"{management.get_key_id()!r}: what is "
            "sealed says only the name, so give the master key another one"
        )
    return KeyMigration(keys, before=KeyRing(before))


def _open_key_management(
    address: str, managed: Callable[[str], KeyManagement] | None
) -> KeyManagement:
    if address.startswith(_MANAGED_FILE):
        path = address.removeprefix(_MANAGED_FILE)
        keys = _parse_keys([line for line in _read_key_lines(path) if line])
        if not keys:
            raise KeyUnusable(f"the file of keys for payloads holds none: {path}")
        return LocalKeyManagement(keys)
    if managed is None:
        raise KeyUnusable("keys for payloads are not held by a service here")
    return managed(address)


def _read_key_lines(file: str) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as failure:
        raise KeyUnusable(f"the file of keys for payloads cannot be read: {file}") from failure
    return [line.partition("#")[0].strip() for line in lines]


def _parse_keys(entries: Sequence[str]) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(entries, start=1):
        key_id, colon, key_text = entry.partition(":")
        is_named = key_id.replace("-", "").replace("_", "").isalnum() and key_id.isascii()
        if not colon or not is_named or len(key_id) > _KEY_ID_CHARACTERS_MAX or key_id in keys:
            raise KeyUnusable(
                f"key {number} for payloads needs the form <id>:<32 bytes in base64>, with an id "
                "of letters, digits, '-' and '_' that no other key has"
            )
        keys[key_id] = decode_key(key_text.strip())
    if len(keys) > _KEYS_MAX:
        raise KeyUnusable(f"there are {len(keys)} keys for payloads, the limit is {_KEYS_MAX}")
    return keys


def _read_head(data: bytes | bytearray) -> tuple[_SealHead | None, int]:
    """Return a head and its length, None when more bytes are needed; raises `PayloadSealBroken`."""
    start = len(MAGIC) + _LENGTH_BYTES
    if len(data) < start:
        return None, 0
    written_bytes = int.from_bytes(data[len(MAGIC) : start], "big")
    if not data.startswith(MAGIC) or written_bytes > _HEAD_BYTES_MAX:
        raise PayloadSealBroken("the head of a sealed payload was changed")
    if len(data) < start + written_bytes:
        return None, 0
    try:
        head = codec.decode_as(bytes(data[start : start + written_bytes]), _SealHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise PayloadSealBroken("the head of a sealed payload was changed") from failure
    if head.v != _FORMAT:
        raise PayloadKeyUnknown(
            f"a payload was sealed in form {head.v} by a later release; this one knows {_FORMAT}"
        )
    return head, start + written_bytes


def _unwrap_object_key(
    keys: KeyService, owner: Owner, head: _SealHead, associated_data: bytes
) -> bytes:
    try:
        wrapped_key = b64decode(head.key, validate=True)
    except binascii.Error as failure:
        raise PayloadSealBroken("the head of a sealed payload was changed") from failure
    return keys.unwrap_key(owner, head.key_id, wrapped_key, associated_data)


def _cut_pieces(buffer: bytearray, piece: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Yield whole pieces of `buffer` and `piece`; keep the rest, at least a byte, in `buffer`."""
    if len(buffer) + len(piece) <= piece_bytes:
        buffer += piece
        return
    data = bytes(buffer) + piece if buffer else piece
    start = 0
    while len(data) - start > piece_bytes:
        yield data[start : start + piece_bytes]
        start += piece_bytes
    buffer[:] = data[start:]


def _build_associated_data(owner: Owner, name: str) -> bytes:
    return f"payload/{owner.tenant_id}/{owner.organization_id}/{name}".encode()


def _build_nonce(count: int, *, is_last: bool) -> bytes:
    """Count the pieces; every object has a key of its own, so no nonce is used twice with it."""
    return count.to_bytes(NONCE_BYTES - 1, "big") + bytes([is_last])
