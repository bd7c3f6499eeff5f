"""Tiers for tests: a shared tier in a directory, and a watch that counts."""

from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import structs
from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts import codec, locators
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_storage.ports.payload_ports import TierClock, TierName
from noetl_storage.tiers import segment_directory
from noetl_storage.tiers.shared import SharedTier

STORE = "memory://"


def open_shared(
    directory: Path,
    *,
    clock: TierClock,
    bytes_max: int = 64 * 1024 * 1024,
    lease_s: float = 30.0,
    store_url: str = STORE,
) -> SharedTier:
    """Open the tier of a process in a directory of the test's own."""
    directory.mkdir(parents=True, exist_ok=True)
    place = segment_directory.open_segment_directory(directory, store_url=store_url)
    return SharedTier(place, bytes_max=bytes_max, lease_s=lease_s, clock=clock)


def ref_of(data: bytes, tenant: str = TENANT, **fields: Any) -> PayloadRef:
    """Refer to content as the store does that has just stored it."""
    sha256 = codec.digest_hex(data)
    ref = PayloadRef(
        uri=locators.build_payload_locator(TenantId(tenant), OrganizationId(ORGANIZATION), sha256),
        sha256=sha256,
        media_type=ARROW_MEDIA_TYPE,
        payload_bytes=len(data),
    )
    return structs.replace(ref, **fields)


class TierCounts:
    """Counts what the reader tells."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.swept: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()

    def note_read(self, tier: TierName, *, is_hit: bool, count_bytes: int) -> None:
        (self.hits if is_hit else self.misses)[tier] += 1

    def note_resolution(self, tier: TierName, *, duration_s: float) -> None:
        self.resolved[tier] += 1

    def note_copy(self, tier: TierName, *, is_kept: bool, used_bytes: int) -> None:
        (self.kept if is_kept else self.refused)[tier] += 1

    def note_sweep(self, reason: str, segments: int) -> None:
        self.swept[reason] += segments
