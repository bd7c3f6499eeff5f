"""What the programs of all peers share: their arguments, the rows that they save, how they answer.

They run in an environment of their own, without anything of this project; each is called as
`PROGRAM serve` for what works, and `PROGRAM drive WORKLOAD` for what asks and waits.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import asyncpg

FRAME = 50
IN_FLIGHT = 128
SAVE = (
    "INSERT INTO bench_rows (run, item, body)"
    " SELECT $1, item, body::jsonb FROM unnest($2::integer[], $3::text[]) AS r (item, body)"
)


def arguments() -> argparse.Namespace:
    """Read what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["install", "serve", "drive"])
    parser.add_argument("workload", nargs="?", default="")
    parser.add_argument("--dsn", required=True, help="the peer's own database")
    parser.add_argument("--target", required=True, help="where rows are saved")
    parser.add_argument("--site", default="")
    parser.add_argument("--run", default="")
    parser.add_argument("--units", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


def answer(**found: Any) -> None:
    """Tell what was found, with the CPU that this process took, as one line."""
    sys.stdout.write(json.dumps({**found, "cpu_s": time.process_time()}) + "\n")
    sys.stdout.flush()


async def timed(work: Callable[[], Awaitable[Any]], *, rounds: int) -> list[float]:
    """Do it once to warm up, then so often; return the seconds of each."""
    found = []
    for turn in range(rounds + 1):
        began = time.perf_counter()
        await work()
        if turn:
            found.append(time.perf_counter() - began)
    return found


class Target:
    """The site that is asked and the database that rows go to; opened on first use."""

    def __init__(self, dsn: str, site: str) -> None:
        self._dsn, self._site = dsn, site
        self._pool: Any = None
        self._http: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()

    async def save(self, run: str, items: Sequence[int], bodies: Sequence[str | None]) -> None:
        """Save rows in one transaction."""
        await self._open()
        await self._pool.execute(SAVE, run, list(items), list(bodies))

    async def fetch(self, item: int) -> str:
        """Ask the site for one item."""
        http = await self._open()
        async with http.get(f"/item/{item}") as found:
            return json.dumps(json.loads(await found.read()))

    async def fetch_and_save(self, run: str, first: int, count: int) -> None:
        """Ask for items side by side, and save their rows together."""
        items = range(first, first + count)
        await self.save(run, items, await asyncio.gather(*[self.fetch(item) for item in items]))

    async def close(self) -> None:
        """End what was opened."""
        if self._http is not None:
            await self._http.close()
            await self._pool.close()

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._http is None:
                self._pool = await asyncpg.create_pool(self._dsn, min_size=1, max_size=8)
                connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
                self._http = aiohttp.ClientSession(self._site or None, connector=connector)
        return self._http
