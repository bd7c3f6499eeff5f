"""What libcurl waits for: the sockets of many transfers, watched for the event loop."""

import select
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from typing import Protocol

import pycurl

_READS = pycurl.POLL_IN
_WRITES = pycurl.POLL_OUT
# A socket and what it became ready for, as libcurl wants to be told.
Ready = tuple[int, int]


class Sockets(Protocol):
    """Watches sockets for what libcurl wants of each, and for nothing else."""

    def watch(self, socket: int, wanted: int) -> None:
        """Wait for `POLL_IN`, `POLL_OUT` or both; `POLL_REMOVE` ends it."""

    def close(self) -> None:
        """Watch nothing any more."""


class EpollSockets:
    """Watches through a set of the kernel's that the loop watches as one.

    A request on a kept connection asks for its socket anew; here that is two short calls of the
    system, and whatever became ready together is acted on together.
    """

    def __init__(self, loop: AbstractEventLoop, act: Callable[[Iterator[Ready]], None]) -> None:
        self._loop, self._act = loop, act
        self._watched: set[int] = set()
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._ready)

    def watch(self, socket: int, wanted: int) -> None:
        """Wait for `POLL_IN`, `POLL_OUT` or both; `POLL_REMOVE` ends it."""
        if wanted == pycurl.POLL_REMOVE:
            if socket in self._watched:
                self._watched.remove(socket)
                self._epoll.unregister(socket)
            return
        mask = (select.EPOLLIN if wanted & _READS else 0) | (
            select.EPOLLOUT if wanted & _WRITES else 0
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

    def _ready(self) -> None:
        self._act(map(_told, self._epoll.poll(0)))


class LoopSockets:
    """Watches each socket with the loop: for systems without epoll."""

    def __init__(self, loop: AbstractEventLoop, act: Callable[[Iterator[Ready]], None]) -> None:
        self._loop, self._act = loop, act
        self._watched: dict[int, int] = {}

    def watch(self, socket: int, wanted: int) -> None:
        """Wait for `POLL_IN`, `POLL_OUT` or both; `POLL_REMOVE` ends it."""
        wanted = 0 if wanted == pycurl.POLL_REMOVE else wanted
        before = self._watched.pop(socket, 0)
        loop = self._loop
        if wanted & _READS and not before & _READS:
            loop.add_reader(socket, self._ready, (socket, pycurl.CSELECT_IN))
        elif before & _READS and not wanted & _READS:
            loop.remove_reader(socket)
        if wanted & _WRITES and not before & _WRITES:
            loop.add_writer(socket, self._ready, (socket, pycurl.CSELECT_OUT))
        elif before & _WRITES and not wanted & _WRITES:
            loop.remove_writer(socket)
        if wanted:
            self._watched[socket] = wanted

    def close(self) -> None:
        """Watch nothing any more."""
        for socket in list(self._watched):
            self.watch(socket, pycurl.POLL_REMOVE)

    def _ready(self, ready: Ready) -> None:
        self._act(iter((ready,)))


def sockets_of(loop: AbstractEventLoop, act: Callable[[Iterator[Ready]], None]) -> Sockets:
    """Watch sockets in the way that this system is best at."""
    return EpollSockets(loop, act) if hasattr(select, "epoll") else LoopSockets(loop, act)


def _told(ready: tuple[int, int]) -> Ready:
    """Say in libcurl's words what epoll found; an error shows to whoever reads or writes."""
    socket, found = ready
    is_lost = found & (select.EPOLLERR | select.EPOLLHUP)
    reads = pycurl.CSELECT_IN if found & select.EPOLLIN or is_lost else 0
    writes = pycurl.CSELECT_OUT if found & select.EPOLLOUT or is_lost else 0
    return socket, reads | writes
