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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from tests.bench.floors import CONTEXT, TABLE
from tests.bench.loops import IN_FLIGHT
from tests.bench.spread import spread
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server

STEPS, ITEMS, ROUNDS = 100, 10_000, 5
# As in the ledger: step.enter, issued, started, completed, call.done, step.exit; items lack the steps'.
STEP_EVENTS, ITEM_EVENTS = 6, 4
COMMAND, FACT = b"x" * 800, b"x" * 700
INSERT = (
    "INSERT INTO floor_event SELECT i, i / 100, 'step.enter', $2::jsonb"
    " FROM generate_series($1::bigint, $1 + $3 - 1) AS i"
)
# One request for more than there will ever be: messages come without being asked for again.
REQUEST = b'{"batch": 1000000, "expires": 3600000000000}'


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
    async with working_giver(dsn, broker.url) as giver:
        steps = [await giver.rate(STEPS, in_flight=1, events=STEP_EVENTS) for _ in range(ROUNDS)]
        items = [
            await giver.rate(ITEMS, in_flight=IN_FLIGHT, events=ITEM_EVENTS) for _ in range(ROUNDS)
        ]
    return {"steps_per_s": spread(steps), "items_per_s": spread(items, digits=0)}


class Pulled:
    """What one durable consumer hands over, for one request that stays open."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[Msg] = asyncio.Queue()

    @classmethod
    async def of(cls, client: Client, *, stream: str) -> "Pulled":
        """Ask for all that a stream will ever hold."""
        made, inbox = cls(), client.new_inbox()
        await client.jetstream().add_consumer(
            stream, ConsumerConfig(durable_name="one", ack_policy=AckPolicy.EXPLICIT)
        )
        await client.subscribe(inbox, cb=made._came.put)
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.one", REQUEST, reply=inbox)
        return made

    async def take(self, most: int) -> list[Msg]:
        """Wait for the first, and return what came with it."""
        messages = [await self._came.get()]
        while len(messages) < most and not self._came.empty():
            messages.append(self._came.get_nowait())
        return messages


class Giver:
    """Hands work over and commits what becomes of it."""

    def __init__(
        self,
        connection: "asyncpg.Connection[Any]",
        jetstream: JetStreamContext,
        facts: "Pulled",
    ) -> None:
        self._connection, self._jetstream, self._facts = connection, jetstream, facts
        self._next_id = 0

    async def rate(self, count: int, *, in_flight: int, events: int) -> float:
        """Hand so much over, at most `in_flight` at once; return how much a second."""
        began = time.perf_counter()
        given, ended = min(in_flight, count), 0
        await self._give(given)
        while ended < count:
            told = await self._facts.take(in_flight)
            done = sum(int(item.data[:8]) for item in told)
            await self._keep(events * done)
            ended += done
            more = min(done, count - given)
            given += more
            await self._give(more)
            for item in told:
                await item.ack()
        return count / (time.perf_counter() - began)

    async def run(self, *, first: int, last: int) -> None:
        """Hand one over and wait for it; commit so many rows before and after."""
        await self._keep(first)
        await self._give(1)
        (told,) = await self._facts.take(1)
        await self._keep(last)
        await told.ack()

    async def _keep(self, events: int) -> None:
        await self._connection.execute(INSERT, self._next_id, CONTEXT, events)
        self._next_id += events

    async def _give(self, count: int) -> None:
        acks = [await self._jetstream.publish_async("work.do", COMMAND) for _ in range(count)]
        await asyncio.gather(*acks)


@asynccontextmanager
async def working_giver(dsn: str, url: str, *, taker: Sequence[str] = ()) -> AsyncIterator[Giver]:
    """Connect to the servers, and to a process that takes what is handed over.

    `taker` is another module that does, with its arguments.
    """
    client = await nats.connect(url)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(TABLE)
        jetstream = client.jetstream()
        for name in ("work", "told"):
            await jetstream.add_stream(name=name, subjects=[f"{name}.>"])
        facts = await Pulled.of(client, stream="told")
        program = ("-m", *(taker or (__name__, url)))
        process = await asyncio.create_subprocess_exec(sys.executable, *program)
        try:
            giver = Giver(connection, jetstream, facts)
            await giver.rate(STEPS, in_flight=1, events=STEP_EVENTS)
            yield giver
        finally:
            process.terminate()
            await process.wait()
    finally:
        await connection.close()
        await client.close()


async def _take(url: str) -> None:
    """Take work for as long as the process lives: each batch is one message back."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    work = await Pulled.of(client, stream="work")
    while True:
        taken = await work.take(IN_FLIGHT)
        await jetstream.publish("told.done", b"%08d" % len(taken) + FACT * len(taken))
        for item in taken:
            await item.ack()


if __name__ == "__main__":
    uvloop.run(_take(sys.argv[1]))
