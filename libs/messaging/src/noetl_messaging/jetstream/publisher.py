"""Publishes messages to JetStream, and returns once the stream has stored them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from noetl_messaging.jetstream.connection import Connection, PublishAck, log, translate_errors
from noetl_messaging.streams.errors import MessageTooLarge, MessagingUnavailable
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, TRACE_HEADER, Message, PublicationSpan

MESSAGE_ID_HEADER = "Nats-Msg-Id"
IN_FLIGHT_MAX = 256
_ERROR_TOO_LARGE = 10054


class JetStreamPublisher:
    """Puts messages into streams; a stored message answers with its sequence.

    With `span` each publication is timed, and its messages carry the span in a header.
    """

    def __init__(self, connection: Connection, *, span: PublicationSpan | None = None) -> None:
        self._connection = connection
        self._span = span

    async def publish_message(self, message: Message) -> None:
        """Return once the stream has stored the message."""
        if len(message.data) > MESSAGE_BYTES_MAX:
            raise _build_too_large_error(message)
        self._connection.require_connected()
        window = _PublishWindow(self._connection, [message])
        await self._send_window(window, [message])
        (answer,) = window.answers
        if answer is None:
            raise MessagingUnavailable(f"publishing to {message.subject}: no answer in time")
        if answer.error is not None and answer.error.err_code == _ERROR_TOO_LARGE:
            raise _build_too_large_error(message)
        if answer.error is not None:
            description = answer.error.description
            raise MessagingUnavailable(f"publishing to {message.subject}: {description}")

    async def publish_batch(self, messages: Sequence[Message]) -> list[bool]:
        """Publish in windows of `IN_FLIGHT_MAX`; tell for each whether it was stored."""
        stored_flags: list[bool] = []
        for start in range(0, len(messages), IN_FLIGHT_MAX):
            if self._connection.check_connection() is not None:
                return stored_flags + [False] * (len(messages) - len(stored_flags))
            stored_flags += await self._publish_window(messages[start : start + IN_FLIGHT_MAX])
        return stored_flags

    async def _publish_window(self, messages: Sequence[Message]) -> list[bool]:
        fitting = [message for message in messages if len(message.data) <= MESSAGE_BYTES_MAX]
        window = _PublishWindow(self._connection, fitting)
        # What was answered is stored, however the rest fared.
        with suppress(MessagingUnavailable):
            await self._send_window(window, fitting)
        _log_refusal(window.answers)
        is_stored = (answer is not None and answer.is_stored for answer in window.answers)
        return [len(item.data) <= MESSAGE_BYTES_MAX and next(is_stored) for item in messages]

    async def _send_window(self, window: "_PublishWindow", messages: Sequence[Message]) -> None:
        if self._span is None or not messages:
            await window.send_all()
            return
        origins = (message.traceparent for message in messages)
        with self._span(messages[0].subject, messages=len(messages), origins=origins) as sent_by:
            await window.send_all(sent_by)


class _PublishWindow:
    """Publications that are on their way together, and what was answered to each so far."""

    def __init__(self, connection: Connection, messages: Sequence[Message]) -> None:
        self.answers: list[PublishAck | None] = [None] * len(messages)
        self._connection = connection
        self._messages = messages
        self._pending_acks = len(messages)
        self._is_complete = asyncio.Event()

    async def send_all(self, sent_by: str | None = None) -> None:
        """Send all without waiting, then wait for the answers, for as long as a request may take.

        `sent_by` is the `traceparent` for their headers.

        Raises `MessagingUnavailable` when one did not even leave.
        """
        if not self._messages:
            return
        expected: list[str] = []
        try:
            for index, message in enumerate(self._messages):
                await self._send_message(index, message, expected, sent_by)
            async with asyncio.timeout(self._connection.waits.request_s):
                await self._is_complete.wait()
        except TimeoutError:
            return
        finally:
            if self._pending_acks:
                for subject in expected:
                    self._connection.answers.forget_ack(subject)

    async def _send_message(
        self, index: int, message: Message, expected: list[str], sent_by: str | None
    ) -> None:
        headers = {MESSAGE_ID_HEADER: message.message_id}
        if sent_by is not None:
            headers[TRACE_HEADER] = sent_by
        with translate_errors(f"publishing to {message.subject}"):
            subject = await self._connection.answers.expect_ack(partial(self._note_ack, index))
            expected.append(subject)
            await self._connection.client.publish(
                message.subject,
                message.data,
                reply=subject,
                headers=headers,
            )

    def _note_ack(self, index: int, answer: PublishAck) -> None:
        self.answers[index] = answer
        self._pending_acks -= 1
        if not self._pending_acks:
            self._is_complete.set()


def _log_refusal(answers: Sequence[PublishAck | None]) -> None:
    """Say once for a window why a stream does not take messages: it is full, or its disk is."""
    for answer in answers:
        if answer is not None and answer.error is not None:
            log.warning("stream refuses messages: %s", answer.error.description)
            return


def _build_too_large_error(message: Message) -> MessageTooLarge:
    return MessageTooLarge(
        f"a message for {message.subject} has {len(message.data)} bytes, the limit is "
        f"{MESSAGE_BYTES_MAX}: put the content into the payload store and send its reference"
    )
