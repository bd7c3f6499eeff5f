"""How single consumers of the broker in the process stand."""

from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.ports import Backlog


class MemoryBacklogs:
    """Asks the broker about one consumer at a time."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def find(self, *, stream: str, consumer: str) -> Backlog | None:
        """Return how a consumer stands, None when there is none by this name."""
        for queue in await self._broker.list_queues():
            if (queue.stream, queue.consumer) == (stream, consumer):
                return Backlog(
                    pending=queue.pending,
                    unsettled=queue.unsettled,
                    asking=self._broker.asking[stream, consumer],
                )
        return None
