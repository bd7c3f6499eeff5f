"""The worker's HTTP client: libcurl over kept connections, HTTP/1.1.

It reads no settings of the user or the environment, keeps no cookies, follows no redirect.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache

import pycurl
from msgspec import Struct

from noetl_playbook.model import http_headers
from noetl_storage.process.curl import create_curl_handle
from noetl_worker.tools.calls.call import Timeout
from noetl_worker.tools.http.exchange import Check, Exchange, HttpResponse, KeptConnections
from noetl_worker.tools.http.http_request import HttpRequest
from noetl_worker.tools.http.transfers import CurlTransfers

_CONNECT_S = 10.0
_KEEP_IDLE_S = 30
_NAMES_KEPT_S = 30
_TIMEOUT_MAX_MS = 2**31 - 1
_HANDLES_KEPT = 256
# With an empty body these still say how long it is.
_SEND_A_BODY = frozenset({"POST", "PUT", "PATCH"})
# Servers that expect no body with these may read it as the next request.
_HAVE_NO_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_DEFAULTS = {
    "accept": b"Accept: */*",
    # Unpacked in `http_answer`, which watches how large a body becomes.
    "accept-encoding": b"Accept-Encoding: gzip, deflate",
    "user-agent": b"User-Agent: noetl",
    # Names without a value take away what libcurl would add by itself.
    "content-type": b"Content-Type:",
    "expect": b"Expect:",
}


class ClientRules(Struct, frozen=True, kw_only=True):
    """What a client may do: `check` is asked of each address, with its host and port.

    `names` gives the addresses of a host in place of the system's resolver.
    """

    check: Check
    connections_max: int
    names: Callable[[str], Sequence[str]] | None = None


class HttpClient:
    """Sends requests.

    They raise `Refused`, `TooLarge`, `TimeoutError`, `OSError`, and `ValueError` for what makes no
    request.
    """

    def __init__(self, rules: ClientRules) -> None:
        self._rules = rules
        self._transfers = CurlTransfers(connections_max=rules.connections_max)
        self._connections = KeptConnections(rules.connections_max)
        self._idle: list[Exchange] = []

    def close(self) -> None:
        """Give up what is under way and close all connections."""
        self._transfers.close()

    async def fetch_response(
        self, request: HttpRequest, *, time_limits: Timeout, is_verified: bool, bytes_max: int
    ) -> HttpResponse:
        """Send a request; return the whole answer."""
        exchange = self._begin_exchange(
            request, time_limits, is_verified=is_verified, bytes_max=bytes_max
        )
        try:
            await exchange.ended
            exchange.raise_failure()
            return exchange.build_response()
        finally:
            self._end_exchange(exchange)

    @asynccontextmanager
    async def stream_response(
        self, request: HttpRequest, *, time_limits: Timeout, is_verified: bool
    ) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[bytes]]]:
        """Send a request; hold the answer without its body, and the body in pieces."""
        exchange = self._begin_exchange(
            request, time_limits, is_verified=is_verified, bytes_max=None
        )
        try:
            await exchange.wait_for_body()
            yield exchange.build_response(), exchange.iterate_pieces()
        finally:
            self._end_exchange(exchange)

    def _begin_exchange(
        self,
        request: HttpRequest,
        time_limits: Timeout,
        *,
        is_verified: bool,
        bytes_max: int | None,
    ) -> Exchange:
        """Begin an exchange that is to be ended; with no bound its body is read while it comes."""
        host, port = request.address.host, request.address.port
        headers = _encode_headers(request)
        is_plain = request.method == "GET" and request.body is None and is_verified
        if is_plain and self._idle:
            exchange = self._idle.pop()
        else:
            exchange = Exchange(
                _build_handle(),
                check=self._rules.check,
                is_plain=is_plain,
                connections=self._connections,
            )
        curl = exchange.curl
        curl.setopt(pycurl.URL, request.address.url)
        curl.setopt(pycurl.HTTPHEADER, headers)
        if exchange.time_limits is not time_limits:
            exchange.time_limits = time_limits
            _set_timeouts(curl, time_limits)
        if not is_plain:
            _set_method(curl, request, is_verified=is_verified)
        self._set_addresses(curl, host, port)
        exchange.begin_exchange(
            host=host,
            port=port,
            bytes_max=bytes_max,
            restart=self._begin_transfer,
        )
        if time_limits.read is not None:
            exchange.guard_reads(time_limits.read, self._transfers.cancel_transfer)
        self._begin_transfer(exchange)
        return exchange

    def _begin_transfer(self, exchange: Exchange) -> None:
        self._transfers.begin_transfer(exchange.curl, exchange.note_end)

    def _end_exchange(self, exchange: Exchange) -> None:
        """Give an exchange up unless it is over; keep its handle if the next one may have it."""
        self._transfers.cancel_transfer(exchange.curl)
        exchange.close()
        if exchange.is_plain and exchange.ended.done() and len(self._idle) < _HANDLES_KEPT:
            self._idle.append(exchange)
        else:
            exchange.curl.close()

    def _set_addresses(self, curl: pycurl.Curl, host: str, port: int) -> None:
        """Tell libcurl the addresses of a host, where somebody else knows them."""
        if self._rules.names is None:
            return
        places = (f"[{name}]" if ":" in name else name for name in self._rules.names(host))
        curl.setopt(pycurl.RESOLVE, [f"-{host}:{port}", f"{host}:{port}:{','.join(places)}"])


def _build_handle() -> pycurl.Curl:
    """Make a handle that sends a GET, and as it was asked for: no proxy, no tidied path."""
    curl = create_curl_handle()
    curl.setopt(pycurl.PROXY, "")
    curl.setopt(pycurl.PATH_AS_IS, 1)
    curl.setopt(pycurl.MAXAGE_CONN, _KEEP_IDLE_S)
    curl.setopt(pycurl.DNS_CACHE_TIMEOUT, _NAMES_KEPT_S)
    return curl


def _set_timeouts(curl: pycurl.Curl, time_limits: Timeout) -> None:
    """Set how long a handle may take."""
    curl.setopt(pycurl.TIMEOUT_MS, _to_milliseconds(time_limits.total))
    connect_s = time_limits.connect or min(_CONNECT_S, time_limits.total)
    curl.setopt(pycurl.CONNECTTIMEOUT_MS, _to_milliseconds(connect_s))


def _set_method(curl: pycurl.Curl, request: HttpRequest, *, is_verified: bool) -> None:
    """Set what a handle needs to send anything but a plain GET."""
    if not is_verified:
        curl.setopt(pycurl.SSL_VERIFYPEER, 0)
        curl.setopt(pycurl.SSL_VERIFYHOST, 0)
    if request.method == "HEAD":
        curl.setopt(pycurl.NOBODY, 1)
    if request.body is not None or request.method in _SEND_A_BODY:
        curl.setopt(pycurl.POSTFIELDS, request.body or b"")
        curl.setopt(pycurl.FORBID_REUSE, int(request.method in _HAVE_NO_BODY))
    if request.method != "HEAD":
        curl.setopt(pycurl.CUSTOMREQUEST, request.method)


def _encode_headers(request: HttpRequest) -> list[bytes]:
    """Write a request's headers as libcurl takes them; raises `ValueError`."""
    if problem := http_headers.find_method_problem(request.method):
        raise ValueError(problem)
    lines: list[bytes] = []
    missing = _DEFAULTS
    for name, value in request.headers.items():
        begin, known_names = _build_header_start(name)
        if not value.isprintable() and (problem := http_headers.find_header_problem(name, value)):
            raise ValueError(problem)
        if known_names in missing:
            missing = {key: line for key, line in missing.items() if key != known_names}
        # libcurl takes a name with a semicolon for a header that is empty.
        lines.append(f"{begin}{value}".encode() if value.strip() else f"{name};".encode())
    lines += missing.values()
    return lines


@lru_cache(maxsize=1024)
def _build_header_start(name: str) -> tuple[str, str]:
    """Give how a header's line begins, and its name in small letters; raises `ValueError`."""
    if problem := http_headers.find_header_problem(name):
        raise ValueError(problem)
    return f"{name}: ", name.lower()


def _to_milliseconds(seconds: float) -> int:
    """Milliseconds, at least one: none at all would mean that there is no bound."""
    return max(1, min(_TIMEOUT_MAX_MS, round(seconds * 1000)))
