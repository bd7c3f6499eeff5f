"""What is asked of a tier: a faster place that may always answer "not here"."""

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from noetl_contracts.payloads import PayloadRef


class TierName(StrEnum):
    """Where bytes were found, from near to far."""

    MEMORY = "memory"
    SHARED = "shared"
    DISK = "disk"
    STORE = "store"


class TierClock(Protocol):
    """The two readings that tiers need; the second is the same for all processes of a machine."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds since some fixed point; only differences mean anything."""


class Tier(Protocol):
    """Copies of stored content; losing all of them changes nothing but time."""

    name: TierName

    async def find(self, ref: PayloadRef) -> bytes | None:
        """Return content whose digest was checked, or None on any doubt."""

    async def keep(self, ref: PayloadRef, data: bytes) -> bool:
        """Keep a copy of stored content; False when there is no room or the place fails."""

    async def forget(self, ref: PayloadRef) -> None:
        """Drop the copy; dropping what is not there is no error."""

    def used_bytes(self) -> int:
        """Return how many bytes the tier holds, as far as this process knows."""


class TierWatch(Protocol):
    """Hears what became of every read and every copy."""

    def was_read(self, tier: TierName, *, is_hit: bool, count_bytes: int) -> None:
        """Note that a tier was asked, and how many bytes it gave."""

    def was_kept(self, tier: TierName, *, is_kept: bool, used_bytes: int) -> None:
        """Note that a tier was offered a copy, and how many bytes it holds now."""

    def was_swept(self, reason: str, segments: int) -> None:
        """Note that a sweep removed segments."""


class Near(Protocol):
    """Content as near as it can be had, for those who read it without holding it."""

    async def table(self, ref: PayloadRef, *, is_verified: bool = False) -> Any:
        """Map an Arrow stream of this node as a table, copying nothing; None when it is not here.

        With `is_verified` every byte is read once for its digest.
        """

    def lend(self, ref: PayloadRef) -> AbstractAsyncContextManager[Path]:
        """Hold a file whose digest was checked; raises `PayloadMissing`, `PayloadCorrupt`."""
