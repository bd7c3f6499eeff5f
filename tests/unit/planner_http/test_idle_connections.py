"""Idle connections: closed in their time, but never with a request on them that is not read yet."""

import socket
import threading
from typing import Any, Self

import uvicorn
import uvloop

from noetl_planner.api.http.connection_protocol import HeaderTimeoutProtocol

IDLE_S = 1
HOLD = b"HOLD"
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
WAIT_S = 60.0


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer every request alike."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


class BusyServer:
    """A server whose loop does nothing else while it is held."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.is_held, self.goes_on = threading.Event(), threading.Event()
        config = uvicorn.Config(
            answer,
            http=self._build_protocol(),
            lifespan="off",
            log_config=None,
            timeout_keep_alive=IDLE_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.goes_on.set()
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        self._listener.close()

    async def _serve(self) -> None:
        await self._server._serve([self._listener])  # without its signal handlers

    def _build_protocol(self) -> type[HeaderTimeoutProtocol]:
        server = self

        class HeldProtocol(HeaderTimeoutProtocol):
            """Keeps the loop busy where it reads, as a long request does."""

            def data_received(self, data: bytes) -> None:
                if data == HOLD:
                    server.is_held.set()
                    server.goes_on.wait(WAIT_S)
                else:
                    super().data_received(data)

        return HeldProtocol

    def hold(self, other: socket.socket) -> None:
        """Keep the loop busy until it may go on."""
        other.sendall(HOLD)
        assert self.is_held.wait(WAIT_S)


def read_answer(client: socket.socket) -> bytes:
    """Read one answer, or what there is before the connection is closed."""
    data = b""
    while not data.endswith(b"ok"):
        piece = client.recv(4096)
        if not piece:
            break
        data += piece
    return data


def test_a_request_that_came_while_the_loop_was_busy_is_answered() -> None:
    with (
        BusyServer() as server,
        socket.create_connection(("127.0.0.1", server.port)) as other,
        socket.create_connection(("127.0.0.1", server.port)) as client,
    ):
        client.settimeout(WAIT_S)
        client.sendall(REQUEST)
        assert read_answer(client).endswith(b"ok")
        server.hold(other)
        client.sendall(REQUEST)
        # The time of an idle connection passes while the request waits to be read.
        threading.Timer(IDLE_S + 0.5, server.goes_on.set).start()
        assert read_answer(client).endswith(b"ok")


def test_an_idle_connection_is_closed() -> None:
    with BusyServer() as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(WAIT_S)
        client.sendall(REQUEST)
        assert read_answer(client).endswith(b"ok")
        assert client.recv(1) == b""
