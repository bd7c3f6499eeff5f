"""Many transfers of libcurl at once, on the event loop.

libcurl says which sockets it waits for and until when, and is told what became ready: the
protocol is that of https://curl.se/libcurl/c/curl_multi_socket_action.html.
"""

import asyncio
from collections.abc import Callable, Iterator

import pycurl

from noetl_worker.tools.http_sockets import Ready, sockets_of


class Transfers:
    """Runs transfers; all methods and callbacks belong to the thread of the event loop."""

    def __init__(self, *, connections_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: dict[pycurl.Curl, Callable[[int, str], None]] = {}
        self._timer: asyncio.Handle | None = None
        self._sockets = sockets_of(self._loop, self._act)
        self._multi = multi = pycurl.CurlMulti()
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._wait)
        multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, connections_max)
        multi.setopt(pycurl.M_MAXCONNECTS, connections_max)

    def begin(self, curl: pycurl.Curl, ended: Callable[[int, str], None]) -> None:
        """Begin a transfer; `ended` is called with libcurl's code, 0 when all went well."""
        self._ended[curl] = ended
        self._multi.add_handle(curl)

    def give_up(self, curl: pycurl.Curl) -> None:
        """End a transfer that nobody waits for any more."""
        if self._ended.pop(curl, None) is not None:
            self._multi.remove_handle(curl)

    def close(self) -> None:
        """Give up all transfers and close all connections."""
        for curl in list(self._ended):
            self.give_up(curl)
        self._wait(-1)
        self._sockets.close()
        self._multi.close()

    def _watch(self, wanted: int, socket: int, _multi: object, _data: object) -> None:
        self._sockets.watch(socket, wanted)

    def _wait(self, timeout_ms: int) -> None:
        """Call again after so long; never from within, as libcurl demands."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if timeout_ms == 0:
            self._timer = self._loop.call_soon(self._time_out)
        elif timeout_ms > 0:
            self._timer = self._loop.call_later(timeout_ms / 1000, self._time_out)

    def _time_out(self) -> None:
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._settle()

    def _act(self, ready: Iterator[Ready]) -> None:
        act = self._multi.socket_action
        for socket, found in ready:
            act(socket, found)
        self._settle()

    def _settle(self) -> None:
        """End the transfers that are over."""
        while True:
            left, done, failed = self._multi.info_read()
            for curl in done:
                self._end(curl, 0, "")
            for curl, code, reason in failed:
                self._end(curl, code, reason)
            if not left:
                return

    def _end(self, curl: pycurl.Curl, code: int, reason: str) -> None:
        ended = self._ended.pop(curl, None)
        if ended is not None:
            self._multi.remove_handle(curl)
            ended(code, reason)
