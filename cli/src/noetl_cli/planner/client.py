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
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.identity import authorization, contexts, server_origin
from noetl_cli.identity.authorization import ServerAuthorization
from noetl_cli.stack.home_folder import state
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.state import StackPhase
from noetl_contracts import codec

CONNECT_TIMEOUT_S = 5.0
WHOAMI_PATH = "/api/auth/whoami"
CLIENT_HEADER = "X-NoETL-Client"
OWNER_HEADERS = {"tenant_id": "X-NoETL-Tenant", "organization_id": "X-NoETL-Organization"}
ANSWER_TIMEOUT_S = 30.0
# The database of `noetl up` for the user's own data.
TARGET = "target"
# Its bucket for them, with the keys.
TARGET_BUCKET = "bucket"
PIECE_BYTES_MAX = 64 * 1024
_NOT_SIGNED_IN = "not_signed_in"
_USAGE_STATUSES = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.CONFLICT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


class PlannerRefusal(CliError):  # noqa: N818 - it is an answer, not a failure of the client
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


class PlannerAnswer(dict[str, Any]):
    """What the planner answered; a field that every planner gives is never missing."""

    def __missing__(self, name: str) -> Any:
        """Raise `CliError`: a server without this field is not a planner."""
        raise build_not_a_planner_error(f"The answer has no {name!r}")


class PlannerClient:
    """Connections to one planner."""

    def __init__(
        self, pool: PoolManager, url: str, authorization: ServerAuthorization | None = None
    ) -> None:
        self._pool = pool
        self._authorization = authorization
        # Without a slash at its end.
        self.url = url

    def get_wanted_owner(self) -> dict[str, str]:
        """Return whose things the headers of all requests mean, as far as they say."""
        headers = self._pool.headers
        return {field: headers[name] for field, name in OWNER_HEADERS.items() if name in headers}

    def get(self, path: str, /, **params: Any) -> Any:
        """Ask for something; parameters that are None are left out."""
        return self._request_json("GET", add_query(path, params))

    def get_text(self, path: str) -> str:
        """Ask for a text, such as a page."""
        try:
            response = self._send_request("GET", path, headers={"Accept": "text/html"})
        except HTTPError as error:
            raise build_unreachable_error(self.url, error) from error
        if not is_success(response):
            raise self._explain_refusal(response)
        return str(response.data, "utf-8", "replace")

    def post(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any:
        """Send a JSON body."""
        typed = {"Content-Type": "application/json", **(headers or {})}
        return self._request_json("POST", path, body=codec.encode_json(body), headers=typed)

    def put(self, path: str, body: Any) -> Any:
        """Send a JSON body that replaces what is there."""
        typed = {"Content-Type": "application/json"}
        return self._request_json("PUT", path, body=codec.encode_json(body), headers=typed)

    def patch(self, path: str, body: Any) -> Any:
        """Send a JSON body that changes some of what is there."""
        typed = {"Content-Type": "application/json"}
        return self._request_json("PATCH", path, body=codec.encode_json(body), headers=typed)

    def post_text(self, path: str, text: str, /, **params: Any) -> Any:
        """Send a playbook as it was written."""
        typed = {"Content-Type": "text/yaml"}
        return self._request_json(
            "POST", add_query(path, params), body=text.encode(), headers=typed
        )

    def post_bytes(self, path: str, data: bytes) -> Any:
        """Send bytes as they are."""
        typed = {"Content-Type": "application/octet-stream"}
        return self._request_json("POST", path, body=data, headers=typed)

    def delete(self, path: str, /, **params: Any) -> Any:
        """Remove something; parameters that are None are left out."""
        return self._request_json("DELETE", add_query(path, params))

    @contextmanager
    def open_stream(
        self, path: str, *, headers: dict[str, str], timeout: Timeout
    ) -> Iterator[BaseHTTPResponse]:
        """Open an answer whose bytes are read as they come; raises urllib3's `HTTPError`."""
        answer = self._send_request(
            "GET", path, headers=headers, timeout=timeout, preload_content=False
        )
        try:
            yield answer
        finally:
            answer.close()

    def _send_request(self, method: str, path: str, **options: Any) -> BaseHTTPResponse:
        options["headers"] = {
            **self._pool.headers,
            **self._build_authorization(),
            **options.get("headers", {}),
        }
        try:
            return self._pool.request(
                method, self.url + path, retries=False, redirect=False, **options
            )
        except LocationValueError as error:
            raise _build_bad_address_error(self.url) from error

    def _build_authorization(self) -> dict[str, str]:
        header = None if self._authorization is None else self._authorization.find_header()
        return {} if header is None else {"Authorization": header}

    def _request_json(self, method: str, path: str, **options: Any) -> Any:
        try:
            response = self._send_request(method, path, **options)
        except HTTPError as error:
            raise build_unreachable_error(self.url, error) from error
        if not is_success(response):
            raise self._explain_refusal(response)
        answer = _decode_answer(response.data)
        if answer is not None and not isinstance(answer, dict):
            raise build_not_a_planner_error("The answer is no mapping")
        return None if answer is None else PlannerAnswer(answer)

    def _explain_refusal(self, response: BaseHTTPResponse) -> PlannerRefusal:
        refusal = parse_refusal(response)
        if refusal.code == _NOT_SIGNED_IN and self._authorization is not None:
            # The planner cannot know that its stack's token is missing here.
            hint = authorization.find_token_hint(settings.copy_environment(), self.url)
            refusal.way_out = hint or refusal.way_out
        return refusal


@contextmanager
def open_client(
    server: str | None, *, tenant: str | None = None, organization: str | None = None
) -> Iterator[PlannerClient]:
    """Open a client to the server that was named, to the one in use, or to the stack here.

    It says who calls, and in which organization: the arguments, the environment, or the context. A
    user in the address is said instead of what is kept.
    """
    environ = settings.copy_environment()
    address, headers = _split_user(get_server_address(server))
    headers |= {CLIENT_HEADER: "cli"} | authorization.find_context_headers(environ, address)
    named = settings.find_owner(tenant, organization, environ=environ)
    headers |= {OWNER_HEADERS[field]: name for field, name in named.items()}
    proof = None if "authorization" in headers else ServerAuthorization(environ, address)
    with _open_pool(headers) as pool:
        yield PlannerClient(pool, address, proof)


@contextmanager
def open_unsigned_client(server: str) -> Iterator[PlannerClient]:
    """Open a client that does not say who calls, for those who are about to sign in."""
    address, headers = _split_user(server)
    with _open_pool(headers) as pool:
        yield PlannerClient(pool, address)


def _split_user(address: str) -> tuple[str, dict[str, str]]:
    """Return an address without its user, and the header that names the user."""
    parts = urlsplit(address)
    headers = {}
    if parts.username is not None:
        named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = dict(urllib3.make_headers(basic_auth=named))
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), headers


