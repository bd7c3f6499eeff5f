"""The `http` tool: one pooled session, checked addresses, one hold per host."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_contracts.errors import ErrorObject
from noetl_playbook import coercion
from noetl_storage.ports import Payloads
from noetl_worker.domain import egress
from noetl_worker.domain.failures import ToolFailure, failure, of_status
from noetl_worker.domain.sites import Site
from noetl_worker.keys.credential_vault import Credential, Vault
from noetl_worker.keys.tokens import Fetched, Tokens
from noetl_worker.own_time import own_time
from noetl_worker.tools import http_lines, http_parts, http_request
from noetl_worker.tools.call import Call, Outcome, RequestMade, Timeout
from noetl_worker.tools.call_spans import add_traceparent
from noetl_worker.tools.egress import check_literal, denied
from noetl_worker.tools.http_answer import (
    Answer,
    ResponseType,
    body_start,
    described,
    response_type_of,
    too_large,
    unpacked,
)
from noetl_worker.tools.http_client import Client, Rules
from noetl_worker.tools.http_exchange import Refused, Response, TooLarge, joined
from noetl_worker.tools.http_request import Request

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ENDLESS_S = 1e9
_REDIRECTS_MAX = 10
_STATUS_ERROR = 400
_STATUS_RATE_LIMIT = 429
# A server does not put a task off for longer than a day.
_RETRY_AFTER_MAX_S = 86_400.0
# What the standard library raises for texts that are no dates, and for dates that it cannot hold.
_NO_DATE = (ValueError, ArithmeticError, LookupError, TypeError)


class Limits(Struct, frozen=True, kw_only=True):
    """What the tool may use."""

    allowances: tuple[egress.Allowance, ...] = ()
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
        client: Client,
        limits: Limits,
        vault: Vault,
        payloads: Payloads,
        clock: Clock,
    ) -> None:
        self._client = client
        self._limits = limits
        self._vault = vault
        self._payloads = payloads
        self._clock = clock
        self._held_until: dict[str, float] = {}
        self.tokens = Tokens(fetch=self.fetch, vault=vault, clock=clock)

    async def run(self, call: Call) -> Outcome:
        """Send one request and read its answer."""
        request: Request | None = None
        try:
            response_type = response_type_of(call.fields.get("response_type"))
            if call.sink is not None:
                http_lines.check(response_type)
            request = await self._prepare(call)
            if self._limits.sends_traceparent:
                add_traceparent(request.headers)
            answer = await self._exchange(request, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error, request=_made(request))
        except (TimeoutError, OSError, ValueError) as problem:
            return Outcome(error=_of_exception(problem, call), request=_made(request))
        outcome = self._outcome(answer, response_type, call)
        if call.sink is not None:
            outcome = http_lines.without_body(outcome)
        return structs.replace(outcome, request=_made(request, answer))

    async def _prepare(self, call: Call) -> Request:
        site = call.site
        parts = await http_parts.load(call.fields.get("files"), self._payloads, site)
        request = http_request.build(call.fields, parts=parts, idempotency_key=call.idempotency_key)
        if call.auth is None:
            return request
        credential = await self._vault.resolve(call.auth, site)
        if credential.kind == "oauth2":
            credential = await self.tokens.bearer(credential, site)
        return http_request.sign(request, credential)

    async def fetch(
        self, fields: dict[str, Any], *, credential: Credential | None, site: Site, timeout_s: float
    ) -> Fetched:
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
            request = await self._prepare(call)
            if credential is not None:
                request = http_request.sign(request, credential)
            answer = await self._exchange(request, call)
        except (TimeoutError, OSError, ValueError) as problem:
            raise ToolFailure(_of_exception(problem, call)) from problem
        return Fetched(status=answer.status, url=answer.url, body=answer.body)

    async def _exchange(self, request: Request, call: Call) -> Answer:
        """Send, following redirects one checked hop at a time."""
        follows = _flag(call.fields, "follow_redirects")
        started = self._clock.monotonic()
        for _ in range(_REDIRECTS_MAX + 1):
            answer = await self._send(request, call, started)
            location = answer.headers.get("Location")
            if not follows or answer.status not in _REDIRECTS or location is None:
                return answer
            request = http_request.redirected(request, status=answer.status, location=location)
        raise ToolFailure(
            failure("client_error", f"more than {_REDIRECTS_MAX} redirects from {answer.url}")
        )

    async def _send(self, request: Request, call: Call, started: float) -> Answer:
        url, host = request.address.url, request.address.host
        check_literal(host, request.address.port, self._limits.allowances)
        if host in self._held_until:
            await self._held(host)
        try:
            response = await self._received(request, call, url)
        except Refused as refused:
            raise denied(refused.host, refused.port) from refused
        except TooLarge as problem:
            raise too_large(url, bytes_max=self._limits.response_bytes_max) from problem
        return Answer(
            status=response.status,
            headers=response.headers,
            host=host,
            url=url,
            body=response.body,
            charset=response.charset,
            elapsed_s=self._clock.monotonic() - started,
        )

    async def _received(self, request: Request, call: Call, url: str) -> Response:
        """Send a request; return its answer, without the body if that went into the call's sink."""
        bytes_max = self._limits.response_bytes_max
        is_verified = _flag(call.fields, "verify_ssl")
        if call.sink is None:
            response = await self._client.fetch(
                request, patience=call.timeout, is_verified=is_verified, bytes_max=bytes_max
            )
            response.body = unpacked(response, url=url, bytes_max=bytes_max)
            return response
        # What takes the rows may wait for the payload store, which libcurl would count.
        endless = structs.replace(call.timeout, total=_ENDLESS_S)
        async with (
            own_time(call.timeout.total),
            self._client.stream(request, patience=endless, is_verified=is_verified) as (
                response,
                pieces,
            ),
        ):
            if response.status < _STATUS_ERROR:
                response.body = b""
                await http_lines.pour(pieces, call.sink, url=url, packing=response.packing)
                return response
            response.body = await joined(pieces, bytes_max=bytes_max)
            response.body = unpacked(response, url=url, bytes_max=bytes_max)
            return response

    async def _held(self, host: str) -> None:
        """Wait until the host may be asked again."""
        while (wait_s := self._held_until.get(host, 0.0) - self._clock.monotonic()) > 0:  # noqa: ASYNC110 - another answer may prolong the hold
            await asyncio.sleep(wait_s)
        self._held_until.pop(host, None)

    def _outcome(self, answer: Answer, response_type: ResponseType, call: Call) -> Outcome:
        raw, why = described(answer, response_type)
        if answer.status >= _STATUS_ERROR:
            return Outcome(error=self._refused(answer, call), data=raw)
        if why is not None:
            return Outcome(error=failure("parse", why, source="http"), data=raw)
        return Outcome(data=raw)

    def _refused(self, answer: Answer, call: Call) -> ErrorObject:
        wait_s = self._retry_after_s(answer.headers)
        if wait_s is not None and answer.status == _STATUS_RATE_LIMIT:
            until = self._clock.monotonic() + min(wait_s, self._limits.hold_max_s)
            self._held_until[answer.host] = max(until, self._held_until.get(answer.host, 0.0))
        message = f"{answer.url} answered {answer.status}"
        details = {"method": str(call.fields.get("method") or "GET").upper(), "url": answer.url}
        if start := body_start(answer, self._vault.mask):
            details["body_start"] = start
        error = of_status(answer.status, message, retry_after=wait_s)
        return structs.replace(error, details=details)

    def _retry_after_s(self, headers: dict[str, str]) -> float | None:
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


