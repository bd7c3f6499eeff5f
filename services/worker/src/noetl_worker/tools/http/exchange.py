"""One request on its way over libcurl: what came back so far, and how it ended."""

import asyncio
import re
import select
import socket
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import Any

import pycurl

from noetl_worker.tools.http.response_head import (
    ResponseMisfit,
    find_head_problem,
    is_interim,
)

Check = Callable[[str, str, int], bool]
# What libcurl tells of an address: family, kind, protocol, and the address with its port.
SocketAddress = tuple[int, int, int, tuple[str | bytes, ...]]

_BUFFERED_BYTES = 1024 * 1024
_UNBOUNDED_BYTES = 1 << 62
_STATUS_LINE = b"HTTP/"
# Lines of headers up to this length are remembered.
_KNOWN_BYTES_MAX = 128
# Headers of the standards are spelled as the standards do, in any spelling of a server.
_NAMES = {
    name.lower().encode(): name
    for name in (
        *("Accept-Ranges", "Access-Control-Allow-Origin", "Age", "Allow", "Cache-Control"),
        *("Connection", "Content-Disposition", "Content-Encoding", "Content-Language"),
        *("Content-Length", "Content-Location", "Content-Range", "Content-Type", "Date", "ETag"),
        *("Expires", "Keep-Alive", "Last-Modified", "Link", "Location", "Pragma"),
        *("Proxy-Authenticate", "Retry-After", "Server", "Set-Cookie", "Trailer"),
        *("Transfer-Encoding", "Upgrade", "Vary", "Via", "Warning", "WWW-Authenticate"),
    )
}
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s\"';]+)", re.IGNORECASE)


_BLANK_LINES = frozenset({b"\r\n", b"\n"})
# Addresses and ports of both ends of a connection, as libcurl tells them before it sends.
Ends = tuple[str, str, int, int]


class KeptConnections:
    """The descriptors of open connections, by their ends.

    libcurl looks seldom whether something came on a connection while nobody asked. What came then
    would be read as the answer to the next request.
    """

    def __init__(self, connections_max: int) -> None:
        self._descriptors: OrderedDict[Ends, int] = OrderedDict()
        self._kept_max = 2 * connections_max

    def note_connection(self, ends: Ends, descriptor: int) -> None:
        """Remember a connection that may be used again."""
        self._descriptors[ends] = descriptor
        self._descriptors.move_to_end(ends)
        while len(self._descriptors) > self._kept_max:
            self._descriptors.popitem(last=False)

    def is_silent(self, ends: Ends) -> bool:
        """Tell whether a connection is known, open, and nothing came on it."""
        descriptor = self._descriptors.get(ends)
        if descriptor is None:
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return not poll.poll(0)