def _open_pool(headers: dict[str, str]) -> PoolManager:
    timeout = Timeout(connect=CONNECT_TIMEOUT_S, read=ANSWER_TIMEOUT_S)
    # The environment's proxies are for the world, not for a planner: urllib3 reads none.
    return PoolManager(
        headers=headers,
        timeout=timeout,
        ca_certs=settings.find_authorities(environ=settings.copy_environment()),
    )


def get_server_address(server: str | None) -> str:
    """Choose the planner: the argument, the environment, the context, or the running stack."""
    environ = settings.copy_environment()
    address = server or settings.find_api_url(environ=environ)
    if address is None:
        context = contexts.find_current_context(environ)
        address = _get_stack_address(environ) if context is None else context.server
    if not _is_address(address):
        raise _build_bad_address_error(address)
    return address.rstrip("/")


def find_other_server(server: str | None) -> str | None:
    """Return the server that is named or chosen, unless it is that of the stack here."""
    environ = settings.copy_environment()
    context = contexts.find_current_context(environ)
    address = server or settings.find_api_url(environ=environ)
    if address is None and context is not None:
        address = context.server
    if address is None or not _is_address(address):
        # A name that is no address is refused where it is asked.
        return address
    own = _find_stack_urls(environ).get("api")
    origin = server_origin.parse_origin(_split_user(address)[0])
    return None if own is not None and server_origin.parse_origin(own) == origin else address


def get_owner(planner: PlannerClient) -> dict[str, str]:
    """Return whose things are meant, as fields of requests; raises `CliError`.

    It is what the server says: without an argument it follows from who calls.
    """
    who = planner.get(WHOAMI_PATH)
    owner = {"tenant_id": who["tenant"], "organization_id": who["organization"]}
    wanted_owner = planner.get_wanted_owner()
    if owner | wanted_owner != owner:
        raise CliError(
            f"The planner acts for tenant {who['tenant']!r}, organization {who['organization']!r}, "
            "and not for the one that is named.",
            way_out="Sign in as somebody with a role there: noetl whoami",
            exit_code=ExitCode.USAGE,
        )
    return owner


