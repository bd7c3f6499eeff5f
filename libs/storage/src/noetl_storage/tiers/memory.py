"""Stored bytes in this process, the least recently used forgotten first."""

from collections import OrderedDict

from noetl_contracts.payloads import PayloadRef
from noetl_storage.ports.payload_ports import TierName
from noetl_storage.tiers import segment_format


class MemoryTier:
    """Keeps copies by reference up to a number of bytes."""

    name = TierName.MEMORY

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._data_by_name: OrderedDict[str, bytes] = OrderedDict()

    async def find_copy(self, ref: PayloadRef) -> bytes | None:
        """Return content, or None when it is not here; it was checked when it was kept."""
        name = segment_format.build_segment_name(ref)
        data = self._data_by_name.get(name)
        if data is not None:
            self._data_by_name.move_to_end(name)
        return data

    async def keep_copy(self, ref: PayloadRef, data: bytes) -> bool:
        """Keep a copy, forgetting others; False when it is larger than the tier."""
        if len(data) > self._bytes_max:
            return False
        await self.forget_copy(ref)
        self._data_by_name[segment_format.build_segment_name(ref)] = data
        self._used += len(data)
        while self._used > self._bytes_max:
            _, dropped = self._data_by_name.popitem(last=False)
            self._used -= len(dropped)
        return True

    async def forget_copy(self, ref: PayloadRef) -> None:
        """Drop the copy; dropping what is not there is no error."""
        self._used -= len(self._data_by_name.pop(segment_format.build_segment_name(ref), b""))

    def used_bytes(self) -> int:
        """Return how many bytes are held."""
        return self._used
