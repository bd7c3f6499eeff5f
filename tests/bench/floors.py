"""What the servers and clients give with nothing around them, in the same run: the limits of any engine here."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import nats
from nats.js import JetStreamContext
from tests.bench.site import site
from tests.bench.spread import spread
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server

ROUNDS = 5
TABLE = """
CREATE TABLE floor_event (
    id bigint PRIMARY KEY, execution bigint NOT NULL, kind text NOT NULL, context jsonb NOT NULL);
CREATE INDEX ON floor_event (execution, id);
CREATE INDEX ON floor_event (kind, id)
"""
ONE = "INSERT INTO floor_event VALUES ($1, $2, 'step.enter', $3::jsonb)"
MANY = "INSERT INTO floor_event SELECT i, i / 100, 'step.enter', $2::jsonb FROM unnest($1::bigint[]) AS i"
CONTEXT = '{"step": "one", "run_id": "1", "activation": 1, "result": {"status": "ok"}}'
SINGLES, BATCHED, BATCH_ROWS = 2_000, 20_000, 500
MESSAGES, WINDOW, MESSAGE = 5_000, 500, b"x" * 400
REQUESTS, IN_FLIGHT = 5_000, 32

Work = Callable[[], Awaitable[int]]


def measure() -> dict[str, Any]:
    """Measure PostgreSQL, JetStream and the HTTP client, each on a server of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder), is_durable=True) as server,
        nats_server(Path(folder)) as broker,
    ):
        return asyncio.run(_measure(server, broker))


async def _measure(server: PostgresServer, broker: NatsServer) -> dict[str, Any]:
    dsn = await server.create_database("floors")
    found: dict[str, Any] = {}
    async with _appends(dsn) as ways:
        found |= {name: await _rates(way) for name, way in ways.items()}
    async with _publishes(broker) as ways:
        found |= {name: await _rates(way) for name, way in ways.items()}
    with site(delay_ms=0) as served:
        found["http_32"] = await _rates(lambda: _requests(served.url))
    return found


async def _rates(work: Work) -> dict[str, float]:
    await work()
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        count = await work()
        rates.append(count / (time.perf_counter() - began))
    return spread(rates, digits=0)


@asynccontextmanager
async def _appends(dsn: str) -> AsyncIterator[dict[str, Work]]:
    async with asyncpg.create_pool(dsn, min_size=16, max_size=16) as pool:
        await pool.execute(TABLE)
        ids = iter(range(10**9))

        async def singly(connections: int) -> int:
            async def crew() -> None:
                async with pool.acquire() as connection:
                    for _ in range(SINGLES // connections):
                        await connection.execute(ONE, next(ids), 1, CONTEXT)

            await asyncio.gather(*[crew() for _ in range(connections)])
            return SINGLES

        async def batched() -> int:
            async with pool.acquire() as connection:
                for _ in range(BATCHED // BATCH_ROWS):
                    await connection.execute(MANY, [next(ids) for _ in range(BATCH_ROWS)], CONTEXT)
            return BATCHED

        async def copied() -> int:
            async with pool.acquire() as connection:
                for _ in range(BATCHED // BATCH_ROWS):
                    records = [(next(ids), 1, "step.enter", CONTEXT) for _ in range(BATCH_ROWS)]
                    await connection.copy_records_to_table("floor_event", records=records)
            return BATCHED

        yield {
            "append_1": lambda: singly(1),
            "append_16": lambda: singly(16),
            "append_unnest": batched,
            "append_copy": copied,
        }


@asynccontextmanager
async def _publishes(broker: NatsServer) -> AsyncIterator[dict[str, Work]]:
    client = await nats.connect(broker.url)
    try:
        jetstream = client.jetstream(publish_async_max_pending=WINDOW)
        await jetstream.add_stream(name="FLOOR", subjects=["floor.>"])

        async def one_by_one() -> int:
            for _ in range(MESSAGES // 5):
                await jetstream.publish("floor.a", MESSAGE)
            return MESSAGES // 5

        yield {"publish_1": one_by_one, "publish_window": lambda: _windows(jetstream)}
    finally:
        await client.close()


async def _windows(jetstream: JetStreamContext) -> int:
    for _ in range(MESSAGES // WINDOW):
        acks = [await jetstream.publish_async("floor.a", MESSAGE) for _ in range(WINDOW)]
        await asyncio.gather(*acks)
    return MESSAGES


async def _requests(url: str) -> int:
    todo = iter(range(REQUESTS))
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(url, connector=connector) as http:

        async def crew() -> None:
            for item in todo:
                async with http.get(f"/item/{item}") as answer:
                    await answer.read()

        await asyncio.gather(*[crew() for _ in range(IN_FLIGHT)])
    return REQUESTS
