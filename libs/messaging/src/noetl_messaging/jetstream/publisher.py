"""Publishes with confirmation."""

import asyncio
from collections.abc import Sequence
from typing import Any

from nats.js.errors import APIError

from noetl_messaging.errors import MessageTooLarge, MessagingUnavailable
from noetl_messaging.jetstream.connection import Connection, translated
from noetl_messaging.ports import MESSAGE_BYTES_MAX, Message

MESSAGE_ID_HEADER = "Nats-Msg-Id"
IN_FLIGHT_MAX = 256
_ERROR_TOO_LARGE = 10054


class JetStreamPublisher:
    """Puts messages into streams; a stored message answers with its place."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def publish(self, message: Message) -> None:
        """Return once the stream has stored the message."""
        if len(message.data) > MESSAGE_BYTES_MAX:
            raise _too_large(message)
        self._connection.require()
        with translated(f"publishing to {message.subject}"):
            try:
                await self._connection.jetstream.publish(
                    message.subject,
                    message.data,
                    timeout=self._connection.waits.request_s,
                    headers={MESSAGE_ID_HEADER: message.message_id},
                )
            except APIError as failure:
                if failure.err_code == _ERROR_TOO_LARGE:
                    raise _too_large(message) from failure
                raise

    async def publish_all(self, messages: Sequence[Message]) -> list[bool]:
        """Publish in windows of `IN_FLIGHT_MAX`; tell for each whether it was stored."""
        stored: list[bool] = []
        for start in range(0, len(messages), IN_FLIGHT_MAX):
            if self._connection.check() is not None:
                return stored + [False] * (len(messages) - len(stored))
            stored += await self._publish_window(messages[start : start + IN_FLIGHT_MAX])
        return stored

    async def _publish_window(self, messages: Sequence[Message]) -> list[bool]:
        sent = [await self._send(message) for message in messages]
        waiting = [answer for answer in sent if answer is not None]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=self._connection.waits.request_s)
            for answer in late:
                answer.cancel()
        return [answer is not None and _is_stored(answer) for answer in sent]

    async def _send(self, message: Message) -> "asyncio.Future[Any] | None":
        """Send without waiting for the answer; None when it did not even leave."""
        if len(message.data) > MESSAGE_BYTES_MAX:
            return None
        try:
            with translated(f"publishing to {message.subject}"):
                return await self._connection.jetstream.publish_async(
                    message.subject,
                    message.data,
                    wait_stall=self._connection.waits.request_s,
                    headers={MESSAGE_ID_HEADER: message.message_id},
                )
        except MessagingUnavailable:
            return None


def _is_stored(answer: "asyncio.Future[Any]") -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _too_large(message: Message) -> MessageTooLarge:
    return MessageTooLarge(
        f"a message for {message.subject} has {len(message.data)} bytes, the limit is "
        f"{MESSAGE_BYTES_MAX}: put the content into the payload store and send its reference"
    )
