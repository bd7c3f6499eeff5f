"""The worker's HTTP client: libcurl over kept connections, HTTP/1.1.

It reads no settings of the user or the environment, keeps no cookies, follows no redirect.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache

import pycurl
from msgspec import Struct

from noetl_storage.curl import new_handle
from noetl_worker.tools.call import Timeout
from noetl_worker.tools.http_exchange import Check, Exchange, Response
from noetl_worker.tools.http_request import Request
from noetl_worker.tools.http_transfers import Transfers

_CONNECT_S = 10.0
_KEEP_IDLE_S = 30
_NAMES_KEPT_S = 30
_TIMEOUT_MAX_MS = 2**31 - 1
_HANDLES_KEPT = 256
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BREAKS = re.compile(r"[\r\n\0]")
# With an empty body these still say how long it is.
_SEND_A_BODY = frozenset({"POST", "PUT", "PATCH"})
_DEFAULTS = {
    "accept": b"Accept: */*",
    # Unpacked in `http_answer`, which watches how large a body becomes.
    "accept-encoding": b"Accept-Encoding: gzip, deflate",
    "user-agent": b"User-Agent: noetl",
    # Names without a value take away what libcurl would add by itself.
    "content-type": b"Content-Type:",
    "expect": b"Expect:",
}


class Rules(Struct, frozen=True, kw_only=True):
    """What a client may do: `check` is asked of each address, with its host and port.

    `names` gives the addresses of a host in place of the system's resolver.
    """

    check: Check
    connections_max: int
    names: Callable[[str], Sequence[str]] | None = None


class Client:
    """Sends requests.

    They raise `Refused`, `TooLarge`, `TimeoutError`, `OSError`, and `ValueError` for what makes no
    request.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._transfers = Transfers(connections_max=rules.connections_max)
        self._idle: list[Exchange] = []

    def close(self) -> None:
        """Give up what is under way and close all connections."""
        self._transfers.close()

    async def fetch(
        self, request: Request, *, patience: Timeout, is_verified: bool, bytes_max: int
    ) -> Response:
        """Send a request; return the whole answer."""
        exchange = self._begun(request, patience, is_verified=is_verified, bytes_max=bytes_max)
        try:
            await exchange.ended
            exchange.check()
            return exchange.response()
        finally:
            self._end(exchange)

    @asynccontextmanager
    async def stream(
        self, request: Request, *, patience: Timeout, is_verified: bool
    ) -> AsyncIterator[tuple[Response, AsyncIterator[bytes]]]:
        """Send a request; hold the answer without its body, and the body in pieces."""
        exchange = self._begun(request, patience, is_verified=is_verified, bytes_max=None)
        try:
            await exchange.begun()
            yield exchange.response(), exchange.pieces()
        finally:
            self._end(exchange)

    def _begun(
        self, request: Request, patience: Timeout, *, is_verified: bool, bytes_max: int | None
    ) -> Exchange:
        """Begin an exchange that is to be ended; with no bound its body is read while it comes."""
        host, port = request.address.host, request.address.port
        headers = _headers(request)
        is_plain = request.method == "GET" and request.body is None and is_verified
        if is_plain and self._idle:
            exchange = self._idle.pop()
        else:
            exchange = Exchange(_handle(), check=self._rules.check, is_plain=is_plain)
        curl = exchange.curl
        curl.setopt(pycurl.URL, request.address.url)
        curl.setopt(pycurl.HTTPHEADER, headers)
        if exchange.patience is not patience:
            exchange.patience = patience
            _bound(curl, patience)
        if not is_plain:
            _shape(curl, request, is_verified=is_verified)
        self._name(curl, host, port)
        exchange.begin(host=host, port=port, bytes_max=bytes_max)
        if patience.read is not None:
            exchange.guard(patience.read, self._transfers.give_up)
        self._transfers.begin(curl, exchange.end)
        return exchange

    def _end(self, exchange: Exchange) -> None:
        """Give an exchange up unless it is over; keep its handle if the next one may have it."""
        self._transfers.give_up(exchange.curl)
        exchange.close()
        if exchange.is_plain and exchange.ended.done() and len(self._idle) < _HANDLES_KEPT:
            self._idle.append(exchange)
        else:
            exchange.curl.close()

    def _name(self, curl: pycurl.Curl, host: str, port: int) -> None:
        """Tell libcurl the addresses of a host, where somebody else knows them."""
        if self._rules.names is None:
            return
        places = (f"[{one}]" if ":" in one else one for one in self._rules.names(host))
        curl.setopt(pycurl.RESOLVE, [f"-{host}:{port}", f"{host}:{port}:{','.join(places)}"])


def _handle() -> pycurl.Curl:
    """Make a handle that sends a GET, and as it was asked for: no proxy, no tidied path."""
    curl = new_handle()
    curl.setopt(pycurl.PROXY, "")
    curl.setopt(pycurl.PATH_AS_IS, 1)
    curl.setopt(pycurl.MAXAGE_CONN, _KEEP_IDLE_S)
    curl.setopt(pycurl.DNS_CACHE_TIMEOUT, _NAMES_KEPT_S)
    return curl


def _bound(curl: pycurl.Curl, patience: Timeout) -> None:
    """Set how long a handle may take."""
    curl.setopt(pycurl.TIMEOUT_MS, _ms(patience.total))
    connect_s = patience.connect or min(_CONNECT_S, patience.total)
    curl.setopt(pycurl.CONNECTTIMEOUT_MS, _ms(connect_s))


def _shape(curl: pycurl.Curl, request: Request, *, is_verified: bool) -> None:
    """Set what a handle needs to send anything but a plain GET."""
    if not is_verified:
        curl.setopt(pycurl.SSL_VERIFYPEER, 0)
        curl.setopt(pycurl.SSL_VERIFYHOST, 0)
    if request.method == "HEAD":
        curl.setopt(pycurl.NOBODY, 1)
    if request.body is not None or request.method in _SEND_A_BODY:
        curl.setopt(pycurl.POSTFIELDS, request.body or b"")
    if request.method != "HEAD":
        curl.setopt(pycurl.CUSTOMREQUEST, request.method)


def _headers(request: Request) -> list[bytes]:
    """Write a request's headers as libcurl takes them; raises `ValueError`."""
    if not _TOKEN.fullmatch(request.method):
        raise ValueError(f"{request.method!r} is no method")
    lines: list[bytes] = []
    missing = _DEFAULTS
    for name, value in request.headers.items():
        begin, known = _begin_of(name)
        if _BREAKS.search(value):
            raise ValueError(f"the header {name!r} has a line break or a NUL")
        if known in missing:
            missing = {key: line for key, line in missing.items() if key != known}
        # libcurl takes a name with a semicolon for a header that is empty.
        lines.append(f"{begin}{value}".encode() if value.strip() else f"{name};".encode())
    lines += missing.values()
    return lines


@lru_cache(maxsize=1024)
def _begin_of(name: str) -> tuple[str, str]:
    """Give how a header's line begins, and its name in small letters; raises `ValueError`."""
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header")
    return f"{name}: ", name.lower()


def _ms(seconds: float) -> int:
    """Milliseconds, at least one: none at all would mean that there is no bound."""
    return max(1, min(_TIMEOUT_MAX_MS, round(seconds * 1000)))
