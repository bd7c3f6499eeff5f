"""The settings of a ledger in memory: it has no server, and ends with its process."""


class MemoryDurability:
    """Holds what a test or a process says."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.settings = settings or {}

    async def read_settings(self) -> dict[str, str]:
        """Return what was said."""
        return self.settings
