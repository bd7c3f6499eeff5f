"""Hints are received again after an interruption, until the receiver is cancelled."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.hint_receiver import receive_hints


class InterruptedSubject:
    """A subject whose first subscription breaks after one hint; the second goes on."""

    def __init__(self) -> None:
        self.subscriptions = 0

    async def subscribe(self) -> AsyncIterator[bytes]:
        self.subscriptions += 1
        yield b"%d" % self.subscriptions
        if self.subscriptions == 1:
            raise MessagingUnavailable("connection lost")
        await asyncio.Event().wait()


async def test_hints_after_an_interruption_are_received() -> None:
    subject = InterruptedSubject()
    received: asyncio.Queue[bytes] = asyncio.Queue()
    with capture_logs() as lines:
        receiver = asyncio.create_task(
            receive_hints(subject.subscribe, received.put_nowait, subject="s.hints", retry_s=0)
        )
        hints = [await asyncio.wait_for(received.get(), 60) for _ in range(2)]
        receiver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiver
    assert hints == [b"1", b"2"]
    assert [(line["event"], line["subject"], line["reason"]) for line in lines] == [
        ("hints interrupted", "s.hints", "connection lost")
    ]


async def test_a_defect_of_the_receiver_is_not_hidden() -> None:
    def refuse_hint(_hint: bytes) -> None:
        raise ValueError("defect")

    with pytest.raises(ValueError, match="defect"):
        await receive_hints(InterruptedSubject().subscribe, refuse_hint, subject="s.hints")
