"""The http tool: it checks where a request may go, sends it, and classifies what came back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_contracts.errors import ErrorObject
from noetl_playbook.model import coercion
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.domain import egress
from noetl_worker.domain.failures import ToolFailure, build_error, classify_http_status
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import Credential, CredentialVault
from noetl_worker.keychain.tokens import BearerTokens, FetchedResponse
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.tools.calls.call import Call, Outcome, RequestMade, Timeout
from noetl_worker.tools.calls.call_spans import add_traceparent
from noetl_worker.tools.http import http_answer, http_request
from noetl_worker.tools.http.client import ClientRules, HttpClient
from noetl_worker.tools.http.exchange import AddressRefused, BodyTooLarge, HttpResponse, join_pieces
from noetl_worker.tools.http.http_answer import (
    HttpAnswer,
    ResponseType,
    build_too_large_failure,
    describe_answer,
    extract_body_start,
    inflate_body,
    parse_response_type,
)
from noetl_worker.tools.http.http_request import HttpRequest

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ENDLESS_S = 1e9
_REDIRECTS_MAX = 10
_STATUS_ERROR = 400
_STATUS_RATE_LIMIT = 429
# A server does not put a task off for longer than a day.
_RETRY_AFTER_MAX_S = 86_400.0
# What the standard library raises for texts that are no dates, and for dates that it cannot hold.
_NO_DATE = (ValueError, ArithmeticError, LookupError, TypeError)


def check_literal_address(host: str, port: int, limits: "HttpLimits") -> None:
    """Refuse a URL whose host is a forbidden address; names are checked when they resolve."""
    # The client takes such hosts for addresses and would never resolve them.
    if ":" not in host and not host.replace(".", "").isdigit():
        return
    try:
        is_allowed = egress.is_address_allowed(
            host,
            host=host,
            port=port,
            allowances=limits.allowances,
            platform_ports=limits.platform_ports,
        )
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise build_denied_failure(host, port)


def build_denied_failure(host: str, port: int) -> ToolFailure:
    """Say why a request was not sent."""
    return ToolFailure(
        build_error(
            "config",
            f"requests to {host}:{port} are not allowed: the address is not public; "
            "an operator can allow it with NOETL_WORKER_HTTP_ALLOW, for an embedded stack "
            f"`noetl up --allow-http {host}:{port}`; ports of the platform itself stay closed",
            source="http",
        )
    )


class HttpLimits(Struct, frozen=True, kw_only=True):
    """What the tool may use."""

    allowances: tuple[egress.Allowance, ...] = ()
    platform_ports: frozenset[int] = frozenset()
    connections_max: int = 512
    response_bytes_max: int = 64 * 1024 * 1024
    hold_max_s: float = 300.0
    # Whether servers are told which trace a request is a part of.
    sends_traceparent: bool = True


class HttpTool:
    """Sends requests; a 429 with `Retry-After` holds back every request to that host."""

    def __init__(
        self,
        *,
        client: HttpClient,
        limits: HttpLimits,
        vault: CredentialVault,
        payloads: Payloads,
        clock: Clock,
    ) -> None:
        self._client = client
        self._limits = limits
        self._vault = vault
        self._payloads = payloads
        self._clock = clock
        self._held_until: dict[str, float] = {}
        self.tokens = BearerTokens(fetch=self.fetch_response, vault=vault, clock=clock)

    async def run(self, call: Call) -> Outcome:
        """Send one request and read its answer."""
        request: HttpRequest | None = None
        try:
            response_type = parse_response_type(call.fields.get("response_type"))
            if call.sink is not None:
                http_answer.check_lines_type(response_type)
            request = await self._build_request(call)
            if self._limits.sends_traceparent:
                add_traceparent(request.headers)
            answer = await self._send_with_redirects(request, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error, request=_describe_request(request))
        except (TimeoutError, OSError, ValueError) as problem:
            return Outcome(
                error=_classify_exception(problem, call), request=_describe_request(request)
            )
        outcome = self._build_outcome(answer, response_type, call)
        if call.sink is not None:
            outcome = http_answer.drop_body(outcome)
        return structs.replace(outcome, request=_describe_request(request, answer))

    async def _build_request(self, call: Call) -> HttpRequest:
        site = call.site
        parts = await http_request.load_multipart_parts(
            call.fields.get("files"), self._payloads, site
        )
        request = http_request.build_request(
            call.fields, parts=parts, idempotency_key=call.idempotency_key
        )
        if call.auth is None:
            return request
        credential = await self._vault.resolve_auth(call.auth, site)
        if credential.kind == "oauth2":
            credential = await self.tokens.get_bearer(credential, site)
        return http_request.sign_request(request, credential)

    async def fetch_response(
        self,
        fields: dict[str, Any],
        *,
        credential: Credential | None,
        site: UnitScope,
        timeout_s: float,
    ) -> FetchedResponse:
        """Send a request of the worker's own, such as for a token; raises `ToolFailure`."""
        call = Call(
            site=site,
            task="",
            kind="http",
            attempt=1,
            visit=1,
            fields=fields,
            input={},
            auth=None,
            timeout=Timeout(total=timeout_s),
        )
        try:
            request = await self._build_request(call)
            if credential is not None:
                request = http_request.sign_request(request, credential)
            answer = await self._send_with_redirects(request, call)
        except (TimeoutError, OSError, ValueError) as problem:
            raise ToolFailure(_classify_exception(problem, call)) from problem
        return FetchedResponse(status=answer.status, url=answer.url, body=answer.body)

    async def _send_with_redirects(self, request: HttpRequest, call: Call) -> HttpAnswer:
        """Send, following redirects one checked hop at a time."""
        follows = _parse_flag(call.fields, "follow_redirects")
        started_s = self._clock.monotonic_s()
        for _ in range(_REDIRECTS_MAX + 1):
            answer = await self._send_once(request, call, started_s)
            location = answer.headers.get("Location")
            if not follows or answer.status not in _REDIRECTS or location is None:
                return answer
            request = http_request.redirect_request(
                request, status=answer.status, location=location
            )
        raise ToolFailure(
            build_error("client_error", f"more than {_REDIRECTS_MAX} redirects from {answer.url}")
        )

    async def _send_once(self, request: HttpRequest, call: Call, started_s: float) -> HttpAnswer:
        url, host = request.address.url, request.address.host
        check_literal_address(host, request.address.port, self._limits)
        if host in self._held_until:
            await self._wait_while_held(host)
        try:
            response = await self._receive_response(request, call, url)
        except AddressRefused as refusal:
            raise build_denied_failure(refusal.host, refusal.port) from refusal
        except BodyTooLarge as problem:
            raise build_too_large_failure(
                url, bytes_max=self._limits.response_bytes_max
            ) from problem
        return HttpAnswer(
            status=response.status,
            headers=response.headers,
            host=host,
            url=url,
            body=response.body,
            charset=response.charset,
            elapsed_s=self._clock.monotonic_s() - started_s,
        )

    async def _receive_response(self, request: HttpRequest, call: Call, url: str) -> HttpResponse:
        """Send a request; return its answer, without the body if that went into the call's sink."""
        bytes_max = self._limits.response_bytes_max
        is_verified = _parse_flag(call.fields, "verify_ssl")
        if call.sink is None:
            response = await self._client.fetch_response(
                request, time_limits=call.timeout, is_verified=is_verified, bytes_max=bytes_max
            )
            response.body = inflate_body(response, url=url, bytes_max=bytes_max)
            return response
        # What takes the rows may wait for the payload store, which libcurl would count.
        endless = structs.replace(call.timeout, total=_ENDLESS_S)
        async with (
            task_timeout(call.timeout.total),
            self._client.stream_response(request, time_limits=endless, is_verified=is_verified) as (
                response,
                pieces,
            ),
        ):
            if response.status < _STATUS_ERROR:
                response.body = b""
                await http_answer.stream_lines(pieces, call.sink, url=url, packing=response.packing)
                return response
            response.body = await join_pieces(pieces, bytes_max=bytes_max)
            response.body = inflate_body(response, url=url, bytes_max=bytes_max)
            return response

    async def _wait_while_held(self, host: str) -> None:
        """Wait until the host may be asked again."""
        while (wait_s := self._held_until.get(host, 0.0) - self._clock.monotonic_s()) > 0:  # noqa: ASYNC110 - another answer may prolong the hold
            await asyncio.sleep(wait_s)
        self._held_until.pop(host, None)

    def _build_outcome(
        self, answer: HttpAnswer, response_type: ResponseType, call: Call
    ) -> Outcome:
        raw, reason = describe_answer(answer, response_type)
        if answer.status >= _STATUS_ERROR:
            return Outcome(error=self._classify_refusal(answer, call), data=raw)
        if reason is not None:
            return Outcome(error=build_error("parse", reason, source="http"), data=raw)
        return Outcome(data=raw)

    def _classify_refusal(self, answer: HttpAnswer, call: Call) -> ErrorObject:
        wait_s = self._parse_retry_after_s(answer.headers)
        if wait_s is not None and answer.status == _STATUS_RATE_LIMIT:
            until = self._clock.monotonic_s() + min(wait_s, self._limits.hold_max_s)
            self._held_until[answer.host] = max(until, self._held_until.get(answer.host, 0.0))
        message = f"{answer.url} answered {answer.status}"
        details = {"method": str(call.fields.get("method") or "GET").upper(), "url": answer.url}
        if start := extract_body_start(answer, self._vault.secret_mask):
            details["body_start"] = start
        error = classify_http_status(answer.status, message, retry_after=wait_s)
        return structs.replace(error, details=details)

    def _parse_retry_after_s(self, headers: dict[str, str]) -> float | None:
        """Return how long a server wants to be left alone: seconds, or a date."""
        text = (headers.get("Retry-After") or "").strip()
        if text.isascii() and text.isdigit():
            return min(float(text), _RETRY_AFTER_MAX_S)
        try:
            until = parsedate_to_datetime(text)
            if until.tzinfo is None:
                until = until.replace(tzinfo=UTC)
            wait_s = (until - self._clock.now()).total_seconds()
        except _NO_DATE:
            return None
        return min(max(0.0, wait_s), _RETRY_AFTER_MAX_S)


