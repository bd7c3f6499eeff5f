"""What of W4 and PFT A is the playbooks' own, and what a worker's lane adds to it with nothing around.

W4's frames are handed over as in `handover`, and whoever takes one asks for its rows and saves each
by the statement that the playbook has, all of a frame in one transaction. PFT A's claims and saves are
its own statements too, word for word, its slots and lanes as many. Client and driver are the
worker's. Nothing is rendered but claims, judged, recorded, retried or checked. In turn with it
runs the lane by itself, see `lane_alone`.
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
from msgspec import Struct
from nats.aio.msg import Msg
from tests.bench import fetching, rows
from tests.bench.handover import FACT, Pulled, working_giver
from tests.bench.site import site
from tests.bench.spread import spread
from tests.bench.unaided_pft import Facilities
from tests.support import pft
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server
from yarl import URL

from noetl_worker.tools.calls.call import Timeout
from noetl_worker.tools.http.client import ClientRules, HttpClient
from noetl_worker.tools.http.http_request import HttpRequest, build_address

ROUNDS, PATIENTS = 5, 1_000
LANE = "tests.bench.lane_alone"
SLOTS = fetching.IN_FLIGHT // fetching.ROW_CONCURRENCY
# command.issued, command.started, frame.dispatched, frame.committed, command.completed
FRAME_EVENTS = 5
_PATIENCE = Timeout(total=60)
_BYTES_MAX = 1 << 20


class Ran(Struct, frozen=True):
    """How long a way took, and with what CPU of its own, if it tells."""

    seconds: float
    cpu_s: float | None = None


Way = Callable[[], Awaitable[Ran]]


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

            async def floor() -> Ran:
                return Ran(await asyncio.to_thread(fetching.floor, served, dsn, requests))

            async def unaided() -> Ran:
                rate = await giver.rate(frames, in_flight=SLOTS, events=FRAME_EVENTS)
                return Ran(frames / rate)

            def lanes(count: int) -> Ran:
                share = ("--site", served.url, "--dsn", dsn, "--requests", str(requests // count))
                return _at_once([(LANE, *share)] * count)

            ways: dict[str, Way] = {
                "floor": floor,
                "unaided": unaided,
                "lane": lambda: asyncio.to_thread(lanes, 1),
                "lanes": lambda: asyncio.to_thread(lanes, 2),
            }
            return await _in_turn(ways, units=requests)


async def _pft(dsn: str, folder: Path) -> dict[str, Any]:
    with pft.fixture(folder) as served:
        given = ("--api", served.api, "--dsn", dsn)

        def alone(*command: str) -> Ran:
            served.begin()
            whole = ("--facilities", "1", "--patients", str(PATIENTS))
            (told,) = _told([(*command, *given, *whole)])
            return Ran(told["seconds"])

        def lanes(count: int) -> Ran:
            nonce = served.begin()
            share = ("--nonce", nonce, "--facilities", str(count))
            one = (LANE, *given, *share, "--patients", str(PATIENTS // count), "--facility")
            _told([(*one, "0")])
            return _at_once([(*one, str(number)) for number in range(1, count + 1)])

        ways: dict[str, Way] = {
            "floor": lambda: asyncio.to_thread(alone, "noetl_pft", "floor"),
            "unaided": lambda: asyncio.to_thread(alone, __name__),
            "lane": lambda: asyncio.to_thread(lanes, 1),
            "lanes": lambda: asyncio.to_thread(lanes, 2),
        }
        asked = set()
        for way in ways.values():
            await way()
            asked.add(served.summary()["requests"])
        (units,) = asked  # What is compared asks for the same.
        return await _in_turn(ways, units=units)


def _at_once(commands: list[tuple[str, ...]]) -> Ran:
    """Run programs side by side, each with its share, as if all had begun in the same moment."""
    told = _told(commands)
    seconds = sum(item["seconds"] for item in told) / len(told)
    return Ran(seconds, cpu_s=sum(item["cpu_s"] for item in told))


def _told(commands: list[tuple[str, ...]]) -> list[dict[str, float]]:
    """Run programs side by side that print their seconds."""
    running = [
        subprocess.Popen(  # noqa: S603 - our own command lines
            [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for command in commands
    ]
    printed = [item.communicate(timeout=600)[0] for item in running]
    assert not any(item.returncode for item in running), printed
    return [msgspec.json.decode(text.splitlines()[-1]) for text in printed]


async def _in_turn(ways: dict[str, Way], *, units: int) -> dict[str, Any]:
    found: dict[str, list[Ran]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        for name in ways if turn % 2 == 0 else reversed(ways):
            found[name].append(await ways[name]())
    floors = found["floor"]
    return {
        "units": units,
        "rounds": ROUNDS,
        "per_s": {name: spread([units / item.seconds for item in found[name]]) for name in ways},
        "of_floor": {
            name: spread(
                [a.seconds / b.seconds for a, b in zip(floors, each, strict=True)], digits=3
            )
            for name, each in found.items()
            if name != "floor"
        },
        "cpu_us": {
            name: spread([1e6 * cpu_s / units for cpu_s in told])
            for name, each in found.items()
            if (told := [item.cpu_s for item in each if item.cpu_s is not None])
        },
    }


class Fetcher:
    """Asks with the worker's client."""

    def __init__(self) -> None:
        self._client = HttpClient(
            ClientRules(check=lambda *_: True, connections_max=fetching.IN_FLIGHT)
        )

    async def get(self, url: str) -> Any:
        """Ask for a document of JSON."""
        response = await self._client.fetch_response(
            HttpRequest(
                method="GET", address=build_address(URL(url, encoded=True)), headers={}, body=None
            ),
            time_limits=_PATIENCE,
            is_verified=True,
            bytes_max=_BYTES_MAX,
        )
        return msgspec.json.decode(response.body)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()


async def _take(broker: str, dsn: str, address: str) -> None:
    """Run frames for as long as the process lives; each is told of when its rows are committed."""
    client = await nats.connect(broker)
    jetstream, work = client.jetstream(), await Pulled.of(client, stream="work")
    http, run, next_frame = Fetcher(), rows.new_run(), 0
    save = rows.SAVE_BODY.replace(":run", "$1").replace(":item", "$2").replace(":body", "$3")

    async def frame(number: int, message: Msg) -> None:
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


async def _facilities(arguments: argparse.Namespace) -> float:
    http = Fetcher()
    try:
        async with asyncpg.create_pool(arguments.dsn, min_size=4, max_size=4) as pool:
            work = Facilities(http.get, pool, api=arguments.api, patients=arguments.patients)
            await work.begin(arguments.facilities)
            began = time.perf_counter()
            for facility in range(1, arguments.facilities + 1):
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
