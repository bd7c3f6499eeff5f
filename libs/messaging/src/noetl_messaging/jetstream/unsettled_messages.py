"""What consumers of a work queue were handed and have not settled; the reaper asks for it."""

from collections.abc import AsyncIterator, Iterable

from nats.js import api
from nats.js.errors import NotFoundError

from noetl_messaging.jetstream.connection import Connection, translate_errors
from noetl_messaging.streams.ports import UnsettledMessage
from noetl_messaging.streams.topology import ConsumerSpec


class JetStreamUnsettledMessages:
    """Reads what the consumers of one work queue hold.

    A work queue lets go of what is settled: all that it still has up to what a consumer was handed
    last is unsettled.
    """

    def __init__(
        self, connection: Connection, *, stream: str, consumers: Iterable[ConsumerSpec]
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._consumers = [consumer for consumer in consumers if consumer.stream == stream]

    async def iterate_unsettled(self) -> AsyncIterator[UnsettledMessage]:
        """Yield what is handed over and not settled, the oldest of each consumer first."""
        self._connection.require_connected()
        for consumer in self._consumers:
            bounds = await self._find_bounds(consumer)
            for subject in consumer.filters if bounds else ():
                async for message in self._iterate_messages(subject, *bounds):
                    yield message

    async def _find_bounds(self, consumer: ConsumerSpec) -> tuple[int, int] | tuple[()]:
        """Return the first and last sequence that may be unsettled; empty when none is."""
        with translate_errors(f"asking about {self._stream}/{consumer.name}"):
            try:
                info = await self._connection.jetstream.consumer_info(self._stream, consumer.name)
            except NotFoundError:
                return ()
        if not info.num_ack_pending or info.delivered is None or info.ack_floor is None:
            return ()
        return info.ack_floor.stream_seq + 1, info.delivered.stream_seq

    async def _iterate_messages(
        self, subject: str, first: int, last: int
    ) -> AsyncIterator[UnsettledMessage]:
        sequence = first
        while sequence <= last:
            message = await self._find_message(sequence, subject)
            if message is None or message.seq is None or message.seq > last:
                return
            yield UnsettledMessage(sequence=message.seq, data=message.data or b"")
            sequence = message.seq + 1

    async def _find_message(self, sequence: int, subject: str) -> api.RawStreamMsg | None:
        """Return the first message of a subject from a sequence on, or None."""
        with translate_errors(f"reading a message of {self._stream}"):
            try:
                return await self._connection.jetstream.get_msg(
                    self._stream, seq=sequence, subject=subject, next=True
                )
            except NotFoundError:
                return None
