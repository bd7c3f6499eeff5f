"""A small web shop for the examples: pages, work that takes a while, failures that pass.

`python -m tests.support.shop` serves it at port 8700, for whoever tries an example.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

PORT = 8700
PAGE_SIZE = 4
PAGES = 3
TOKEN = "let-the-gallery-in"  # noqa: S105 - opens nothing but this server
TITLES = ("Maps", "Rivers", "Stars")
FLIGHT_ROWS = 25


class Shop:
    """Answers by path; whoever calls brings a key, so that calls of others do not count."""

    def __init__(self) -> None:
        self._calls = Counter[str]()
        self._sending = set[asyncio.Task[None]]()

    def app(self) -> web.Application:
        """Name the routes."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/items", self.items),
                web.get("/posts", self.posts),
                web.get("/flaky/{key}", self.flaky),
                web.get("/jobs/{key}", self.job),
                web.get("/stock/{sku}", self.stock),
                web.get("/flights", self.flights),
                web.get("/private", self.private),
                web.post("/login", self.login),
                web.post("/orders", self.order),
                web.post("/jobs", self.jobs),
            ]
        )
        return app

    def _count(self, request: web.Request) -> int:
        self._calls[request.path] += 1
        return self._calls[request.path]

    async def items(self, request: web.Request) -> web.Response:
        """Three pages of four items."""
        page = int(request.query.get("page", "1"))
        first = (page - 1) * PAGE_SIZE
        items = [{"id": first + n, "name": f"item {first + n}"} for n in range(1, PAGE_SIZE + 1)]
        return web.json_response(
            {"items": items, "paging": {"page": page, "hasMore": page < PAGES}}
        )

    async def posts(self, _request: web.Request) -> web.Response:
        """A few rows that nest."""
        rows = [
            {"id": n, "title": title, "by": {"name": f"author {n}"}, "tags": ["a", "b"]}
            for n, title in enumerate(TITLES, start=1)
        ]
        return web.json_response({"posts": rows})

    async def flaky(self, request: web.Request) -> web.Response:
        """Too busy twice, then well."""
        calls = self._count(request)
        if calls < PAGES:
            return web.json_response({"calls": calls}, status=503)
        return web.json_response({"calls": calls})

    async def job(self, request: web.Request) -> web.Response:
        """Runs for two calls, then is ready."""
        calls = self._count(request)
        return web.json_response({"state": "running" if calls < PAGES else "ready"})

    async def stock(self, request: web.Request) -> web.Response:
        """Knows some things, and not others."""
        sku = request.match_info["sku"]
        if sku.startswith("no-"):
            return web.json_response({"missing": sku}, status=404)
        return web.json_response({"sku": sku, "count": len(sku)})

    async def flights(self, _request: web.Request) -> web.Response:
        """One JSON value to a line."""
        lines = "".join(f'{{"n": {n}}}\n' for n in range(FLIGHT_ROWS))
        return web.Response(text=lines, content_type="application/x-ndjson")

    async def login(self, _request: web.Request) -> web.Response:
        """A token for whoever asks."""
        return web.json_response({"access_token": TOKEN, "expires_in": 3600})

    async def private(self, request: web.Request) -> web.Response:
        """Only for holders of the token."""
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"who": None}, status=401)
        return web.json_response({"who": "a friend"})

    async def order(self, request: web.Request) -> web.Response:
        """Say what was ordered."""
        return web.json_response({"ordered": await request.json()}, status=201)

    async def jobs(self, request: web.Request) -> web.Response:
        """Take work; its outcome is sent to where the request says."""
        asked = await request.json()
        task = asyncio.create_task(_send(asked["notify"], {"pixels": asked["size"] ** 2}))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return web.json_response({"id": "job-1"}, status=202)


async def _send(url: str, body: dict[str, int]) -> None:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        answer.raise_for_status()


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[str]:
    """Serve on a port of this machine (0: any free one); yield the address."""
    runner = web.AppRunner(Shop().app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _main() -> None:
    async with serving(PORT) as url:
        sys.stdout.write(f"the shop is open at {url}\n")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
