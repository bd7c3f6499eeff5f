"""DBOS, in process, as its programming guide has it: workflows of steps, and children for what runs side by side."""

import asyncio
import sys
import time
from typing import Any

from dbos import DBOS, SetWorkflowID
from program import FRAME, Target, answer, arguments, timed

GIVEN = arguments()
TARGET = Target(GIVEN.target, GIVEN.site)
QUEUE = "bench"


@DBOS.step()
async def nothing() -> None:
    """Do nothing, durably."""


@DBOS.workflow()
async def one() -> None:
    """Run one step."""
    await nothing()


@DBOS.workflow()
async def chain(steps: int) -> None:
    """Run steps one after another."""
    for _ in range(steps):
        await nothing()


@DBOS.workflow()
async def double(item: int) -> int:
    """Be one item."""
    return item * 2


@DBOS.workflow()
async def fan_out(items: int) -> list[int]:
    """Run items side by side and collect what they return."""
    handles = [await DBOS.start_workflow_async(double, item) for item in range(items)]
    return [await handle.get_result() for handle in handles]


@DBOS.workflow()
async def fan_out_queued(items: int) -> list[int]:
    """Run items through a queue and collect what they return."""
    handles = [await DBOS.enqueue_workflow_async(QUEUE, double, item) for item in range(items)]
    return [await handle.get_result() for handle in handles]


@DBOS.step()
async def fetch_and_save(run: str, first: int, count: int) -> None:
    """Ask the site and save rows."""
    await TARGET.fetch_and_save(run, first, count)


@DBOS.workflow()
async def frame(run: str, first: int, count: int) -> None:
    """Be one durable unit of requests."""
    await fetch_and_save(run, first, count)


@DBOS.workflow()
async def fetch(run: str, requests: int, size: int) -> None:
    """Run units of requests side by side."""
    handles = [
        await DBOS.start_workflow_async(frame, run, first, size)
        for first in range(0, requests, size)
    ]
    for handle in handles:
        await handle.get_result()


@DBOS.step()
async def save(run: str, item: int) -> None:
    """Save the row of one item."""
    await TARGET.save(run, [item], [None])


@DBOS.workflow()
async def saved(run: str, item: int) -> None:
    """Be one item with a row."""
    await save(run, item)


@DBOS.workflow()
async def crash(run: str, items: int) -> None:
    """Run items with rows side by side."""
    handles = [await DBOS.start_workflow_async(saved, run, item) for item in range(items)]
    for handle in handles:
        await handle.get_result()


async def drive() -> None:
    """Run one workload."""
    given, work = GIVEN, GIVEN.workload
    if work == "w1":
        await one()
        found = []
        for _ in range(given.rounds * given.units):
            began = time.perf_counter()
            await one()
            found.append(time.perf_counter() - began)
        answer(singles=found)
        return
    size = FRAME if work == "w4_batched" else 1
    works: dict[str, Any] = {
        "w2": lambda: chain(given.units),
        "w3": lambda: fan_out(given.units),
        "w3_queued": lambda: fan_out_queued(given.units),
        "w4_items": lambda: fetch(given.run, given.units, size),
        "w4_batched": lambda: fetch(given.run, given.units, size),
    }
    answer(seconds=await timed(works[work], rounds=given.rounds))


async def serve() -> None:
    """Run the items of W5, or go on with them: a workflow of that id is begun once."""
    with SetWorkflowID(GIVEN.run):
        handle = await DBOS.start_workflow_async(crash, GIVEN.run, GIVEN.units)
    await handle.get_result()
    sys.stdout.write("done\n")


async def main() -> None:
    """Launch, do what is asked, end."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": GIVEN.dsn,
            "log_level": "WARNING",
            "run_admin_server": False,
            "application_version": "1",
        }
    )
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE)
    if GIVEN.role == "drive":
        await drive()
    if GIVEN.role == "serve":
        await serve()
    await TARGET.close()
    DBOS.destroy()


asyncio.run(main())
