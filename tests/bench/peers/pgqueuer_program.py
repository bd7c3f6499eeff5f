"""PgQueuer as its tuning guide has it: a connection of its own for the manager, batches, a watcher for ends."""

import asyncio
import json
import time
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from program import FRAME, Target, answer, arguments, timed

GIVEN = arguments()
TARGET = Target(GIVEN.target, GIVEN.site)
# "Increase batch_size when jobs are short-lived"; at most twice of it run at once.
BATCH = 100


async def serve() -> None:
    """Work until killed."""
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(GIVEN.dsn)))
    pool = await asyncpg.create_pool(GIVEN.dsn, min_size=1, max_size=4)
    queries = Queries(AsyncpgDriver(await asyncpg.connect(GIVEN.dsn)))

    @pgq.entrypoint("double")
    async def double(job: Job) -> None:
        """Be one item; nobody keeps what it returns."""

    @pgq.entrypoint("link")
    async def link(job: Job) -> None:
        left, channel = json.loads(job.payload or b"[]")
        if left:
            await queries.enqueue("link", json.dumps([left - 1, channel]).encode())
        else:
            await pool.execute("SELECT pg_notify($1, '')", channel)

    @pgq.entrypoint("frame")
    async def frame(job: Job) -> None:
        run, first, count = json.loads(job.payload or b"[]")
        await TARGET.fetch_and_save(run, first, count)

    @pgq.entrypoint("saved")
    async def saved(job: Job) -> None:
        run, item = json.loads(job.payload or b"[]")
        await TARGET.save(run, [item], [None])

    await pgq.run(batch_size=BATCH, max_concurrent_tasks=2 * BATCH)


async def drive() -> None:
    """Ask for one workload and wait for its end."""
    given, work = GIVEN, GIVEN.workload
    driver = AsyncpgDriver(await asyncpg.connect(given.dsn))
    queries = Queries(driver)
    async with CompletionWatcher(driver, queries=queries) as watcher:

        async def jobs(name: str, payloads: list[Any]) -> None:
            encoded = [json.dumps(payload).encode() for payload in payloads]
            ids = await queries.enqueue([name] * len(encoded), encoded, [0] * len(encoded))
            await asyncio.gather(*[watcher.wait_for(entry) for entry in ids])

        size = FRAME if work == "w4_batched" else 1
        works: dict[str, Any] = {
            "w1": lambda: jobs("double", [0]),
            "w2": lambda: _chain(queries),
            "w3": lambda: jobs("double", list(range(given.units))),
            "w4_items": lambda: jobs("frame", _frames(size)),
            "w4_batched": lambda: jobs("frame", _frames(size)),
            "w5": lambda: jobs("saved", [[given.run, item] for item in range(given.units)]),
        }
        if work == "w1":
            answer(singles=await timed(works[work], rounds=given.rounds * given.units))
        elif work == "w5":
            began = time.perf_counter()
            await works[work]()
            answer(seconds=[time.perf_counter() - began])
        else:
            answer(seconds=await timed(works[work], rounds=given.rounds))


def _frames(size: int) -> list[Any]:
    return [[GIVEN.run, first, size] for first in range(0, GIVEN.units, size)]


async def _chain(queries: Queries) -> None:
    """Start a chain in which each job enqueues the next; the last one notifies."""
    ended, connection = asyncio.Event(), await asyncpg.connect(GIVEN.dsn)
    await connection.add_listener("bench_end", lambda *_: ended.set())
    await queries.enqueue("link", json.dumps([GIVEN.units - 1, "bench_end"]).encode())
    await ended.wait()
    await connection.close()


async def install() -> None:
    """Make the tables, with the settings for autovacuum that the guide asks for."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(GIVEN.dsn)))
    await queries.install()
    await queries.optimize_autovacuum()


uvloop.run({"install": install, "serve": serve, "drive": drive}[GIVEN.role]())
