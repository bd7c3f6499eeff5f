"""S3 behind a network and a server that fail as they are told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
from aiohttp import web

BODY_BYTES_MAX = 64 * 1024 * 1024
_HOP = frozenset({"transfer-encoding", "connection", "content-encoding", "keep-alive"})


@dataclass(kw_only=True)
class Faults:
    """What befalls the next requests of a method, one word each; what is left out goes well.

    A status is answered, `cut` ends in the middle of the body, `slow` takes its time.
    """

    put: list[str] = field(default_factory=list)
    get: list[str] = field(default_factory=list)
    is_lasting: str | None = None
    seen: list[str] = field(default_factory=list)

    def next_one(self, method: str) -> str:
        self.seen.append(method)
        if self.is_lasting is not None:
            return self.is_lasting
        waiting = {"PUT": self.put, "GET": self.get}.get(method, [])
        return waiting.pop(0) if waiting else "well"


@asynccontextmanager
async def faulty_s3(endpoint: str) -> AsyncIterator[tuple[str, Faults]]:
    """Yield an address that leads to the server, and the faults on the way there."""
    faults = Faults()
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            fault = faults.next_one(request.method)
            match fault:
                case "503" | "403" | "400":
                    return web.Response(status=int(fault))
                case "slow":
                    await asyncio.sleep(0.5)
                case "cut" if request.method == "PUT":
                    await request.content.read(10)
                    return cut(request)
            body = await request.read()
            # The signature covers the host that the client has asked.
            async with session.request(
                request.method,
                f"{endpoint}{request.raw_path}",
                headers=request.headers,
                data=body,
                skip_auto_headers=("User-Agent",),
            ) as answer:
                found = await answer.read()
                headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
                if fault == "cut" and answer.status == HTTPStatus.OK:
                    return await half(request, headers, found)
                if request.method == "HEAD":
                    headers.pop("Content-Length", None)
                return web.Response(status=answer.status, headers=headers, body=found)

        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", faults
        finally:
            await runner.cleanup()


def cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.Request, headers: dict[str, str], body: bytes) -> web.StreamResponse:
    """Promise a whole body and give half of it."""
    answer = web.StreamResponse(headers={**headers, "Content-Length": str(len(body))})
    await answer.prepare(request)
    await answer.write(body[: len(body) // 2])
    cut(request)
    return answer