def _describe_request(
    request: HttpRequest | None, answer: HttpAnswer | None = None
) -> RequestMade | None:
    """Say which request was sent, and how it was answered."""
    if request is None:
        return None
    return RequestMade(
        method=request.method,
        url=request.address.url,
        status=None if answer is None else answer.status,
        bytes_in=0 if answer is None else len(answer.body),
        bytes_out=len(request.body or b""),
    )


def _parse_flag(fields: dict[str, Any], name: str) -> bool:
    """Read a field that is true unless it says otherwise; raises `ToolFailure`."""
    field = fields.get(name)
    flag = True if field is None else coercion.coerce_boolean(field)
    if flag is None:
        text = f"field '{name}': {field!r:.80} is neither true nor false"
        raise ToolFailure(build_error("validation", text, source="http"))
    return flag


def _classify_exception(problem: Exception, call: Call) -> ErrorObject:
    request_text = (
        f"{call.fields.get('method') or 'GET'} {http_request.hide_userinfo(call.fields.get('url'))}"
    )
    if isinstance(problem, TimeoutError):
        message = f"{request_text} did not answer within {call.timeout.total:g} s"
        return build_error("timeout", message, source="http")
    if isinstance(problem, ValueError):
        return build_error("validation", f"{request_text} cannot be sent: {problem}", source="http")
    reason = str(problem) or type(problem).__name__
    return build_error("connection", f"{request_text} failed: {reason}", source="http")


@asynccontextmanager
async def open_http(
    *,
    limits: HttpLimits,
    vault: CredentialVault,
    payloads: Payloads,
    clock: Clock,
    names: Callable[[str], Sequence[str]] | None = None,
) -> AsyncIterator[HttpTool]:
    """Hold the worker's one client while the block runs; `names` finds hosts, unchecked."""

    def may_connect(address: str, host: str, port: int) -> bool:
        return egress.is_address_allowed(
            address,
            host=host,
            port=port,
            allowances=limits.allowances,
            platform_ports=limits.platform_ports,
        )

    client = HttpClient(
        ClientRules(check=may_connect, connections_max=limits.connections_max, names=names)
    )
    try:
        yield HttpTool(client=client, limits=limits, vault=vault, payloads=payloads, clock=clock)
    finally:
        client.close()
