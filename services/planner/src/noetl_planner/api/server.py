"""Serves the API inside the planner's process until it is told to stop."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import structlog
import uvicorn
from litestar import Litestar

from noetl_chassis.tls import ReloadedContext
from noetl_contracts.errors import Permanent
from noetl_planner.api.http.connection_protocol import HeaderTimeoutProtocol
from noetl_planner.api.http.request_spans import TracedApi

# Requests in flight may finish; those that follow an execution are woken, and end.
DRAIN_S = 5
# Longer than pages pause between two questions: a connection that is closed while its next
# question is on the way costs the client an error, or the question a second time.
IDLE_S = 30
BACKLOG = 512

log = structlog.get_logger(__name__)


class ApiPortTaken(Permanent):
    """The port of the API cannot be listened on."""


class _EmbeddedServer(uvicorn.Server):
    """A server that leaves signals to the process it lives in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve_api(
    app: Litestar,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    tls: ReloadedContext | None = None,
) -> None:
    """Answer on a port (0: any free one) until `stop` is set; `started` is told the port.

    With `tls` it speaks HTTPS alone.
    """
    with _open_listener(host, port) as listener:
        bound = int(listener.getsockname()[1])
        config = uvicorn.Config(
            TracedApi(app),
            http=HeaderTimeoutProtocol,
            log_config=None,
            access_log=False,
            server_header=False,
            # Nothing here asks who is behind a proxy.
            proxy_headers=False,
            timeout_graceful_shutdown=DRAIN_S,
            timeout_keep_alive=IDLE_S,
        )
        config.load()
        config.ssl = None if tls is None else tls.context
        server = _EmbeddedServer(config)
        async with asyncio.TaskGroup() as tasks:
            if tls is not None:
                tasks.create_task(tls.reload_until_stopped(stop))
            tasks.create_task(_stop_server(server, stop))
            tasks.create_task(server.serve(sockets=[listener]))
            log.info("API is listening", host=host, port=bound)
            if started is not None:
                started(bound)


async def _stop_server(server: uvicorn.Server, stop: asyncio.Event) -> None:
    await stop.wait()
    server.should_exit = True


def _open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as failure:
        raise ApiPortTaken(
            f"cannot listen on {host}:{port} for the API ({failure.strerror or failure}): "
            "set NOETL_PLANNER_HTTP_PORT to another port"
        ) from failure
