"""What of W4 and PFT A is the playbooks' own: the requests and statements that they ask for, and no engine.

W4's frames are handed over as in `handover`, and whoever takes one asks for its rows and saves each
by the statement that the playbook has, all of a frame in one transaction. PFT A's claims and saves are
its own statements too, word for word, its slots and lanes as many. Client and driver are the
worker's. Nothing is rendered but claims, judged, recorded, retried or checked.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import nats
import uvloop
from tests.bench import fetching, rows
from tests.bench.handover import FACT, Pulled, working_giver
from tests.bench.site import site
from tests.bench.spread import spread
from tests.bench.unaided_pft import Facilities
from tests.support import pft
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server
from yarl import URL

from noetl_worker.tools.call import Timeout
from noetl_worker.tools.http_client import Client, Rules
from noetl_worker.tools.http_request import Request

ROUNDS, PATIENTS = 5, 1_000
SLOTS = fetching.IN_FLIGHT // fetching.ROW_CONCURRENCY
# command.issued, command.started, frame.dispatched, frame.committed, command.completed
FRAME_EVENTS = 5
_PATIENCE = Timeout(total=60)
_BYTES_MAX = 1 << 20


def measure() -> dict[str, Any]:
    """Measure both in turn with their raw programs, on servers of their own that keep what they are told."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder), is_durable=True) as server,
        nats_server(Path(folder)) as broker,
    ):
        return uvloop.run(_measure(server, broker, Path(folder)))


async def _measure(server: PostgresServer, broker: NatsServer, folder: Path) -> dict[str, Any]:
    return {
        "frames": await _frames(await server.create_database("frames"), broker.url),
        "pft": await _pft(await server.create_database("pft"), folder),
    }


async def _frames(dsn: str, broker: str) -> dict[str, Any]:
    await asyncio.to_thread(rows.prepare, dsn)
    requests, frames = fetching.REQUESTS, fetching.REQUESTS // fetching.FRAME_ROWS
    with site(delay_ms=fetching.DELAY_MS) as served:
        taker = (__name__, "--nats", broker, "--dsn", dsn, "--site", served.url)
        async with working_giver(dsn, broker, taker=taker) as giver:

            async def unaided() -> float:
                rate = await giver.rate(frames, in_flight=SLOTS, events=FRAME_EVENTS)
                return frames / rate

            return await _in_turn(
                floor=lambda: asyncio.to_thread(fetching.floor, served, dsn, requests),
                unaided=unaided,
                units=requests,
            )


async def _pft(dsn: str, folder: Path) -> dict[str, Any]:
    with pft.fixture(folder) as served:

        def run(*command: str) -> float:
            served.begin()
            given = ("--api", served.api, "--dsn", dsn, "--facilities", "1")
            done = subprocess.run(  # noqa: S603 - our own command line
                [sys.executable, "-m", *command, *given, "--patients", str(PATIENTS)],
                check=True,
                capture_output=True,
                timeout=600,
            )
            seconds: float = msgspec.json.decode(done.stdout.splitlines()[-1])["seconds"]
            return seconds

        # What is counted of the fixture must be what the raw program asks.
        await asyncio.to_thread(run, __name__)
        asked = served.summary()["requests"]
        await asyncio.to_thread(run, "noetl_pft", "floor")
        assert asked == served.summary()["requests"], "both ask for the same"
        return await _in_turn(
            floor=lambda: asyncio.to_thread(run, "noetl_pft", "floor"),
            unaided=lambda: asyncio.to_thread(run, __name__),
            units=asked,
        )


async def _in_turn(
    *, floor: Callable[[], Awaitable[float]], unaided: Callable[[], Awaitable[float]], units: int
) -> dict[str, Any]:
    ways, found = {"floor": floor, "unaided": unaided}, {"floor": [], "unaided": []}
    for turn in range(ROUNDS):
        for name in ways if turn % 2 == 0 else reversed(ways):
            found[name].append(await ways[name]())
    pairs = zip(found["floor"], found["unaided"], strict=True)
    return {
        "units": units,
        "rounds": ROUNDS,
        **{f"{name}_per_s": spread([units / one for one in each]) for name, each in found.items()},
        "efficiency": spread([raw / ours for raw, ours in pairs], digits=3),
    }


class Fetcher:
    """Asks with the worker's client."""

    def __init__(self) -> None:
        self._client = Client(Rules(check=lambda *_: True, connections_max=fetching.IN_FLIGHT))

    async def get(self, url: str) -> Any:
        """Ask for a document of JSON."""
        found = await self._client.fetch(
            Request(method="GET", url=URL(url, encoded=True), headers={}, body=None),
            patience=_PATIENCE,
            is_verified=True,
            bytes_max=_BYTES_MAX,
        )
        return msgspec.json.decode(found.body)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()


async def _take(broker: str, dsn: str, address: str) -> None:
    """Run frames for as long as the process lives; each is told of when its rows are committed."""
    client = await nats.connect(broker)
    jetstream, work = client.jetstream(), await Pulled.of(client, stream="work")
    http, run, next_frame = Fetcher(), rows.new_run(), 0
    save = rows.SAVE_BODY.replace(":run", "$1").replace(":item", "$2").replace(":body", "$3")

    async def frame(number: int, message: nats.aio.msg.Msg) -> None:
        first = number * fetching.FRAME_ROWS
        todo = iter(range(first, first + fetching.FRAME_ROWS))
        kept: list[tuple[str, int, str]] = []

        async def lane() -> None:
            for item in todo:
                body = await http.get(f"{address}/item/{item}")
                kept.append((run, item, msgspec.json.encode(body).decode()))

        async with asyncio.TaskGroup() as lanes:
            for _ in range(fetching.ROW_CONCURRENCY):
                lanes.create_task(lane())
        await pool.executemany(save, kept)
        await jetstream.publish("told.done", b"%08d" % 1 + FACT)
        await message.ack()

    async with (
        asyncpg.create_pool(dsn, min_size=4, max_size=4) as pool,
        asyncio.TaskGroup() as frames,
    ):
        while True:
            for message in await work.take(SLOTS):
                frames.create_task(frame(next_frame, message))
                next_frame += 1


async def _facilities(given: argparse.Namespace) -> float:
    http = Fetcher()
    try:
        async with asyncpg.create_pool(given.dsn, min_size=4, max_size=4) as pool:
            work = Facilities(http.get, pool, api=given.api, patients=given.patients)
            await work.begin(given.facilities)
            began = time.perf_counter()
            for facility in range(1, given.facilities + 1):
                await work.run(facility)
            return time.perf_counter() - began
    finally:
        http.close()


def main(arguments: Sequence[str]) -> None:
    """Take W4's frames, or run PFT A and print its seconds."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--dsn", required=True)
    asked.add_argument("--nats")
    asked.add_argument("--site")
    asked.add_argument("--api")
    asked.add_argument("--facilities", type=int, default=1)
    asked.add_argument("--patients", type=int, default=PATIENTS)
    given = asked.parse_args(arguments)
    if given.nats:
        uvloop.run(_take(given.nats, given.dsn, given.site))
    seconds = uvloop.run(_facilities(given))
    sys.stdout.write(msgspec.json.encode({"seconds": seconds}).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
