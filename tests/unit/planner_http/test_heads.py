"""What is written to a connection leaves whole, in order, and never later than the next turn."""

import asyncio
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from noetl_planner.api.http.connection_protocol import HeaderTimeoutProtocol

LARGE = b"x" * 100_000


class _Wire(asyncio.Transport):
    """A transport that keeps what it was given."""

    def __init__(self) -> None:
        super().__init__({})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.written[-1:] == [b"closed"]

    def close(self) -> None:
        self.written.append(b"closed")


async def _connected() -> tuple[HeaderTimeoutProtocol, _Wire]:
    async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
        """Answer nothing."""

    config = Config(nothing, http=HeaderTimeoutProtocol, log_config=None)
    config.load()
    protocol, wire = HeaderTimeoutProtocol(config, ServerState(), {}), _Wire()
    protocol.connection_made(wire)
    return protocol, wire


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", b"body", b"head2", b"body2"], [b"headbody", b"head2body2"]),
        ([b"head", b"one", b"two"], [b"headone", b"two"]),
        ([b"head", LARGE], [b"head", LARGE]),
        ([LARGE, b"tail"], [LARGE, b"tail"]),
        ([b"head"], [b"head"]),
    ],
)
async def test_what_is_written_at_once_leaves_in_order(
    given: list[bytes], left: list[bytes]
) -> None:
    protocol, wire = await _connected()
    for item in given:
        protocol.transport.write(item)
    await asyncio.sleep(0)
    assert wire.written == left
    protocol.connection_lost(None)


async def test_what_was_written_leaves_before_the_connection_closes() -> None:
    protocol, wire = await _connected()
    protocol.transport.write(b"head")
    protocol.transport.close()
    await asyncio.sleep(0)
    assert wire.written == [b"head", b"closed"]
    assert protocol.transport.is_closing()
    protocol.connection_lost(None)
