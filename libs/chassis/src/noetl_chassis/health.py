"""`/livez`, `/readyz`, `/metrics` and `/summary` of a process.

`/readyz?exclude=NAME` leaves a check out, as often as it is given.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from noetl_contracts import codec
from noetl_contracts.errors import NoetlError, Permanent

CHECK_TIMEOUT_S = 2.0
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Check = Callable[[], str | Awaitable[str | None] | None]
Summary = Callable[[], Mapping[str, Any]]


class HealthPortTaken(Permanent):
    """The port for health and metrics cannot be listened on."""


class HealthChecks:
    """The readiness checks of a process; a check returns None or says what is wrong."""

    def __init__(self) -> None:
        self._check_by_name: dict[str, Check] = {}
        self._summary_by_name: dict[str, Summary] = {}

    def add_check(self, name: str, check: Check) -> None:
        """Count a check in from now on."""
        self._check_by_name[name] = check

    def expect_start(self, name: str, problem: str) -> None:
        """Say `problem` until a part of the process is told to have started."""
        self._check_by_name[name] = lambda: problem

    def note_start(self, name: str) -> None:
        """Find nothing wrong with a part from now on: it has started."""
        self._check_by_name[name] = lambda: None

    def add_summary(self, name: str, summary: Summary) -> None:
        """Have `/summary` say something of a part of the process from now on."""
        self._summary_by_name[name] = summary

    def summarize_parts(self) -> dict[str, Any]:
        """Ask every part what it has to say of itself, by name."""
        return {name: summary() for name, summary in self._summary_by_name.items()}

    async def list_problems(self, *, excluded: Collection[str] = ()) -> dict[str, str]:
        """Run the checks and return the reasons by name; a process without checks is starting."""
        if not self._check_by_name:
            return {"start": "still starting"}
        answers = {
            name: await _run_check(check)
            for name, check in self._check_by_name.items()
            if name not in excluded
        }
        return {name: reason for name, reason in answers.items() if reason is not None}


@asynccontextmanager
async def serve_health(
    health: HealthChecks, *, host: str, port: int, metrics_text: Callable[[], bytes]
) -> AsyncIterator[int]:
    """Answer on a port (0: any free one) while the block runs; yields the port."""

    async def answer_livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def answer_readyz(request: web.Request) -> web.Response:
        problems = await health.list_problems(excluded=request.query.getall("exclude", ()))
        body = codec.encode_json(
            {"status": "unready" if problems else "ready", "problems": problems}
        )
        status = 503 if problems else 200
        return web.Response(body=body, status=status, content_type="application/json")

    async def answer_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=metrics_text(), headers={"Content-Type": METRICS_MEDIA_TYPE})

    async def answer_summary(_request: web.Request) -> web.Response:
        return web.Response(
            body=codec.encode_json(health.summarize_parts()), content_type="application/json"
        )

    app = web.Application()
    app.add_routes(
        [
            web.get("/livez", answer_livez),
            web.get("/readyz", answer_readyz),
            web.get("/metrics", answer_metrics),
            web.get("/summary", answer_summary),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield await _listen_on_port(runner, host=host, port=port)
    finally:
        await runner.cleanup()


async def _listen_on_port(runner: web.AppRunner, *, host: str, port: int) -> int:
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as failure:
        raise HealthPortTaken(
            f"cannot listen on {host}:{port} for health and metrics ({failure.strerror}): "
            "set the service's HEALTH_PORT to another port, or to 0 for any free one"
        ) from failure
    return int(runner.addresses[0][1])


def build_ping_check(ping: Callable[[], Awaitable[object]]) -> Check:
    """Make a readiness check of a call that raises when the other side is not there."""

    async def check_ping() -> str | None:
        try:
            await ping()
        except NoetlError as failure:
            return str(failure)
        return None

    return check_ping


async def _run_check(check: Check) -> str | None:
    answer = check()
    if not inspect.isawaitable(answer):
        return answer
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await answer
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT_S:g} s"
