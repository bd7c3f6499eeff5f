"""Ports of the payload store beyond reading and writing: sealing, listing, collection."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef

# The first bytes of every sealed object, of all tenants and keys.
SEAL_MAGIC = b"NOETLSEA"


class Owner(Struct, frozen=True, kw_only=True):
    """Whose objects are meant; no key of the store is without both."""

    tenant_id: TenantId
    organization_id: OrganizationId


class ObjectSealer(Protocol):
    """Turns the bytes of one object into sealed bytes, piece by piece."""

    @property
    def key_id(self) -> str:
        """Name the key that opens the object."""

    def seal_bytes(self, piece: bytes) -> bytes:
        """Take a piece; return what can be written so far."""

    def finish_sealing(self) -> bytes:
        """Return the rest; without it the object does not open."""


class ObjectUnsealer(Protocol):
    """Turns sealed bytes back, piece by piece; nothing unchecked is ever returned."""

    def unseal_bytes(self, piece: bytes) -> bytes:
        """Take sealed bytes; raises `PayloadSealBroken`, `PayloadKeyUnknown`."""

    def finish_unsealing(self) -> bytes:
        """Return the rest; raises `PayloadSealBroken` when something is missing."""


class TenantKeyTurns(Protocol):
    """Keys of tenants as they are turned and destroyed; calls may block."""

    def list_key_ids(self, owner: Owner) -> list[str]:
        """Return the ids of an owner's keys, the oldest first."""

    def find_made_at(self, owner: Owner, key_id: str) -> datetime | None:
        """Return when a key was made, None for one that is destroyed."""

    def make_key(self, owner: Owner) -> str:
        """Make a key for an owner, which seals from now on; return its id."""

    def destroy_keys(self, owner: Owner, key_ids: list[str]) -> None:
        """Remove keys for good: what they sealed can never be opened again."""


class ObjectSeals(Protocol):
    """Seals objects to their place with a key of their tenant."""

    def start_sealing(self, owner: Owner, name: str) -> ObjectSealer:
        """Begin to seal with the owner's current key; `name` is empty for content by digest."""

    def start_unsealing(self, owner: Owner, name: str) -> ObjectUnsealer:
        """Begin to open what was sealed at this place."""

    def find_tenant_keys(self) -> TenantKeyTurns | None:
        """Return the keys of tenants that seal, None where the deployment's keys do."""

    def bind_objects(self, objects: Any) -> "ObjectSeals":
        """Return the seals of one store; keys of tenants lie in it, where there are any.

        `objects` are the keys of that store, as `TenantKeyObjects` of the seals.
        """

    def reseal_head(self, owner: Owner, name: str, head: bytes) -> tuple[int, bytes | None]:
        """Return the length of a head, and the one that the current key makes of it.

        `head` begins with the object's first bytes. The second is None when the current key has
        sealed it already. Raises `PayloadSealBroken`, `PayloadKeyUnknown`.
        """


class StoredContent(Struct, frozen=True, kw_only=True):
    """Content as it lies in the store; `modified_at` is when it was last written, or shelved.

    `stored_bytes` is what it takes there, after compression and sealing.
    """

    sha256: str
    stored_bytes: int
    modified_at: datetime
    is_shelved: bool = False


class StoredObject(Struct, frozen=True, kw_only=True):
    """A named object as it lies in the store; `modified_at` is when it was written."""

    name: str
    stored_bytes: int
    modified_at: datetime


