"""Answers that leave as one piece."""

import asyncio
from typing import Any

# Larger pieces are not copied to leave with their head.
_JOINED_BYTES_MAX = 64 * 1024


class WholeTransport:
    """A transport on which what is written at once leaves at once.

    The server writes the head of an answer and its body one after the other; each would wake
    whoever waits for them. What stands alone, such as the head of a stream, leaves with the next
    turn of the loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self._leaving: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        """Hold what comes first; what comes behind it takes it along."""
        if not self._held and len(data) <= _JOINED_BYTES_MAX:
            self._held = data
            self._leaving = self._loop.call_soon(self._leave)
        elif len(data) <= _JOINED_BYTES_MAX:
            self._held += data
            self._leave()
        else:
            self._leave()
            self._transport.write(data)

    def close(self) -> None:
        """Close behind what was written."""
        self._leave()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """Be the transport in everything else."""
        return getattr(self._transport, name)

    def _leave(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)
