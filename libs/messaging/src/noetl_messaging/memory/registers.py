"""Shared values in memory: the reference adapter of `Registers`."""


class MemoryRegisters:
    """Swaps values within the process."""

    def __init__(self) -> None:
        self._value_by_name: dict[str, tuple[int, bytes]] = {}
        self._revision = 0

    async def find_value(self, name: str) -> tuple[int, bytes] | None:
        """Return a value with its revision, or None."""
        return self._value_by_name.get(name)

    async def swap_value(self, name: str, data: bytes, *, revision: int) -> int | None:
        """Replace a value of that revision, 0 for none; return the new one, None when it moved."""
        known_names, _ = self._value_by_name.get(name, (0, b""))
        if known_names != revision:
            return None
        self._revision += 1
        self._value_by_name[name] = (self._revision, data)
        return self._revision
