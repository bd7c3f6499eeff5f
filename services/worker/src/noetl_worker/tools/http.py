"""The `http` tool: one pooled session, checked addresses, one hold per host."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_playbook import coercion
from noetl_worker.credentials import Vault
from noetl_worker.domain import egress, identity
from noetl_worker.domain.failures import ToolFailure, failure, of_status
from noetl_worker.tools import http_request
from noetl_worker.tools.call import Call, Outcome
from noetl_worker.tools.egress import CheckedResolver, check_literal
from noetl_worker.tools.http_request import Request

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REDIRECTS_MAX = 10
_STATUS_ERROR = 400
_STATUS_RATE_LIMIT = 429
_CHUNK_BYTES = 256 * 1024


class Limits(Struct, frozen=True, kw_only=True):
    """What the tool may use."""

    allowances: tuple[egress.Allowance, ...] = ()
    connections_max: int = 512
    response_bytes_max: int = 64 * 1024 * 1024
    hold_max_s: float = 300.0


class Answer(Struct, frozen=True, kw_only=True):
    """A response whose body was read whole."""

    status: int
    headers: dict[str, str]
    host: str
    url: str
    body: bytes
    elapsed_s: float


class HttpTool:
    """Sends requests; a 429 with `Retry-After` holds back every request to that host."""

    def __init__(
        self, *, session: aiohttp.ClientSession, limits: Limits, vault: Vault, clock: Clock
    ) -> None:
        self._session = session
        self._limits = limits
        self._vault = vault
        self._clock = clock
        self._held_until: dict[str, float] = {}

    async def run(self, call: Call) -> Outcome:
        """Send one request and read its answer."""
        try:
            request = await self._prepare(call)
            answer = await self._exchange(request, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as problem:
            return Outcome(error=_of_exception(problem, call))
        return self._outcome(answer, call.fields.get("response_type") or "auto")

    async def _prepare(self, call: Call) -> Request:
        site = call.site
        key = identity.idempotency_key(
            execution_id=site.execution_id,
            step=site.step,
            unit=site.unit,
            row_index=site.row_index,
            task=call.task,
            visit=call.visit,
        )
        request = http_request.build(call.fields, idempotency_key=key)
        if call.auth is None:
            return request
        return http_request.sign(request, await self._vault.resolve(call.auth, site))

    async def _exchange(self, request: Request, call: Call) -> Answer:
        """Send, following redirects one checked hop at a time."""
        follows = coercion.boolean(call.fields.get("follow_redirects")) is not False
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
        url = request.url
        host = url.raw_host or ""
        check_literal(host, url.port or 0, self._limits.allowances)
        if host in self._held_until:
            await self._held(host)
        async with self._session.request(
            request.method,
            url,
            headers=request.headers,
            data=request.body,
            allow_redirects=False,
            timeout=http_request.client_timeout(call.timeout),
            ssl=coercion.boolean(call.fields.get("verify_ssl")) is not False,
        ) as response:
            body = await self._read(response)
            return Answer(
                status=response.status,
                headers=dict(response.headers.items()),
                host=host,
                url=str(response.url),
                body=body,
                elapsed_s=self._clock.monotonic() - started,
            )

    async def _held(self, host: str) -> None:
        """Wait until the host may be asked again."""
        while (wait_s := self._held_until.get(host, 0.0) - self._clock.monotonic()) > 0:  # noqa: ASYNC110 - another answer may prolong the hold
            await asyncio.sleep(wait_s)
        self._held_until.pop(host, None)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        limit = self._limits.response_bytes_max
        length = response.content_length
        if length is not None and length <= limit and "Content-Encoding" not in response.headers:
            return await response.read()
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            body += chunk
            if len(body) > limit:
                raise ToolFailure(
                    failure(
                        "payload_too_large",
                        f"the answer of {response.url} is longer than {limit} bytes",
                        source="http",
                    )
                )
        return bytes(body)

    def _outcome(self, answer: Answer, response_type: str) -> Outcome:
        raw: dict[str, Any] = {
            "status_code": answer.status,
            "headers": answer.headers,
            "url": answer.url,
            "elapsed": answer.elapsed_s,
        }
        try:
            body = _parsed(answer, response_type, raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            if answer.status >= _STATUS_ERROR:
                body = answer.body.decode(errors="replace")
            else:
                text = f"the answer of {answer.url} is not {response_type}: {problem}"
                return Outcome(error=failure("parse", text, source="http"), data=raw)
        raw["body"] = body
        if answer.status >= _STATUS_ERROR:
            return Outcome(error=self._refused(answer), data=raw)
        return Outcome(data=raw)

    def _refused(self, answer: Answer) -> ErrorObject:
        wait_s = self._retry_after_s(answer.headers)
        if wait_s is not None and answer.status == _STATUS_RATE_LIMIT:
            until = self._clock.monotonic() + min(wait_s, self._limits.hold_max_s)
            self._held_until[answer.host] = max(until, self._held_until.get(answer.host, 0.0))
        message = f"{answer.url} answered {answer.status}"
        return of_status(answer.status, message, retry_after=wait_s)

    def _retry_after_s(self, headers: dict[str, str]) -> float | None:
        text = headers.get("Retry-After", "").strip()
        if not text:
            return None
        if text.isdigit():
            return float(text)
        try:
            until = parsedate_to_datetime(text)
        except ValueError:
            return None
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return max(0.0, (until - self._clock.now()).total_seconds())


def _parsed(answer: Answer, response_type: str, raw: dict[str, Any]) -> Any:
    """Decode a body as its type says; raises `msgspec.DecodeError` or `UnicodeDecodeError`."""
    body = answer.body
    if response_type == "json":
        return codec.decode(body)
    if response_type == "text":
        return body.decode()
    if response_type == "ndjson":
        return [codec.decode(line) for line in body.splitlines() if line.strip()]
    if response_type == "bytes":
        raw["encoding"] = "base64"
        return b64encode(body).decode()
    return _guessed(answer, raw)


def _guessed(answer: Answer, raw: dict[str, Any]) -> Any:
    if not answer.body:
        return ""
    media_type = answer.headers.get("Content-Type", "").lower()
    try:
        return codec.decode(answer.body)
    except msgspec.DecodeError:
        if "json" in media_type:
            raise
    if media_type.startswith("text/") or "xml" in media_type or not media_type:
        return answer.body.decode(errors="replace")
    raw["encoding"] = "base64"
    return b64encode(answer.body).decode()


def _of_exception(problem: Exception, call: Call) -> ErrorObject:
    where = f"{call.fields.get('method') or 'GET'} {call.fields.get('url')}"
    if isinstance(problem, TimeoutError):
        message = f"{where} did not answer within {call.timeout.total:g} s"
        return failure("timeout", message, source="http")
    if isinstance(problem, aiohttp.InvalidURL | ValueError) and not isinstance(problem, OSError):
        return failure("validation", f"{where} cannot be sent: {problem}", source="http")
    reason = str(problem) or type(problem).__name__
    return failure("connection", f"{where} failed: {reason}", source="http")


@asynccontextmanager
async def open_http(*, limits: Limits, vault: Vault, clock: Clock) -> AsyncIterator[HttpTool]:
    """Hold the worker's one session while the block runs."""
    connector = aiohttp.TCPConnector(
        limit=limits.connections_max,
        resolver=CheckedResolver(limits.allowances),
        ttl_dns_cache=30,
        keepalive_timeout=30.0,
    )
    async with aiohttp.ClientSession(
        connector=connector,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=True,
    ) as session:
        # A broken connection is the policy's to answer: only it may send a request again.
        session._retry_connection = False  # noqa: SLF001 - the client has no public switch
        yield HttpTool(session=session, limits=limits, vault=vault, clock=clock)
