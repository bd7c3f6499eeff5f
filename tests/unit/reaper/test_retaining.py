"""One reaper at a time lets histories leave."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from noetl_chassis.clock import ManualClock
from noetl_reaper import settings
from noetl_reaper.settings import Settings
from noetl_reaper.shell.retaining import Retaining
from noetl_storage.archive.archivist import ROLE
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.store import MemoryStore


class Done(Struct, frozen=True):
    status: str = "dropped"
    histories: int = 2
    events: int = 9


class Counting:
    def __init__(self) -> None:
        self.runs = 0

    async def run(self, tell: Callable[[Any], None]) -> None:
        self.runs += 1
        tell(Done())


async def test_one_of_two_lets_histories_leave() -> None:
    instances = MemoryInstances(MemoryStore(clock=ManualClock(datetime(2026, 1, 1, tzinfo=UTC))))
    archives = Counting()
    one, other = (
        Retaining(archives, instances=instances, role=ROLE, owner=owner, lease_s=60)
        for owner in ("one", "other")
    )
    assert await one.sweep()
    assert not await other.sweep()
    assert await one.sweep()
    assert archives.runs == 2


def test_nothing_leaves_by_default() -> None:
    config = settings.settings.load(
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
