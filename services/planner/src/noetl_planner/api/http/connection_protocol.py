"""The HTTP connection of the API: joins small writes, and limits the time of request headers."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Larger pieces are not copied to leave with their head.
_JOINED_BYTES_MAX = 64 * 1024


class CoalescingTransport:
    """A transport on which what is written at once leaves at once.

    The server writes the head of an answer and its body one after the other; each would wake the
    client. A write that is not followed by another, such as the head of a stream, is sent in the
    next turn of the loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer = b""
        self._leaving: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        """Hold what comes first; what comes behind it takes it along."""
        if not self._buffer and len(data) <= _JOINED_BYTES_MAX:
            self._buffer = data
            self._leaving = self._loop.call_soon(self._flush_held)
        elif len(data) <= _JOINED_BYTES_MAX:
            self._buffer += data
            self._flush_held()
        else:
            self._flush_held()
            self._transport.write(data)

    def close(self) -> None:
        """Close behind what was written."""
        self._flush_held()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """Be the transport in everything else."""
        return getattr(self._transport, name)

    def _flush_held(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._buffer:
            data, self._buffer = self._buffer, b""
            self._transport.write(data)


# Time limit for a request's head, which is small: a client that sends single bytes is cut off.
HEAD_S = 10.0
# A busy loop runs its timers before it reads: before an idle connection is closed, a request that
# came meanwhile is read. A browser whose requests are closed unread shows an error.
READ_S = 0.05


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """HTTP whose requests begin in time: the head of each is all there after `HEAD_S`."""

    _deadline: asyncio.TimerHandle | None = None
    _pieces = 0

    def connection_made(self, transport: Any) -> None:
        """Expect the first request."""
        super().connection_made(
            cast("asyncio.Transport", CoalescingTransport(transport, self.loop))
        )
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._cancel_header_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; the time of a head that has begun goes on."""
        if self._is_between_requests() and self._deadline is None:
            self._start_header_timer()
        self._pieces += 1
        super().data_received(data)
        if not self._is_between_requests():
            self._cancel_header_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for long, unless its next request is there to read."""
        self.loop.call_later(READ_S, self._close_idle, self._pieces)

    def _close_idle(self, pieces: int) -> None:
        if pieces == self._pieces:
            self._close_between_requests()

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_header_timer(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self._close_late)

    def _cancel_header_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_late(self) -> None:
        self._deadline = None
        self.loop.call_later(READ_S, self._close_between_requests)

    def _close_between_requests(self) -> None:
        if self._is_between_requests() and not self.transport.is_closing():
            self.transport.close()
