"""The turns of tenants with a share: few at once, and none for longer than its part of the time."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from time import monotonic

from msgspec import Struct

from noetl_contracts.ids import TenantId

# While one turn waits for the database, another one decides.
TURNS_AT_ONCE = 2
# For how long after its last turn a share's part of the time is kept for it.
KEPT_S = 2.0
# Most of a turn is waiting for the database: beside many others a share still has this part.
PART_MIN = 0.25
# What a share may use at once beyond its part; so little, that others hardly wait for it.
BURST_S = 0.1
# A share that used up more waits no longer than this: what it began is never held for long.
DEBT_S_MAX = 1.0


class _ShareTime(Struct, kw_only=True, eq=False):
    """Seconds that a share may use before it waits; below zero it waits until they are back."""

    left_s: float = BURST_S
    at_s: float
    used_at_s: float


class ShareTurns:
    """Gives turns to each tenant's share; without shares nothing waits.

    All shards of a process use one processor and one database, and what one share does there
    slows the others down. While several shares have work, each has an equal part of the time, and
    what another leaves of its part stays free: it is what keeps that one's next turn quick. A
    share that is alone uses all of it.
    """

    def __init__(
        self, tenants: Collection[str] = (), *, get_time: Callable[[], float] = monotonic
    ) -> None:
        self._tenants = frozenset(tenants)
        self._get_time = get_time
        self._places: defaultdict[TenantId | None, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(TURNS_AT_ONCE)
        )
        self._time_by_share: dict[TenantId | None, _ShareTime] = {}

    def find_share(self, tenant_id: TenantId) -> TenantId | None:
        """Return the share of a tenant: None is that of all who have none of their own."""
        return tenant_id if tenant_id in self._tenants else None

    @asynccontextmanager
    async def take_turn(self, share: TenantId | None) -> AsyncIterator[None]:
        """Wait until the share may take one turn more, and count how long that lasts."""
        if not self._tenants:
            yield
            return
        async with self._places[share]:
            wait_s = self._count_time(share, used_s=0.0)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            begun_at_s = self._get_time()
            try:
                yield
            finally:
                self._count_time(share, used_s=self._get_time() - begun_at_s)

    def _count_time(self, share: TenantId | None, *, used_s: float) -> float:
        """Count what a share has used; return for how many seconds it has nothing left."""
        now_s = self._get_time()
        time = self._time_by_share.setdefault(share, _ShareTime(at_s=now_s, used_at_s=now_s))
        others = sum(
            name != share and now_s - other.used_at_s < KEPT_S
            for name, other in self._time_by_share.items()
        )
        part = max(PART_MIN, 1 / (1 + others))
        time.left_s = min(BURST_S, time.left_s + (now_s - time.at_s) * part)
        time.at_s = time.used_at_s = now_s
        if not others:
            time.left_s = BURST_S
            return 0.0
        time.left_s = max(-DEBT_S_MAX * part, time.left_s - used_s)
        return -time.left_s / part if time.left_s < 0 else 0.0
