"""Connections on which no request comes: they are closed after a while."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from noetl_planner.http.joining import WholeTransport

# A request's head is small: whoever sends it a byte at a time is not waited for.
HEAD_S = 10.0


class PromptProtocol(HttpToolsProtocol):
    """HTTP whose requests begin in time: the head of each is all there after `HEAD_S`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect the first request."""
        super().connection_made(cast("asyncio.Transport", WholeTransport(transport, self.loop)))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._expect_no_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; the time of a head that has begun goes on."""
        if self._is_between_requests() and self._deadline is None:
            self._expect_head()
        super().data_received(data)
        if not self._is_between_requests():
            self._expect_no_head()

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def _expect_no_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_between_requests():
            self.transport.close()
