"""What is asked of the payload store beyond reading and writing: sealing, listing, collecting."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from noetl_contracts.ids import OrganizationId, TenantId

# The first bytes of every sealed object, whoever sealed it.
SEAL_MAGIC = b"NOETLSEA"


class Owner(Struct, frozen=True, kw_only=True):
    """Whose objects are meant; no key of the store is without both."""

    tenant_id: TenantId
    organization_id: OrganizationId


class Sealing(Protocol):
    """Turns the bytes of one object into sealed bytes, piece by piece."""

    @property
    def key_id(self) -> str:
        """Name the key that opens the object."""

    def update(self, piece: bytes) -> bytes:
        """Take a piece; return what can be written so far."""

    def finish(self) -> bytes:
        """Return the rest; without it the object does not open."""


class Opening(Protocol):
    """Turns sealed bytes back, piece by piece; nothing unchecked is ever returned."""

    def update(self, piece: bytes) -> bytes:
        """Take sealed bytes; raises `PayloadSealBroken`, `PayloadKeyUnknown`."""

    def finish(self) -> bytes:
        """Return the rest; raises `PayloadSealBroken` when something is missing."""


class Seals(Protocol):
    """Seals objects to their place with a key of their tenant."""

    def begin(self, owner: Owner, name: str) -> Sealing:
        """Begin to seal with the owner's current key; `name` is empty for content by digest."""

    def open(self, owner: Owner, name: str) -> Opening:
        """Begin to open what was sealed at this place."""

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
    """The store as the collector sees it.

    Shelved content is still found by every reader; storing it again brings it back. Purging is
    the only act that loses anything.
    """

    def list_contents(self, owner: Owner) -> AsyncIterator[list[StoredContent]]:
        """Yield all content of an owner, shelved or not, page by page."""

    def list_objects(self, owner: Owner) -> AsyncIterator[list[StoredObject]]:
        """Yield all named objects of an owner, page by page."""

    async def has_content(self, owner: Owner, sha256: str) -> bool:
        """Tell whether content is in its place or on the shelf."""

    async def remove_object(self, owner: Owner, name: str) -> None:
        """Remove a named object for good; what is not there is no error."""

    def read_text(self, owner: Owner, content: str, *, is_name: bool) -> AsyncIterator[bytes]:
        """Yield the bytes of content by digest, or of a named object; nothing when it is gone.

        Raises `PayloadCorrupt` after the last piece of content that is not what it was.
        """

    async def shelve(self, owner: Owner, content: StoredContent) -> bool:
        """Put content aside; False when it is gone or was written again since it was listed."""

    async def restore(self, owner: Owner, sha256: str) -> bool:
        """Copy shelved content back to its place; False when it is there, or on no shelf."""

    async def purge(self, owner: Owner, sha256: str) -> None:
        """Remove shelved content for good; what is not there is no error."""


class PayloadReferences(Protocol):
    """What durable records say about payloads."""

    def alone(self, owner: Owner) -> AbstractAsyncContextManager[bool]:
        """Let one process at a time collect what is an owner's; False where another one does."""

    async def list_owners(self) -> list[Owner]:
        """Return every owner that has a history, in order."""

    async def held_since(self, owner: Owner) -> datetime | None:
        """Return when the oldest work of an owner began that has not ended; None without any."""

    def list_mentioned(self, owner: Owner, digests: Collection[str]) -> AsyncIterator[set[str]]:
        """Yield those of the digests that a durable record of the owner mentions, page by page.

        A result whose own time to live has passed is no mention of its content, once its
        execution has ended.
        """

    async def list_known(self, owner: Owner, executions: Collection[str]) -> set[str]:
        """Return those of the executions of which the owner has a history."""
