"""Takes commands from the lanes of a pool, the most urgent lane first."""

import asyncio
from collections.abc import Sequence

from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.ports import Consumer, Delivery

# A worker with less room than this for each lane looks again soon at what it does not wait for.
PLENTY = 8
LOOK_S = 0.25
# One turn of so many begins with the least urgent lane, so that it moves on as well.
FAIR_TURNS = 8


class Intake:
    """Owns one consumer a lane.

    What waits is taken in the order of the lanes, now and then in the opposite order. When nothing
    waits, one message of each lane is waited for; such a wait is never broken off, since what came
    meanwhile would be lost to us until its lease had passed: it counts against the room of the
    turns that follow.
    """

    def __init__(self, lanes: Sequence[Consumer]) -> None:
        self._lanes = tuple(lanes)
        self._turns = 0
        self._waits: dict[int, asyncio.Task[list[Delivery] | Exception]] = {}

    async def fetch(
        self, group: asyncio.TaskGroup, *, free: int, messages_max: int, wait_s: float
    ) -> list[Delivery]:
        """Return at most `free` deliveries, waiting up to `wait_s` for the first; may be none.

        Raises `MessagingUnavailable`.
        """
        found = self._harvest()
        room = free - len(found) - len(self._waits)
        found += await self._sweep(min(room, messages_max), has_some=bool(found))
        return found or await self._wait(group, room, wait_s if free >= self._plenty else LOOK_S)

    async def _sweep(self, room: int, *, has_some: bool) -> list[Delivery]:
        """Take what is there already; a failure after something came is met again next time."""
        found: list[Delivery] = []
        try:
            for lane in self._in_turn():
                if room > len(found):
                    free = room - len(found)
                    found += await self._lanes[lane].fetch(messages_max=free, wait_s=0.0)
        except MessagingUnavailable:
            if not (found or has_some):
                raise
        return found

    @property
    def _plenty(self) -> int:
        return PLENTY * len(self._lanes)

    async def close(self) -> list[Delivery]:
        """Wait for what was asked for, and return what came."""
        if self._waits:
            await asyncio.wait(self._waits.values())
        outcomes = [wait.result() for wait in self._waits.values()]
        return [one for came in outcomes if not isinstance(came, Exception) for one in came]

    async def _wait(self, group: asyncio.TaskGroup, room: int, wait_s: float) -> list[Delivery]:
        for lane in self._idle()[: max(0, room)]:
            self._waits[lane] = group.create_task(self._await_one(lane, wait_s))
        if not self._waits:
            return []
        is_watching_all = len(self._waits) == len(self._lanes)
        await asyncio.wait(
            self._waits.values(),
            timeout=None if is_watching_all else LOOK_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        return self._harvest()

    def _in_turn(self) -> list[int]:
        self._turns += 1
        is_fair = self._turns % FAIR_TURNS == 0
        return self._idle()[::-1] if is_fair else self._idle()

    def _idle(self) -> list[int]:
        return [lane for lane in range(len(self._lanes)) if lane not in self._waits]

    def _harvest(self) -> list[Delivery]:
        """Collect the waits that have ended, the most urgent lane first; raises their failure."""
        found: list[Delivery] = []
        for lane in [lane for lane in sorted(self._waits) if self._waits[lane].done()]:
            outcome = self._waits[lane].result()
            if not isinstance(outcome, Exception):
                found += outcome
            elif found:
                # Met again at the next turn: what came before it must not be lost.
                continue
            del self._waits[lane]
            if isinstance(outcome, Exception):
                raise outcome
        return found

    async def _await_one(self, lane: int, wait_s: float) -> list[Delivery] | Exception:
        """Wait for one message; a failure is told and does not end the group."""
        fetch = self._lanes[lane].fetch(messages_max=1, wait_s=wait_s)
        (outcome,) = await asyncio.gather(fetch, return_exceptions=True)
        if isinstance(outcome, Exception) or not isinstance(outcome, BaseException):
            return outcome
        raise outcome
