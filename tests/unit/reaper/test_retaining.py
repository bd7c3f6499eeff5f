"""One reaper at a time lets histories leave."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from tests.support.manual_clock import ManualClock

from noetl_reaper import settings
from noetl_reaper.settings import Settings
from noetl_reaper.sweeps.history_retention import HistoryRetention
from noetl_storage.archive.archivist import ROLE
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.store import MemoryStore


class Done(Struct, frozen=True):
    status: str = "dropped"
    histories: int = 2
    events: int = 9


class Archives:
    """Runs something meanwhile."""

    def __init__(self, meanwhile: Callable[[], Awaitable[bool]] | None = None) -> None:
        self.meanwhile = meanwhile
        self.found: list[bool] = []

    async def archive_all_due(self, tell: Callable[[Any], None]) -> None:
        tell(Done())
        if self.meanwhile is not None:
            self.found.append(await self.meanwhile())


async def test_one_at_a_time_lets_histories_leave() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    instances = MemoryInstances(MemoryStore(clock=clock))

    def a_reaper(archives: Archives, owner: str) -> HistoryRetention:
        return HistoryRetention(archives, instances=instances, role=ROLE, owner=owner, lease_s=60)

    other = a_reaper(Archives(), "other")
    archives = Archives(meanwhile=other.sweep)
    assert await a_reaper(archives, "one").sweep()
    assert archives.found == [False]
    clock.advance_by(1.0)
    assert await other.sweep()


def test_nothing_leaves_by_default() -> None:
    config = settings.settings.load_settings(
        Settings,
        prefix=settings.PREFIX,
        environ={
            "NOETL_REAPER_POSTGRES_DSN": "postgresql://nowhere/noetl",
            "NOETL_REAPER_NATS_URL": "nats://nowhere",
        },
    )
    assert config.retention_dsn == ""
    assert config.retention_sweep_interval_s == 0
    assert config.retention_keep_days is None
