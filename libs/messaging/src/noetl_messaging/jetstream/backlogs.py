"""How single consumers of the server stand."""

from nats.js.errors import NotFoundError

from noetl_messaging.jetstream.connection import Connection, translated
from noetl_messaging.ports import Backlog


class JetStreamBacklogs:
    """Asks the server about one consumer at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def find(self, *, stream: str, consumer: str) -> Backlog | None:
        """Return how a consumer stands, None when there is none by this name."""
        self._connection.require()
        with translated(f"asking about {stream}/{consumer}"):
            try:
                info = await self._connection.jetstream.consumer_info(stream, consumer)
            except NotFoundError:
                return None
        return Backlog(
            pending=info.num_pending or 0,
            unsettled=info.num_ack_pending or 0,
            asking=info.num_waiting or 0,
        )
