"""Many transfers of libcurl at once, on the event loop.

libcurl says which sockets it waits for and until when, and is told what became ready: the
protocol is that of https://curl.se/libcurl/c/curl_multi_socket_action.html.
"""

import asyncio
from collections.abc import Callable

import pycurl

_READS = pycurl.POLL_IN
_WRITES = pycurl.POLL_OUT


class Transfers:
    """Runs transfers; all methods and callbacks belong to the thread of the event loop."""

    def __init__(self, *, connections_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: dict[pycurl.Curl, Callable[[int, str], None]] = {}
        self._watched: dict[int, int] = {}
        self._timer: asyncio.Handle | None = None
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
        for socket in list(self._watched):
            self._watch(pycurl.POLL_REMOVE, socket, None, None)
        self._multi.close()

    def _watch(self, event: int, socket: int, _multi: object, _data: object) -> None:
        """Wait for what libcurl wants of a socket, and for nothing else."""
        wanted = 0 if event == pycurl.POLL_REMOVE else event
        before = self._watched.pop(socket, 0)
        loop = self._loop
        if wanted & _READS and not before & _READS:
            loop.add_reader(socket, self._act, socket, pycurl.CSELECT_IN)
        elif before & _READS and not wanted & _READS:
            loop.remove_reader(socket)
        if wanted & _WRITES and not before & _WRITES:
            loop.add_writer(socket, self._act, socket, pycurl.CSELECT_OUT)
        elif before & _WRITES and not wanted & _WRITES:
            loop.remove_writer(socket)
        if wanted:
            self._watched[socket] = wanted

    def _wait(self, timeout_ms: int) -> None:
        """Call again after so long; never from within, as libcurl demands."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if timeout_ms == 0:
            self._timer = self._loop.call_soon(self._act, pycurl.SOCKET_TIMEOUT, 0)
        elif timeout_ms > 0:
            self._timer = self._loop.call_later(
                timeout_ms / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0
            )

    def _act(self, socket: int, ready: int) -> None:
        self._multi.socket_action(socket, ready)
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