class PayloadShelf(Protocol):
    """The store as the collector of unused payloads sees it.

    What seems unused is shelved first: moved aside, where every reader still finds it, and storing
    it again brings it back. Purging is the only act that loses anything.
    """

    def iterate_contents(self, owner: Owner) -> AsyncIterator[list[StoredContent]]:
        """Yield all content of an owner, shelved or not, page by page."""

    def iterate_objects(self, owner: Owner) -> AsyncIterator[list[StoredObject]]:
        """Yield all named objects of an owner, page by page."""

    async def count_stored_bytes(self, tenant_id: TenantId) -> int:
        """Add up what all objects of a tenant take in the store, of every organization."""

    async def has_content(self, owner: Owner, sha256: str) -> bool:
        """Tell whether the store has content, shelved or not: slices of what is gone may go too."""

    async def remove_object(self, owner: Owner, name: str) -> None:
        """Remove a named object for good; what is not there is no error."""

    def stream_content(self, owner: Owner, content: str, *, is_name: bool) -> AsyncIterator[bytes]:
        """Yield the bytes of content by digest, or of a named object; nothing when it is gone.

        Raises `PayloadCorrupt` after the last piece of content that is not what it was.
        """

    async def shelve_content(self, owner: Owner, content: StoredContent) -> bool:
        """Put content aside; False when it is gone or was written again since it was listed."""

    async def restore_content(self, owner: Owner, sha256: str) -> bool:
        """Copy shelved content back to its place; False when it is there, or on no shelf."""

    async def purge_content(self, owner: Owner, content: StoredContent) -> bool:
        """Remove shelved content for good; False when it is gone or was put aside again since."""


class PayloadReferences(Protocol):
    """What durable records say about payloads."""

    def hold_collector_lock(self, owner: Owner) -> AbstractAsyncContextManager[bool]:
        """Let one process at a time collect what is an owner's; False where another one does."""

    async def list_owners(self) -> list[Owner]:
        """Return every owner that has a history, in order."""

    async def find_held_since(self, owner: Owner) -> datetime | None:
        """Return when the oldest work of an owner began that has not ended; None without any."""

    def iterate_mentioned(self, owner: Owner, digests: Collection[str]) -> AsyncIterator[set[str]]:
        """Yield those of the digests that a durable record of the owner mentions, page by page.

        A result whose own time to live has passed is no mention of its content, once its
        execution has ended.
        """

    async def list_known_executions(self, owner: Owner, executions: Collection[str]) -> set[str]:
        """Return those of the executions of which the owner has a history."""


class TierName(StrEnum):
    """Where bytes were found, from near to far."""

    MEMORY = "memory"
    SHARED = "shared"
    DISK = "disk"
    STORE = "store"


class PayloadTier(StrEnum):
    """Where the content of a result lies, as its envelope and the settings of the store tell.

    Copies that workers keep in memory and on their disks are not recorded.
    """

    LEDGER = "ledger"
    MEMORY = "memory"
    DISK = "disk"
    OBJECT_STORE = "object store"


class TierClock(Protocol):
    """The two readings that tiers need; the second is the same for all processes of a machine."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""

    def monotonic_s(self) -> float:
        """Return seconds since some fixed point; only differences mean anything."""


class Tier(Protocol):
    """Copies of stored content; losing all of them changes nothing but time."""

    name: TierName

    async def find_copy(self, ref: PayloadRef) -> bytes | None:
        """Return content whose digest was checked, or None on any doubt."""

    async def keep_copy(self, ref: PayloadRef, data: bytes) -> bool:
        """Keep a copy of stored content; False when there is no room or the place fails."""

    async def forget_copy(self, ref: PayloadRef) -> None:
        """Drop the copy; dropping what is not there is no error."""

    def used_bytes(self) -> int:
        """Return how many bytes the tier holds, as far as this process knows."""


class TierWatch(Protocol):
    """Hears what became of every read and every copy."""

    def note_read(self, tier: TierName, *, is_hit: bool, count_bytes: int) -> None:
        """Note that a tier was asked, and how many bytes it gave."""

    def note_resolution(self, tier: TierName, *, duration_s: float) -> None:
        """Note how long it took to read content, and which tier had it."""

    def note_copy(self, tier: TierName, *, is_kept: bool, used_bytes: int) -> None:
        """Note that a tier was offered a copy, and how many bytes it holds now."""

    def note_sweep(self, reason: str, segments: int) -> None:
        """Note that a sweep removed segments."""


class NearPayloads(Protocol):
    """Content as near as it can be had, for those who read it without holding it."""

    async def map_table(self, ref: PayloadRef, *, is_verified: bool = False) -> Any:
        """Map an Arrow stream of this node as a table, copying nothing; None when it is not here.

        With `is_verified` every byte is read once for its digest.
        """

    def lend_file(self, ref: PayloadRef) -> AbstractAsyncContextManager[Path]:
        """Hold a file whose digest was checked; raises `PayloadMissing`, `PayloadCorrupt`."""
