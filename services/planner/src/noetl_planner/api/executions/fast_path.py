"""A fast route for plain start requests, which skips most of the web framework.

Values that are injected, models of signatures and classes of answers take a twentieth of the time
of a small execution. The usual form of that request is answered here, by the functions that the
framework's handler calls too. Every other request goes to that handler unchanged.
"""

from collections.abc import Iterable
from typing import cast

import msgspec
from litestar.enums import HttpMethod
from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPScope, Receive, Scope, Send

from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import KEY_LENGTH_MAX, ExecuteBody
from noetl_planner.api.http import bodies, host_and_origin_checks
from noetl_planner.api.http.services import BOUND_SERVICES, SERVICES, ApiServices

PREFER_LENGTH_MAX = 1000
_HOST_LENGTH_MAX = 261  # a name and a port
# The framework holds larger ones to their bound.
_BODY_BYTES_MAX = 64 * 1024
_JSON = b"application/json"
# What says something about a request that is looked at here; of all else nothing depends on it.
_PLAIN = {b"content-type", b"host", b"idempotency-key", b"prefer"}
_LENGTH_MAX_BY_NAME = {
    b"host": _HOST_LENGTH_MAX,
    b"idempotency-key": KEY_LENGTH_MAX,
    b"prefer": PREFER_LENGTH_MAX,
}
# A browser tells where a page is from; a body may be pressed; a flow may be named.
_OTHERS = {b"sec-fetch-site", b"origin", b"content-encoding", b"x-correlation-id"}

_body = msgspec.json.Decoder(ExecuteBody)


class FastPath:
    """A middleware of the handler that begins executions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; raises what its handler raises."""
        is_post = scope.get("method") == HttpMethod.POST
        headers = _select_plain_headers(scope["headers"]) if is_post else None
        if headers is None:
            await self._app(scope, receive, send)
            return
        first = await bodies.receive_first_part(receive)
        body = await _decode_body(first)
        if body is None or not _is_own_request(scope, headers):
            await self._app(scope, _replay_first_part(first, receive), send)
            return
        key, prefer = headers.get(b"idempotency-key"), headers.get(b"prefer")
        answer = await start_requests.answer_start(
            scope[BOUND_SERVICES],  # type: ignore[literal-required]  # a key of ours
            body,
            key=None if key is None else key.decode("latin-1"),
            prefer=None if prefer is None else prefer.decode("latin-1"),
            client=_get_client_address(scope),
            scope=cast("HTTPScope", scope),
        )
        await _send_answer(answer, send)


def _select_plain_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
    """Return the headers that matter; None for a request that the framework has to look at."""
    plain_headers: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _OTHERS or name in plain_headers:
            return None
        if name in _PLAIN:
            if not 0 < len(value) <= _LENGTH_MAX_BY_NAME.get(name, len(_JSON)):
                return None
            plain_headers[name] = value
    return plain_headers if plain_headers.get(b"content-type") == _JSON else None


def _is_own_request(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    services: ApiServices = scope["litestar_app"].state[SERVICES]
    return host_and_origin_checks.is_own_host(
        headers.get(b"host", b"").decode("latin-1"), services.http_hosts
    )


def _get_client_address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


async def _decode_body(first: HTTPReceiveMessage) -> ExecuteBody | None:
    """Return what is asked for; None for what is not all there or not plainly that."""
    # A server need not name what is empty or false (ASGI, `http.request`).
    if first["type"] != "http.request" or first.get("more_body", False):
        return None
    data = first.get("body", b"")
    if len(data) > _BODY_BYTES_MAX or await bodies.is_too_deep(data):
        return None
    try:
        return _body.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _replay_first_part(first: HTTPReceiveMessage, receive: Receive) -> Receive:
    """Receive what was received before, then what follows."""
    waiting = [first]

    async def receive_part() -> HTTPReceiveMessage:
        return waiting.pop() if waiting else cast("HTTPReceiveMessage", await receive())

    return receive_part


async def _send_answer(answer: start_requests.StartAnswer, send: Send) -> None:
    body = bodies.encode_redacted(answer.content)
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    headers += [(b"content-type", _JSON), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
