"""Procrastinate as its guides have it: an async worker with concurrency, and a periodic task for stalled jobs."""

import asyncio
import time
from typing import Any

import procrastinate
from program import FRAME, Target, answer, arguments, timed

GIVEN = arguments()
TARGET = Target(GIVEN.target, GIVEN.site)
CONCURRENCY = 64
POLL_S = 0.002

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=GIVEN.dsn))


@app.task(queue="bench")
async def double(item: int) -> int:
    """Be one item; what it returns goes to the log."""
    return item * 2


@app.task(queue="bench")
async def link(left: int) -> None:
    """Be one step and defer the next."""
    if left:
        await link.defer_async(left=left - 1)


@app.task(queue="bench")
async def frame(run: str, first: int, count: int) -> None:
    """Be one durable unit of requests."""
    await TARGET.fetch_and_save(run, first, count)


@app.task(queue="bench")
async def saved(run: str, item: int) -> None:
    """Be one item with a row."""
    await TARGET.save(run, [item], [None])


@app.periodic(cron="* * * * * */5")
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context: procrastinate.JobContext, timestamp: int) -> None:
    """Retry what belongs to workers without a heartbeat for 30 s, which is the default."""
    for job in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(job)


async def _ended() -> None:
    """Wait until nothing of the workload is left to do; there is nothing else to wait on."""
    left = 1
    while left:
        await asyncio.sleep(POLL_S)
        row = await app.connector.execute_query_one_async(
            "SELECT count(*) AS left FROM procrastinate_jobs"
            " WHERE status IN ('todo', 'doing') AND queue_name = 'bench'"
        )
        left = row["left"]


async def _many(task: Any, jobs: list[dict[str, Any]]) -> None:
    await task.batch_defer_async(*jobs)
    await _ended()


async def _single() -> None:
    job = await double.defer_async(item=1)
    status = procrastinate.jobs.Status
    while await app.job_manager.get_job_status_async(job_id=job) != status.SUCCEEDED:  # noqa: ASYNC110 - the end of a job is not notified
        await asyncio.sleep(POLL_S / 2)


async def _chain() -> None:
    await link.defer_async(left=GIVEN.units - 1)
    await _ended()


def _frames(size: int) -> list[dict[str, Any]]:
    firsts = range(0, GIVEN.units, size)
    return [{"run": GIVEN.run, "first": first, "count": size} for first in firsts]


async def drive() -> None:
    """Ask for one workload and wait for its end."""
    given, work = GIVEN, GIVEN.workload
    size = FRAME if work == "w4_batched" else 1
    works: dict[str, Any] = {
        "w2": _chain,
        "w3": lambda: _many(double, [{"item": item} for item in range(given.units)]),
        "w4_items": lambda: _many(frame, _frames(size)),
        "w4_batched": lambda: _many(frame, _frames(size)),
        "w5": lambda: _many(saved, [{"run": given.run, "item": n} for n in range(given.units)]),
    }
    async with app.open_async():
        if work == "w1":
            answer(singles=await timed(_single, rounds=given.rounds * given.units))
        elif work == "w5":
            began = time.perf_counter()
            await works[work]()
            answer(seconds=[time.perf_counter() - began])
        else:
            answer(seconds=await timed(works[work], rounds=given.rounds))


async def serve() -> None:
    """Work until killed."""
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


async def install() -> None:
    """Make the tables."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


asyncio.run({"install": install, "serve": serve, "drive": drive}[GIVEN.role]())