def _made(request: Request | None, answer: Answer | None = None) -> RequestMade | None:
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


def _flag(fields: dict[str, Any], name: str) -> bool:
    """Read a field that is true unless it says otherwise; raises `ToolFailure`."""
    given = fields.get(name)
    found = True if given is None else coercion.boolean(given)
    if found is None:
        text = f"field '{name}': {given!r:.80} is neither true nor false"
        raise ToolFailure(failure("validation", text, source="http"))
    return found


def _of_exception(problem: Exception, call: Call) -> ErrorObject:
    where = f"{call.fields.get('method') or 'GET'} {http_request.shown(call.fields.get('url'))}"
    if isinstance(problem, TimeoutError):
        message = f"{where} did not answer within {call.timeout.total:g} s"
        return failure("timeout", message, source="http")
    if isinstance(problem, ValueError):
        return failure("validation", f"{where} cannot be sent: {problem}", source="http")
    reason = str(problem) or type(problem).__name__
    return failure("connection", f"{where} failed: {reason}", source="http")


@asynccontextmanager
async def open_http(
    *,
    limits: Limits,
    vault: Vault,
    payloads: Payloads,
    clock: Clock,
    names: Callable[[str], Sequence[str]] | None = None,
) -> AsyncIterator[HttpTool]:
    """Hold the worker's one client while the block runs; `names` finds hosts, unchecked."""

    def check(address: str, host: str, port: int) -> bool:
        return egress.is_allowed(address, host=host, port=port, allowances=limits.allowances)

    client = Client(Rules(check=check, connections_max=limits.connections_max, names=names))
    try:
        yield HttpTool(client=client, limits=limits, vault=vault, payloads=payloads, clock=clock)
    finally:
        client.close()
