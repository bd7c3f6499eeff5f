"""The settings of durability for a ledger in memory, which has no server to ask.

A test, or the process itself, says what the page of Health shows.
"""


class MemoryDurability:
    """Holds the settings that it is given."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.settings = settings or {}

    async def read_settings(self) -> dict[str, str]:
        """Return the settings, by name."""
        return self.settings
