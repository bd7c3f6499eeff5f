"""A receiver of lineage in memory."""

from noetl_messaging.streams.errors import MessagingUnavailable


class MemoryLineageEndpoint:
    """Remembers what it was handed; can be told to be away for a while."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.absent = 0

    async def deliver_event(self, body: str) -> None:
        """Hand over the JSON of one event, perhaps again."""
        if self.absent:
            self.absent -= 1
            raise MessagingUnavailable("the receiver of lineage is away")
        self.bodies.append(body)
