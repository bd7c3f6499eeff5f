"""Runs that clients watch: each is looked at and encoded once, for all clients that watch it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct


class ShownMoment(Struct, frozen=True, kw_only=True):
    """A moment as it is sent: to who may read values, and to who may not."""

    version: int
    full: bytes
    hidden: bytes
    is_last: bool


LookOn = Callable[["WatchedRun"], Coroutine[Any, Any, None]]


class WatchedRun:
    """What clients of one run are shown; `look_on` shows it something until the run is over."""

    def __init__(self, look_on: LookOn) -> None:
        self.client_count = 0
        # Counts what was shown: a slow client gets the latest.
        self.turn = 0
        self.moment: ShownMoment | None = None
        self.progress = b""
        self._turned = asyncio.Event()
        self._looking = asyncio.ensure_future(look_on(self))
        self._looking.add_done_callback(lambda _: self._turned.set())

    def show(self, moment: ShownMoment | None, progress: bytes) -> None:
        """Show all clients a moment, and what was told of its tasks since the last one."""
        self.moment, self.progress = moment, progress
        self.turn += 1
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()

    async def wait_for_turn(self, seen_turn: int, *, within_s: float) -> bool:
        """Wait until there is more than a client has seen; False once no more will come.

        Returns True as well when nothing came for so long. Raises what ended the looking.
        """
        if self.turn > seen_turn:
            return True
        if self._looking.done():
            self._looking.result()
            return False
        try:
            async with asyncio.timeout(within_s):
                await self._turned.wait()
        except TimeoutError:
            return True
        return await self.wait_for_turn(seen_turn, within_s=0)

    async def stop(self) -> None:
        """Look no more: nobody watches."""
        self._looking.cancel()
        await asyncio.wait({self._looking})


class WatchedRuns:
    """The runs that are watched now."""

    def __init__(self) -> None:
        self._by_run: dict[str, WatchedRun] = {}

    def find_run(self, run: str) -> WatchedRun | None:
        """Return a run that somebody watches."""
        return self._by_run.get(run)

    @asynccontextmanager
    async def watch_run(self, run: str, look_on: LookOn) -> AsyncIterator[WatchedRun]:
        """Watch a run while the block runs, together with all others that do."""
        watched = self._by_run.get(run)
        if watched is None:
            watched = self._by_run[run] = WatchedRun(look_on)
        watched.client_count += 1
        try:
            yield watched
        finally:
            watched.client_count -= 1
            if not watched.client_count:
                del self._by_run[run]
                await watched.stop()