class AddressRefused(Exception):  # noqa: N818 - it says what happened
    """No address of a host may be connected to."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}")
        self.host, self.port = host, port


class BodyTooLarge(Exception):  # noqa: N818 - it says what happened
    """A body is longer than it may be."""


class HttpResponse:
    """An answer, its body as it came over the wire."""

    def __init__(self, *, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def charset(self) -> str | None:
        """Return the character set that the answer names."""
        return _find_charset(self.find_header("Content-Type") or "")

    @property
    def packing(self) -> str:
        """Return how the body is packed, `identity` when it is not."""
        encoding = self.find_header("Content-Encoding")
        return "identity" if encoding is None else encoding.strip().lower() or "identity"

    def find_header(self, name: str) -> str | None:
        """Return a header that the standards know, by its name as they write it."""
        return self.headers.get(name)


class Exchange:
    """Takes what libcurl calls back with, for one request after another on one handle."""

    ended: asyncio.Future[None]

    def __init__(
        self, curl: pycurl.Curl, *, check: Check, is_plain: bool, connections: KeptConnections
    ) -> None:
        self.curl = curl
        # Whether the handle has only what every GET sets anew.
        self.is_plain = is_plain
        # What its times are bounded by.
        self.time_limits: object = None
        self._loop = asyncio.get_running_loop()
        self._check = check
        self._connections = connections
        self._is_fresh = False
        self._head: list[bytes] = []
        self._pieces: deque[bytes] = deque()
        self._open_sockets: list[socket.socket] = []
        self._waiter: asyncio.Future[None] | None = None
        self._guard: asyncio.TimerHandle | None = None
        curl.setopt(pycurl.HEADERFUNCTION, self._take_header)
        curl.setopt(pycurl.WRITEFUNCTION, self._take_body)
        curl.setopt(pycurl.PREREQFUNCTION, self._before_sending)
        curl.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)

    def begin_exchange(
        self,
        *,
        host: str,
        port: int,
        bytes_max: int | None,
        restart: Callable[["Exchange"], None],
    ) -> None:
        """Begin anew; a body of more than `bytes_max` ends it.

        With no such bound no more of the body is taken than somebody reads. `restart` is called
        when the connection cannot be used, before anything was sent on it.
        """
        self.ended = self._loop.create_future()
        self._host, self._port = host, port
        self._restart = restart
        self._ends: Ends | None = None
        self._is_stale = False
        self._misfit = ""
        self._interim_heads = self._head_start = 0
        self._connect_anew(is_wanted=False)
        self._is_streamed = bytes_max is None
        self._bytes_max = _UNBOUNDED_BYTES if bytes_max is None else bytes_max
        self._denied = self._sent_count = self._received_bytes = self._buffered = 0
        self._is_paused = False
        self._touched_s = self._loop.time()
        self._code, self._reason = 0, ""

    def note_end(self, code: int, reason: str, descriptor: int = -1) -> None:
        """Note how the transfer ended: libcurl's code, 0 when all went well."""
        if self._is_stale:
            self._begin_on_new_connection()
            return
        self._code, self._reason = code, reason
        if descriptor >= 0 and self._open_sockets and self._ends is not None:
            self._connections.note_connection(self._ends, descriptor)
        if not self.ended.done():
            self.ended.set_result(None)
        self._wake_waiter()

    def close(self) -> None:
        """Let go of what only a transfer under way needs."""
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
        for open_socket in self._open_sockets:
            open_socket.close()
        self._open_sockets.clear()
        self._head.clear()
        self._pieces.clear()

    def guard_reads(self, read_s: float, give_up: Callable[[pycurl.Curl], None]) -> None:
        """End the exchange when nothing comes for so long."""
        left_s = self._touched_s + read_s - self._loop.time()
        if left_s > 0 or self._is_paused:
            wait_s = max(left_s, read_s / 2)
            self._guard = self._loop.call_later(wait_s, self.guard_reads, read_s, give_up)
            return
        give_up(self.curl)
        self.note_end(pycurl.E_OPERATION_TIMEDOUT, f"nothing came for {read_s:g} s")

    def build_response(self) -> HttpResponse:
        """Return the answer with what there is of its body."""
        status: int = self.curl.getinfo(pycurl.RESPONSE_CODE)
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return HttpResponse(status=status, headers=_decode_headers(self._head), body=body)

    def raise_failure(self) -> None:
        """Raise `AddressRefused`, `BodyTooLarge`, `TimeoutError`, `OSError` or `ValueError`."""
        if self._code == 0:
            return
        if self._misfit:
            raise ResponseMisfit(f"the answer does not fit the request: {self._misfit}")
        if self._received_bytes > self._bytes_max:
            raise BodyTooLarge
        if self._denied and not self._open_sockets:
            raise AddressRefused(self._host, self._port)
        if self._code == pycurl.E_OPERATION_TIMEDOUT:
            raise TimeoutError(self._reason)
        if self._code == pycurl.E_URL_MALFORMAT:
            raise ValueError(self._reason)
        if self._sent_count > 1:
            raise ConnectionResetError("the server closed the connection without an answer")
        raise OSError(self._reason or f"libcurl ended with {self._code}")

    async def wait_for_body(self) -> None:
        """Wait for the first piece of the body, or for the end; raises as `raise_failure` does."""
        await self._wait_for_more()
        if not self._pieces:
            self.raise_failure()

    async def iterate_pieces(self) -> AsyncIterator[bytes]:
        """Go through the body while it comes; raises as `raise_failure` does."""
        while True:
            while self._pieces:
                yield self._take_piece()
            if self.ended.done():
                self.raise_failure()
                return
            await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        if not self._pieces and not self.ended.done():
            self._waiter = self._loop.create_future()
            await self._waiter

    def _take_piece(self) -> bytes:
        """Return the next piece, and let more come when there is room."""
        piece = self._pieces.popleft()
        self._buffered -= len(piece)
        if self._is_paused and self._buffered < _BUFFERED_BYTES:
            self._is_paused = False
            self._touched_s = self._loop.time()
            self.curl.pause(pycurl.PAUSE_CONT)
        return piece

    def _wake_waiter(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _open_socket(self, _purpose: int, address: SocketAddress) -> socket.socket | int:
        """Open a socket, to an address that may be reached.

        It is asked for each address that a name resolved to, right before connecting.
        """
        family, kind, protocol, (place, *_) = address
        host = place if isinstance(place, str) else place.decode()
        if not self._check(host, self._host, self._port):
            self._denied += 1
            return int(pycurl.SOCKET_BAD)
        # libcurl takes a copy of its descriptor.
        self._open_sockets.append(socket.socket(family, kind, protocol))
        return self._open_sockets[-1]

    def _before_sending(self, *ends: Any) -> int:
        """Let a request go once, over a connection on which nothing waits.

        Whether it may go again is the policy's to say: libcurl would repeat it by itself when a
        kept connection turns out to be closed.
        """
        self._touched_s = self._loop.time()
        if not self._sent_count and not self._is_usable(ends):
            return int(pycurl.PREREQFUNC_ABORT)
        self._sent_count += 1
        return int(pycurl.PREREQFUNC_OK if self._sent_count == 1 else pycurl.PREREQFUNC_ABORT)

    def _is_usable(self, ends: Ends) -> bool:
        """Tell whether a connection is new or nothing came on it, and note it otherwise."""
        self._ends = ends
        if not self._open_sockets:
            self._is_stale = not self._connections.is_silent(ends)
        return not self._is_stale

    def _begin_on_new_connection(self) -> None:
        """Begin again after a kept connection that cannot be used: nothing was sent on it."""
        self._is_stale = False
        self._connect_anew(is_wanted=True)
        self._restart(self)

    def _connect_anew(self, *, is_wanted: bool) -> None:
        if self._is_fresh != is_wanted:
            self._is_fresh = is_wanted
            self.curl.setopt(pycurl.FRESH_CONNECT, int(is_wanted))

    def _take_header(self, line: bytes) -> int | None:
        """Take a line of a head; the last one tells whether the head fits."""
        self._head.append(line)
        if line not in _BLANK_LINES or self._head_start < 0:
            return None
        head = self._head[self._head_start : -1]
        self._misfit = find_head_problem(head, self._interim_heads) or ""
        if self._misfit:
            return -1
        if is_interim(head):
            self._interim_heads += 1
            self._head_start = len(self._head)
        else:
            self._head_start = -1
        return None

    def _take_body(self, data: bytes) -> int | None:
        size = len(data)
        if self._is_streamed and self._buffered >= _BUFFERED_BYTES:
            self._is_paused = True
            return int(pycurl.WRITEFUNC_PAUSE)
        self._touched_s = self._loop.time()
        self._received_bytes += size
        if self._received_bytes > self._bytes_max:
            return -1
        self._buffered += size
        self._pieces.append(data)
        self._wake_waiter()
        return None


async def join_pieces(pieces: AsyncIterator[bytes], *, bytes_max: int) -> bytes:
    """Put a body together; raises `BodyTooLarge`."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > bytes_max:
            raise BodyTooLarge
    return bytes(body)


def _decode_headers(lines: list[bytes]) -> dict[str, str]:
    """Read the headers of the last head; those that came several times are joined."""
    headers: dict[str, str] = {}
    name = ""
    is_head = True
    for line in lines:
        if line.startswith(_STATUS_LINE):
            headers.clear()
            is_head = True
        elif not line.strip():
            is_head = False
        elif is_head and line[:1] in b" \t" and name:
            headers[name] = f"{headers[name]} {_decode_text(line)}"
        elif is_head:
            name, text = _known_field(line) if len(line) <= _KNOWN_BYTES_MAX else _split_field(line)
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def _split_field(line: bytes) -> tuple[str, str]:
    """Split a header's line into its name and what it says."""
    key, _, value = line.partition(b":")
    return _NAMES.get(key.strip().lower()) or _decode_text(key), _decode_text(value)


# Servers say much the same in each answer.
_known_field = lru_cache(maxsize=1024)(_split_field)


def _decode_text(data: bytes) -> str:
    try:
        return data.strip().decode()
    except UnicodeDecodeError:
        return data.strip().decode("latin-1")


@lru_cache(maxsize=256)
def _find_charset(media_type: str) -> str | None:
    match = _CHARSET.search(media_type)
    return None if match is None else match[1]
