"""Prefect against a server on PostgreSQL: async flows, tasks mapped by the default runner, results kept for a restart."""

import asyncio
import sys
from typing import Any

from prefect import flow, task
from prefect.cache_policies import INPUTS, NO_CACHE
from program import FRAME, Target, answer, arguments, timed

GIVEN = arguments()


@task(cache_policy=NO_CACHE)
def double(item: int) -> int:
    """Be one item."""
    return item * 2


@task(cache_policy=NO_CACHE)
async def nothing() -> None:
    """Be one step."""


@flow
async def one() -> None:
    """Run one task."""
    await nothing()


@flow
async def chain(steps: int) -> None:
    """Run tasks one after another."""
    for _ in range(steps):
        await nothing()


@flow
def fan_out(items: int) -> int:
    """Run items side by side and collect what they return."""
    return len(double.map(range(items)).result())


@task(cache_policy=NO_CACHE)
async def fetch_and_save(run: str, first: int, count: int) -> None:
    """Be one durable unit of requests; each has the loop of its thread, and so its own connections."""
    target = Target(GIVEN.target, GIVEN.site)
    await target.fetch_and_save(run, first, count)
    await target.close()


@flow
def fetch(run: str, requests: int, size: int) -> None:
    """Run units of requests side by side."""
    firsts = list(range(0, requests, size))
    fetch_and_save.map(run=run, first=firsts, count=size).wait()


@task(cache_policy=INPUTS, persist_result=True)
async def saved(run: str, item: int) -> None:
    """Be one item with a row; a later run of the flow finds that it was done."""
    target = Target(GIVEN.target, "")
    await target.save(run, [item], [None])
    await target.close()


@flow
def crash(run: str, items: int) -> None:
    """Run items with rows side by side."""
    saved.map(run=run, item=list(range(items))).wait()


async def drive() -> None:
    """Run one workload."""
    given, work = GIVEN, GIVEN.workload
    if work == "w1":
        answer(singles=await timed(one, rounds=given.rounds * given.units))
        return
    size = FRAME if work == "w4_batched" else 1
    works: dict[str, Any] = {
        "w2": lambda: chain(given.units),
        "w3": lambda: asyncio.to_thread(fan_out, given.units),
        "w4_items": lambda: asyncio.to_thread(fetch, given.run, given.units, size),
        "w4_batched": lambda: asyncio.to_thread(fetch, given.run, given.units, size),
    }
    answer(seconds=await timed(works[work], rounds=given.rounds))


if __name__ == "__main__":
    if GIVEN.role == "serve":
        crash(GIVEN.run, GIVEN.units)
        sys.stdout.write("done\n")
    elif GIVEN.role == "drive":
        asyncio.run(drive())
