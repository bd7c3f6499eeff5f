"""The planner as a whole: shards, publishing and doors, side by side until told to stop."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from noetl_chassis.loop import Pulse, every, pump
from noetl_planner.shell.gathering import LANES, Gathering
from noetl_planner.shell.publishing import Publishing
from noetl_planner.shell.shards import ShardOwner

Doors = Callable[[asyncio.Event], Awaitable[None]]


async def run(
    *,
    owner: ShardOwner,
    publishing: Publishing,
    gathering: Gathering,
    doors: Doors,
    renewal_s: float,
    pulse: Pulse,
    stop: asyncio.Event,
) -> None:
    """Run until told to stop; shards are given back before the connections close."""
    async with asyncio.TaskGroup() as tasks:
        opened = tasks.create_task(_opened(doors, stop))
        beside = [
            tasks.create_task(pump(turn, idle_s=0.0, stop=asyncio.Event(), name=name))
            for name, turn in [
                ("publishing", publishing.turn),
                *((f"gathering-{lane}", gathering.turn) for lane in range(LANES)),
            ]
        ]
        await every(renewal_s, partial(owner.renew, tasks), stop=stop, name="shards", pulse=pulse)
        await owner.give_back()
        for task in beside:
            task.cancel()
        await opened


async def _opened(doors: Doors, stop: asyncio.Event) -> None:
    await doors(stop)
