"""Stored bytes in this process, the least recently used forgotten first."""

from noetl_contracts.lru_cache import LruCache
from noetl_contracts.payloads import PayloadRef
from noetl_storage.ports.payload_ports import TierName
from noetl_storage.tiers import segment_format


class MemoryTier:
    """Keeps copies by reference up to a number of bytes."""

    name = TierName.MEMORY

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._data_by_name: LruCache[str, bytes] = LruCache(weight_max=bytes_max)

    async def find_copy(self, ref: PayloadRef) -> bytes | None:
        """Return content, or None when it is not here; it was checked when it was kept."""
        return self._data_by_name.find_value(segment_format.build_segment_name(ref))

    async def keep_copy(self, ref: PayloadRef, data: bytes) -> bool:
        """Keep a copy, forgetting others; False when it is larger than the tier."""
        if len(data) > self._bytes_max:
            return False
        name = segment_format.build_segment_name(ref)
        self._data_by_name.keep_value(name, data, weight=len(data))
        return True

    async def forget_copy(self, ref: PayloadRef) -> None:
        """Drop the copy; dropping what is not there is no error."""
        self._data_by_name.drop_value(segment_format.build_segment_name(ref))

    def used_bytes(self) -> int:
        """Return how many bytes are held."""
        return self._data_by_name.weight
