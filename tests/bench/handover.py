"""What of W2 and W3 is the servers' and the clients' own: the same messages and rows, no engine.

One process hands work over and writes down what becomes of it, another takes it, does nothing and
says so: over JetStream in files, pulled and acknowledged, each handover committed to PostgreSQL
with as many rows as the engine writes events. Nothing is decided, checked, leased, projected,
published to others or repeated.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import nats
import uvloop
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NothingCameError
from nats.js import JetStreamContext
from tests.bench.floors import CONTEXT, TABLE
from tests.bench.spread import spread
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server

STEPS, ITEMS, ROUNDS = 100, 10_000, 5
IN_FLIGHT = 100
# As in the ledger: step.enter, issued, started, completed, call.done, step.exit; items lack the steps'.
STEP_EVENTS, ITEM_EVENTS = 6, 4
COMMAND, FACT = b"x" * 800, b"x" * 700
INSERT = (
    "INSERT INTO floor_event SELECT i, i / 100, 'step.enter', $2::jsonb"
    " FROM generate_series($1::bigint, $1 + $3 - 1) AS i"
)
_WAIT_S = 1.0


def measure() -> dict[str, Any]:
    """Measure both, on servers of their own that keep what they are told."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder), is_durable=True) as server,
        nats_server(Path(folder)) as broker,
    ):
        return uvloop.run(_measure(server, broker))


async def _measure(server: PostgresServer, broker: NatsServer) -> dict[str, Any]:
    dsn = await server.create_database("handover")
    async with _giver(dsn, broker.url) as giver:
        steps = [await giver.rate(STEPS, in_flight=1, events=STEP_EVENTS) for _ in range(ROUNDS)]
        items = [
            await giver.rate(ITEMS, in_flight=IN_FLIGHT, events=ITEM_EVENTS) for _ in range(ROUNDS)
        ]
    return {"steps_per_s": spread(steps), "items_per_s": spread(items, digits=0)}


class Giver:
    """Hands work over and commits what becomes of it."""

    def __init__(
        self,
        connection: "asyncpg.Connection[Any]",
        jetstream: JetStreamContext,
        facts: JetStreamContext.PullSubscription,
    ) -> None:
        self._connection, self._jetstream, self._facts = connection, jetstream, facts
        self._next_id = 0

    async def rate(self, count: int, *, in_flight: int, events: int) -> float:
        """Hand so much over, at most `in_flight` at once; return how much a second."""
        began = time.perf_counter()
        given, ended = min(in_flight, count), 0
        await self._give(given)
        while ended < count:
            told = await _fetch(self._facts, in_flight)
            done = sum(int(one.data[:8]) for one in told)
            await self._connection.execute(INSERT, self._next_id, CONTEXT, events * done)
            self._next_id += events * done
            ended += done
            more = min(done, count - given)
            given += more
            await self._give(more)
            for one in told:
                await one.ack()
        return count / (time.perf_counter() - began)

    async def _give(self, count: int) -> None:
        acks = [await self._jetstream.publish_async("work.do", COMMAND) for _ in range(count)]
        await asyncio.gather(*acks)


@asynccontextmanager
async def _giver(dsn: str, url: str) -> AsyncIterator[Giver]:
    client = await nats.connect(url)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(TABLE)
        jetstream = client.jetstream()
        for name in ("work", "told"):
            await jetstream.add_stream(name=name, subjects=[f"{name}.>"])
        facts = await jetstream.pull_subscribe("told.done", durable="giver")
        taker = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, url)
        try:
            giver = Giver(connection, jetstream, facts)
            await giver.rate(STEPS, in_flight=1, events=STEP_EVENTS)
            yield giver
        finally:
            taker.terminate()
            await taker.wait()
    finally:
        await connection.close()
        await client.close()


async def _take(url: str) -> None:
    """Take work for as long as the process lives: each batch is one message back."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    work = await jetstream.pull_subscribe("work.do", durable="taker")
    while True:
        taken = await _fetch(work, IN_FLIGHT)
        if taken:
            body = b"%08d" % len(taken) + FACT * len(taken)
            await jetstream.publish("told.done", body)
            for one in taken:
                await one.ack()


async def _fetch(pulled: JetStreamContext.PullSubscription, most: int) -> list[Msg]:
    """Fetch what is there, or wait a while for the first."""
    try:
        return await pulled.fetch(most, timeout=_WAIT_S)
    except NothingCameError:
        return []


if __name__ == "__main__":
    uvloop.run(_take(sys.argv[1]))
