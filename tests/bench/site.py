"""A site that answers every GET with one kilobyte of JSON after a while: `python -m tests.bench.site --delay-ms 2`.

With `--spread 0.5` that while is half to one and a half times as long, by the item asked for. It is
a bare protocol, as an HTTP framework would cost more than what is measured.
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
# A connection that finds the queue full is asked for again after a second, which a run is not long.
BACKLOG = 4_096
# Multiples of it, without their whole part, lie evenly between 0 and 1.
_GOLDEN = 0.6180339887498949


class Site(Struct, frozen=True):
    """A running site."""

    url: str
    pid: int


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self, delay_s: float, spread: float) -> None:
        self._delay_s = delay_s
        self._spread = spread
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport), "TCP is written to"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._kept = (self._kept + data).split(END)
        loop = asyncio.get_running_loop()
        for request in requests:
            item = request.split(b" ", 2)[1].rpartition(b"/")[2]
            answer = _answer(item)
            if self._delay_s:
                loop.call_later(self._delay_of(item), self._transport.write, answer)
            else:
                self._transport.write(answer)

    def _delay_of(self, item: bytes) -> float:
        part = int(item) * _GOLDEN % 1.0 if self._spread else 0.5
        return self._delay_s * (1.0 + self._spread * (2.0 * part - 1.0))


def _answer(item: bytes) -> bytes:
    start = b'{"item": ' + item + b', "text": "'
    body = start + b"x" * (BODY_BYTES - len(start) - 2) + b'"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


@contextmanager
def site(*, delay_ms: float, spread: float = 0.0) -> Iterator[Site]:
    """Serve in a process of its own until the block ends."""
    delay = ("--delay-ms", str(delay_ms), "--spread", str(spread))
    command = [sys.executable, "-m", "tests.bench.site", *delay]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command line
        assert process.stdout is not None
        answer = msgspec.json.decode(process.stdout.readline())
        try:
            yield Site(url=answer["url"], pid=process.pid)
        finally:
            process.terminate()
            process.wait(10)


async def _serve(delay_s: float, spread: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Answering(delay_s, spread), "127.0.0.1", 0, backlog=BACKLOG
    )
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(msgspec.json.encode({"url": f"http://127.0.0.1:{port}"}).decode() + "\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    """Serve until told to end."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--delay-ms", type=float, default=2.0)
    arguments.add_argument("--spread", type=float, default=0.0)
    given = arguments.parse_args()
    asyncio.run(_serve(given.delay_ms / 1000, given.spread))


if __name__ == "__main__":
    main()
