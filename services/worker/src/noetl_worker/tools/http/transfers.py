"""Runs many libcurl transfers on the event loop by watching libcurl's sockets."""

import asyncio
import select
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from typing import Protocol

import pycurl

_READS = pycurl.POLL_IN
_WRITES = pycurl.POLL_OUT
# A socket and what it became ready for, as libcurl wants to be told.
Ready = tuple[int, int]
# Takes libcurl's code, 0 when all went well, its words, and the descriptor of the connection if it
# stays open, else -1.
Ended = Callable[[int, str, int], None]


class SocketWatcher(Protocol):
    """Watches sockets for what libcurl wants of each, and for nothing else."""

    def watch_socket(self, socket: int, poll_events: int) -> None:
        """Wait for `POLL_IN`, `POLL_OUT` or both; `POLL_REMOVE` ends it."""

    def close(self) -> None:
        """Watch nothing any more."""


class EpollWatcher:
    """Watches through a set of the kernel's that the loop watches as one.

    A request on a kept connection asks for its socket anew; here that is two short calls of the
    system, and sockets that became ready together are handled together.
    """

    def __init__(self, loop: AbstractEventLoop, act: Callable[[Iterator[Ready]], None]) -> None:
        self._loop, self._act = loop, act
        self._watched: set[int] = set()
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._handle_ready)

    def watch_socket(self, socket: int, poll_events: int) -> None:
        """Wait for `POLL_IN`, `POLL_OUT` or both; `POLL_REMOVE` ends it."""
        if poll_events == pycurl.POLL_REMOVE:
            if socket in self._watched:
                self._watched.remove(socket)
                self._epoll.unregister(socket)
            return
        mask = (select.EPOLLIN if poll_events & _READS else 0) | (
            select.EPOLLOUT if poll_events & _WRITES else 0
        )
        if socket in self._watched:
            self._epoll.modify(socket, mask)
        else:
            self._epoll.register(socket, mask)
            self._watched.add(socket)

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watched.clear()

    def _handle_ready(self) -> None:
        self._act(map(_translate_event, self._epoll.poll(0)))


class LoopWatcher:
    """Watches each socket with the loop: for systems without epoll."""

    def __init__(self, loop: AbstractEventLoop, act: Callable[[Iterator[Ready]], None]) -> None:
        self._loop, self._act = loop, act
        self._watched: dict[int, int] = {}

    def watch_socket(self, socket: int, poll_events: int) -> None:
        """Wait for `POLL_IN`, `POLL_OUT` or both; `POLL_REMOVE` ends it."""
        poll_events = 0 if poll_events == pycurl.POLL_REMOVE else poll_events
        watched_events = self._watched.pop(socket, 0)
        loop = self._loop
        if poll_events & _READS and not watched_events & _READS:
            loop.add_reader(socket, self._handle_ready, (socket, pycurl.CSELECT_IN))
        elif watched_events & _READS and not poll_events & _READS:
            loop.remove_reader(socket)
        if poll_events & _WRITES and not watched_events & _WRITES:
            loop.add_writer(socket, self._handle_ready, (socket, pycurl.CSELECT_OUT))
        elif watched_events & _WRITES and not poll_events & _WRITES:
            loop.remove_writer(socket)
        if poll_events:
            self._watched[socket] = poll_events

    def close(self) -> None:
        """Watch nothing any more."""
        for socket in list(self._watched):
            self.watch_socket(socket, pycurl.POLL_REMOVE)

    def _handle_ready(self, ready: Ready) -> None:
        self._act(iter((ready,)))


def build_watcher(loop: AbstractEventLoop, act: Callable[[Iterator[Ready]], None]) -> SocketWatcher:
    """Watch sockets in the way that this system is best at."""
    return EpollWatcher(loop, act) if hasattr(select, "epoll") else LoopWatcher(loop, act)


def _translate_event(ready: tuple[int, int]) -> Ready:
    """Translate an event of epoll for libcurl; an error makes a socket readable and writable."""
    socket, poll_event = ready
    is_lost = poll_event & (select.EPOLLERR | select.EPOLLHUP)
    reads = pycurl.CSELECT_IN if poll_event & select.EPOLLIN or is_lost else 0
    writes = pycurl.CSELECT_OUT if poll_event & select.EPOLLOUT or is_lost else 0
    return socket, reads | writes


class CurlTransfers:
    """Runs transfers; all methods and callbacks belong to the thread of the event loop."""

    def __init__(self, *, connections_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end_by_curl: dict[pycurl.Curl, Ended] = {}
        self._timer: asyncio.Handle | None = None
        self._sockets = build_watcher(self._loop, self._handle_ready)
        self._multi = multi = pycurl.CurlMulti()
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch_socket)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, connections_max)
        multi.setopt(pycurl.M_MAXCONNECTS, connections_max)

    def begin_transfer(self, curl: pycurl.Curl, on_end: Ended) -> None:
        """Begin a transfer; `on_end` is called once, and may begin it again."""
        self._on_end_by_curl[curl] = on_end
        self._multi.add_handle(curl)

    def cancel_transfer(self, curl: pycurl.Curl) -> None:
        """End a transfer that nobody waits for any more."""
        if self._on_end_by_curl.pop(curl, None) is not None:
            self._multi.remove_handle(curl)

    def close(self) -> None:
        """Give up all transfers and close all connections."""
        for curl in list(self._on_end_by_curl):
            self.cancel_transfer(curl)
        self._set_timer(-1)
        self._sockets.close()
        self._multi.close()

    def _watch_socket(self, poll_events: int, socket: int, _multi: object, _data: object) -> None:
        self._sockets.watch_socket(socket, poll_events)

    def _set_timer(self, timeout_ms: int) -> None:
        """Call again after so long; never from within, as libcurl demands."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if timeout_ms == 0:
            self._timer = self._loop.call_soon(self._handle_timeout)
        elif timeout_ms > 0:
            self._timer = self._loop.call_later(timeout_ms / 1000, self._handle_timeout)

    def _handle_timeout(self) -> None:
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._end_finished()

    def _handle_ready(self, ready: Iterator[Ready]) -> None:
        act = self._multi.socket_action
        for socket, poll_event in ready:
            act(socket, poll_event)
        self._end_finished()

    def _end_finished(self) -> None:
        """End the transfers that are over."""
        while True:
            messages_left, done_curls, failed_curls = self._multi.info_read()
            for curl in done_curls:
                self._end_transfer(curl, 0, "")
            for curl, code, reason in failed_curls:
                self._end_transfer(curl, code, reason)
            if not messages_left:
                return

    def _end_transfer(self, curl: pycurl.Curl, code: int, reason: str) -> None:
        on_end = self._on_end_by_curl.pop(curl, None)
        if on_end is not None:
            descriptor = int(curl.getinfo(pycurl.ACTIVESOCKET))
            self._multi.remove_handle(curl)
            on_end(code, reason, descriptor)
