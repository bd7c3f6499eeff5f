"""The settings of a broker in memory: it has no server, and ends with its process."""

from noetl_messaging.streams.broker_durability import BrokerSettings


class MemoryBrokerSettings:
    """Holds what a test or a process says."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.settings = settings

    async def read_settings(self) -> BrokerSettings | None:
        """Return what was said."""
        return self.settings
