"""An HTTP server whose answers a test writes down beforehand."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec import Struct

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ReceivedRequest(Struct, frozen=True, kw_only=True):
    """One request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Script:
    """Answers requests in the order written, the last answer for ever."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[ReceivedRequest] = []
        self.arrived = asyncio.Event()
        self._answers: list[Answer] = []

    def answers(self, *answers: Answer) -> None:
        self._answers = list(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(
            ReceivedRequest(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                headers=dict(request.headers),
                body=await request.read(),
            )
        )
        self.arrived.set()
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return await answer(request)


def says(
    value: Any = None, *, status: int = 200, headers: dict[str, str] | None = None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Answer with JSON."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(value, status=status, headers=headers)

    return answer


def sends(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Answer with bytes."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return answer


def hangs() -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Never answer."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return answer


def resets() -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Close the connection without an answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return answer


@asynccontextmanager
async def script(*answers: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Script]:
    """Serve on a free port of this machine."""
    served = Script()
    served.answers(*answers)
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{tail:.*}", served.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    served.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield served
    finally:
        await runner.cleanup()
