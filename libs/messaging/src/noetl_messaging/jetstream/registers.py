"""Shared values in JetStream: each is the last message of its subject, replaced by its sequence."""

from nats.js.api import Header
from nats.js.errors import APIError, NotFoundError

from noetl_messaging.jetstream.connection import Connection, translate_errors
from noetl_messaging.streams import topology

_WRONG_LAST_SEQUENCE = 10071
_NO_MESSAGE = 10037


class JetStreamRegisters:
    """Keeps each value as the one message of its subject; the server compares and swaps."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def find_value(self, name: str) -> tuple[int, bytes] | None:
        """Return a value with its revision, or None."""
        self._connection.require_connected()
        with translate_errors(f"reading {name}"):
            try:
                last_msg = await self._connection.jetstream.get_last_msg(topology.LIMITS, name)
            except NotFoundError as failure:
                if failure.err_code == _NO_MESSAGE:
                    return None
                raise
        return last_msg.seq or 0, last_msg.data or b""

    async def swap_value(self, name: str, data: bytes, *, revision: int) -> int | None:
        """Replace a value of that revision, 0 for none; return the new one, None when it moved."""
        self._connection.require_connected()
        with translate_errors(f"swapping {name}"):
            try:
                ack = await self._connection.jetstream.publish(
                    name,
                    data,
                    timeout=self._connection.waits.request_s,
                    headers={str(Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value): str(revision)},
                )
            except APIError as failure:
                if failure.err_code == _WRONG_LAST_SEQUENCE:
                    return None
                raise
        return ack.seq
