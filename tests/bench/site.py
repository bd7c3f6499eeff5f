"""A site that answers every GET with one kilobyte of JSON after a while: `python -m tests.bench.site --delay-ms 2`.

It is a bare protocol, as an HTTP framework would cost more than what is measured.
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct

BODY_BYTES = 1_024
# Requests of one connection wait in order, as HTTP/1.1 wants it.
END = b"\r\n\r\n"


class Site(Struct, frozen=True):
    """A running site."""

    url: str
    pid: int


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport), "TCP is written to"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._kept = (self._kept + data).split(END)
        loop = asyncio.get_running_loop()
        for request in requests:
            answer = _answer(request.split(b" ", 2)[1])
            if self._delay_s:
                loop.call_later(self._delay_s, self._transport.write, answer)
            else:
                self._transport.write(answer)


def _answer(path: bytes) -> bytes:
    item = path.rpartition(b"/")[2]
    start = b'{"item": ' + item + b', "text": "'
    body = start + b"x" * (BODY_BYTES - len(start) - 2) + b'"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


@contextmanager
def site(*, delay_ms: float) -> Iterator[Site]:
    """Serve in a process of its own until the block ends."""
    command = [sys.executable, "-m", "tests.bench.site", "--delay-ms", str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command line
        assert process.stdout is not None
        told = msgspec.json.decode(process.stdout.readline())
        try:
            yield Site(url=told["url"], pid=process.pid)
        finally:
            process.terminate()
            process.wait(10)


async def _serve(delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(delay_s), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(msgspec.json.encode({"url": f"http://127.0.0.1:{port}"}).decode() + "\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    """Serve until told to end."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--delay-ms", type=float, default=2.0)
    asyncio.run(_serve(asked.parse_args().delay_ms / 1000))


if __name__ == "__main__":
    main()
