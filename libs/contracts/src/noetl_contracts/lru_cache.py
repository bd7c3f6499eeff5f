"""The cache of this house: a bounded mapping that forgets what was used longest ago."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, up to a number of entries and a sum of weights.

    The value that was kept last stays, also when it alone weighs too much. No method waits, and
    none locks: threads that share a cache hold a lock of their own.
    """

    def __init__(self, *, entries_max: int | None = None, weight_max: int | None = None) -> None:
        self._entries_max = entries_max
        self._weight_max = weight_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def find_value(self, key: K) -> V | None:
        """Return a value, which counts as used now, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def keep_value(self, key: K, value: V, *, weight: int = 0) -> None:
        """Keep a value in place of the one before, and forget others until all are in bounds."""
        self.drop_value(key)
        self._entries[key] = (value, weight)
        self.weight += weight
        while len(self._entries) > 1 and self._is_full():
            _, (_, forgotten) = self._entries.popitem(last=False)
            self.weight -= forgotten

    def drop_value(self, key: K) -> V | None:
        """Remove a value and return it; None when it is not here."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.weight -= entry[1]
        return entry[0]

    def clear_values(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.weight = 0

    def _is_full(self) -> bool:
        return (self._entries_max is not None and len(self._entries) > self._entries_max) or (
            self._weight_max is not None and self.weight > self._weight_max
        )
