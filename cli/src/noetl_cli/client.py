"""The planner's API as the command line uses it: one clear sentence for everything that fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

import msgspec
import urllib3
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError, LocationValueError, ReadTimeoutError

from noetl_cli import settings
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.stack import state
from noetl_cli.stack.home import Home
from noetl_cli.stack.state import Phase
from noetl_contracts import codec

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
# The database of `noetl up` for the user's own data.
TARGET = "target"
PIECE_BYTES_MAX = 64 * 1024
_USAGE_STATUSES = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.CONFLICT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


class Refused(CliError):  # noqa: N818 - it is an answer, not a failure of the client
    """The planner's answer to a request that it did not serve."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(
            str(problem.get("detail") or f"the planner answered {status}"),
            way_out=str(problem.get("hint") or ""),
            exit_code=ExitCode.USAGE if status in _USAGE_STATUSES else ExitCode.FAILED,
        )
        self.status = status
        self.code = str(problem.get("code") or "")
        self.diagnostics: list[dict[str, Any]] = problem.get("diagnostics") or []


class Answer(dict[str, Any]):
    """What the planner answered; a field that every planner gives is never missing."""

    def __missing__(self, name: str) -> Any:
        """Say that whoever answered is no planner."""
        raise no_planner(f"The answer has no {name!r}")


class Client:
    """Connections to one planner."""

    def __init__(self, pool: PoolManager, url: str) -> None:
        self._pool = pool
        # Without a slash at its end.
        self.url = url

    def get(self, path: str, /, **params: Any) -> Any:
        """Ask for something; parameters that are None are left out."""
        return self._answer("GET", with_query(path, params))

    def post(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any:
        """Send a JSON body."""
        typed = {"Content-Type": "application/json", **(headers or {})}
        return self._answer("POST", path, body=codec.encode(body), headers=typed)

    def put(self, path: str, body: Any) -> Any:
        """Send a JSON body that replaces what is there."""
        typed = {"Content-Type": "application/json"}
        return self._answer("PUT", path, body=codec.encode(body), headers=typed)

    def post_text(self, path: str, text: str, /, **params: Any) -> Any:
        """Send a playbook as it was written."""
        typed = {"Content-Type": "text/yaml"}
        return self._answer("POST", with_query(path, params), body=text.encode(), headers=typed)

    def post_bytes(self, path: str, data: bytes) -> Any:
        """Send bytes as they are."""
        typed = {"Content-Type": "application/octet-stream"}
        return self._answer("POST", path, body=data, headers=typed)

    def delete(self, path: str) -> Any:
        """Remove something."""
        return self._answer("DELETE", path)

    @contextmanager
    def open_stream(
        self, path: str, *, headers: dict[str, str], timeout: Timeout
    ) -> Iterator[BaseHTTPResponse]:
        """Open an answer whose bytes are read as they come; raises urllib3's `HTTPError`."""
        answer = self._send("GET", path, headers=headers, timeout=timeout, preload_content=False)
        try:
            yield answer
        finally:
            answer.close()

    def _send(self, method: str, path: str, **options: Any) -> BaseHTTPResponse:
        options["headers"] = {**self._pool.headers, **options.get("headers", {})}
        try:
            return self._pool.request(
                method, self.url + path, retries=False, redirect=False, **options
            )
        except LocationValueError as error:
            raise _bad_address(self.url) from error

    def _answer(self, method: str, path: str, **options: Any) -> Any:
        try:
            response = self._send(method, path, **options)
        except HTTPError as error:
            raise unreachable(self.url, error) from error
        if not is_success(response):
            raise refusal(response)
        found = _decoded(response.data)
        if found is not None and not isinstance(found, dict):
            raise no_planner("The answer is no mapping")
        return None if found is None else Answer(found)


@contextmanager
def open_client(server: str | None) -> Iterator[Client]:
    """Open a client to the server that was named, or to the stack that runs here."""
    address = find_server(server)
    parts = urlsplit(address)
    headers = {}
    if parts.username is not None:
        named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(basic_auth=named)
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    timeout = Timeout(connect=CONNECT_TIMEOUT_S, read=ANSWER_TIMEOUT_S)
    # The environment's proxies are for the world, not for a planner: urllib3 reads none.
    with PoolManager(headers=headers, timeout=timeout) as pool:
        yield Client(pool, bare)


def find_server(server: str | None) -> str:
    """Choose the planner: the argument, the environment, or the running stack's state."""
    environ = settings.environment()
    address = server or settings.api_url(environ=environ) or _stack_address(environ)
    if not _is_address(address):
        raise _bad_address(address)
    return address.rstrip("/")


def find_target_database() -> str:
    """Return the DSN of the running stack's database for the user's own data; raises `CliError`."""
    dsn = _stack_urls(settings.environment()).get(TARGET)
    if dsn is None:
        raise CliError(
            "No stack with a database for your own data runs here.",
            way_out="Start it with `noetl up`, or name another database with --data dsn=...",
        )
    return dsn


def escaped(segment: str) -> str:
    """Write data as one segment of a path."""
    return quote(segment, safe="")


def with_query(path: str, params: dict[str, Any]) -> str:
    """Write parameters behind a path; those that are None are left out."""
    chosen = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in params.items()
        if value is not None
    }
    return f"{path}?{urlencode(chosen)}" if chosen else path


def unreachable(url: str, error: HTTPError) -> CliError:
    """Say that nobody answered."""
    if isinstance(error, ReadTimeoutError):
        return CliError(
            f"The planner at {url} did not answer within {ANSWER_TIMEOUT_S:g} s.",
            way_out="See what it does: noetl logs planner",
        )
    return CliError(
        f"No planner answers at {url}.",
        way_out="Start it with `noetl up`, or name another with --server or NOETL_SERVER.",
    )


def is_success(response: BaseHTTPResponse) -> bool:
    """Tell whether the planner did what was asked."""
    return HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES


def read_pieces(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield a stream's bytes as they come, however the server cuts them."""
    while piece := response.read1(PIECE_BYTES_MAX):
        yield piece


def refusal(response: BaseHTTPResponse) -> Refused:
    """Turn a problem document into one sentence and its way out."""
    try:
        problem = _decoded(response.data)
    except CliError:
        problem = {}
    return Refused(response.status, problem if isinstance(problem, dict) else {})


def no_planner(found: str) -> CliError:
    """Say why whoever answered cannot be a planner."""
    return CliError(
        f"{found}: this is not a NoETL planner.",
        way_out="Check the address: --server, or NOETL_SERVER.",
    )


def _decoded(content: bytes) -> Any:
    try:
        return codec.decode(content) if content else None
    except msgspec.DecodeError as error:
        raise no_planner("The answer is not JSON") from error


def _stack_address(environ: dict[str, str]) -> str:
    address = _stack_urls(environ).get("api")
    if address is None:
        raise CliError(
            "No planner runs here.",
            way_out="Start it with `noetl up`, or name one with --server or NOETL_SERVER.",
        )
    return address


def _stack_urls(environ: dict[str, str]) -> dict[str, str]:
    """Return the addresses of the stack that runs here; none of one that does not."""
    place: Path = settings.home(None, environ=environ)
    found = state.find(Home(root=place))
    if found is None or found.phase in {Phase.STOPPED, Phase.STOPPING}:
        return {}
    return found.urls


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Reading the port is what checks it.
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _bad_address(address: str) -> CliError:
    return CliError(
        f"{address!r} is not the address of a planner.",
        way_out="Write it as http://host:port",
        exit_code=ExitCode.USAGE,
    )