def get_target_dsn() -> str:
    """Return the DSN of the running stack's database for the user's own data; raises `CliError`."""
    return _get_stack_url(TARGET, "database", "name another database with --data dsn=...")


def get_target_bucket() -> tuple[str, dict[str, str]]:
    """Return the running stack's bucket for the user's own data, and its credential's fields.

    Raises `CliError`.
    """
    url = urlsplit(_get_stack_url(TARGET_BUCKET, "bucket", "name another with --type s3"))
    fields = {
        "endpoint": f"http://{url.hostname}:{url.port}",
        "access_key": url.username or "",
        "secret_key": url.password or "",
        "region": "us-east-1",
    }
    return url.path.strip("/"), fields


def check_stack_server() -> None:
    """Refuse any other planner in use than that of the stack here; raises `CliError`."""
    environ = settings.copy_environment()
    address, _ = _split_user(get_server_address(None))
    own = _find_stack_urls(environ).get("api")
    if own is None or server_origin.parse_origin(address) != server_origin.parse_origin(own):
        raise CliError(
            f"The planner in use is {address}, not that of the stack in "
            f"{settings.choose_home(None, environ=environ)}, whose keys stay on this machine.",
            way_out="Unset NOETL_SERVER, and switch with: noetl context use local",
            exit_code=ExitCode.USAGE,
        )


def _get_stack_url(name: str, store_noun: str, other: str) -> str:
    environ = settings.copy_environment()
    url = _find_stack_urls(environ).get(name)
    if url is None:
        raise CliError(
            f"No stack with a {store_noun} for your own data runs in "
            f"{settings.choose_home(None, environ=environ)}.",
            way_out=f"Start it with `noetl up`, or {other} {settings.OTHER_HOME}.",
        )
    return url


def escape_segment(segment: str) -> str:
    """Write data as one segment of a path."""
    return quote(segment, safe="")


def add_query(path: str, params: dict[str, Any]) -> str:
    """Write parameters behind a path; those that are None are left out."""
    chosen = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in params.items()
        if value is not None
    }
    return f"{path}?{urlencode(chosen)}" if chosen else path


def build_unreachable_error(url: str, error: HTTPError) -> CliError:
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


def read_chunks(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield a stream's bytes as they come, however the server cuts them."""
    while piece := response.read1(PIECE_BYTES_MAX):
        yield piece


def parse_refusal(response: BaseHTTPResponse) -> PlannerRefusal:
    """Turn a problem document into one sentence and its way out."""
    try:
        problem = _decode_answer(response.data)
    except CliError:
        problem = {}
    return PlannerRefusal(response.status, problem if isinstance(problem, dict) else {})


def build_not_a_planner_error(answer: str) -> CliError:
    """Build the error for a server that is not a planner; `found` says what is wrong with it."""
    return CliError(
        f"{answer}: this is not a NoETL planner.",
        way_out="Check the address: --server, or NOETL_SERVER.",
    )


def _decode_answer(content: bytes) -> Any:
    try:
        return codec.decode_json(content) if content else None
    except msgspec.DecodeError as error:
        raise build_not_a_planner_error("The answer is not JSON") from error


def _get_stack_address(environ: dict[str, str]) -> str:
    address = _find_stack_urls(environ).get("api")
    if address is None:
        raise CliError(
            f"No planner runs in {settings.choose_home(None, environ=environ)}.",
            way_out="Start it with `noetl up`, or name one with --server or NOETL_SERVER. "
            f"{settings.OTHER_HOME}.",
        )
    return address


def _find_stack_urls(environ: dict[str, str]) -> dict[str, str]:
    """Return the addresses of the stack that runs here; none of one that does not."""
    place: Path = settings.choose_home(None, environ=environ)
    stack_state = state.find_state(StackHome(root=place))
    if stack_state is None or stack_state.phase in {StackPhase.STOPPED, StackPhase.STOPPING}:
        return {}
    return stack_state.urls


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Reading the port is what checks it.
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _build_bad_address_error(address: str) -> CliError:
    return CliError(
        f"{address!r} is not the address of a planner.",
        way_out="Write it as http://host:port",
        exit_code=ExitCode.USAGE,
    )
