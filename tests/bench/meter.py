"""What a stretch of work cost a stack: CPU by service, transactions and write-ahead log of PostgreSQL.

A process's CPU is counted to the end. `pg_stat_database` lags by up to ten seconds for a connection that
went idle, so that a short workload would be blamed for less than it did; transactions are counted by the
ids that they were given, which is exact, and leaves out those that only read.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
from msgspec import Struct
from tests.bench.cpu import spent
from tests.bench.spread import spread
from tests.support.stack import Stack

_SERVER = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS transactions,
       (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint AS wal_bytes
"""


class Costs(Struct, frozen=True, kw_only=True):
    """What was spent: CPU seconds by part, PostgreSQL's transactions that wrote, bytes of its log."""

    cpu_s: dict[str, float]
    transactions: int
    wal_bytes: int

    def since(self, before: "Costs") -> "Costs":
        """Return what was spent after `before`."""
        return Costs(
            cpu_s={part: cpu - before.cpu_s.get(part, 0.0) for part, cpu in self.cpu_s.items()},
            transactions=self.transactions - before.transactions,
            wal_bytes=self.wal_bytes - before.wal_bytes,
        )

    def per(self, units: int) -> dict[str, Any]:
        """Tell them for one unit of the work, in microseconds of CPU."""
        return {
            "cpu_us": {part: round(1e6 * cpu / units, 1) for part, cpu in self.cpu_s.items()},
            "transactions": round(self.transactions / units, 3),
            "wal_bytes": round(self.wal_bytes / units),
        }


def costs(stack: Stack, **others: int) -> Costs:
    """Read every meter now; `others` are processes beside the stack's, by name."""
    server = asyncio.run(_server(stack.url("postgres")))
    return Costs(cpu_s=spent(stack, **others), **server)


def rounds(stack: Stack, work: Callable[[], float], *, units: int, times: int) -> dict[str, Any]:
    """Do the work so often, each time so many units, warm; `work` returns its seconds."""
    before = costs(stack)
    seconds = [work() for _ in range(times)]
    return told(seconds, units=units, spent=costs(stack).since(before))


def told(seconds: Sequence[float], *, units: int, spent: Costs) -> dict[str, Any]:
    """Tell rates, and what one unit cost."""
    return {
        "units": units,
        "rounds": len(seconds),
        "per_s": spread([units / item for item in seconds]),
        "each": spent.per(units * len(seconds)),
    }


async def _server(dsn: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(_SERVER)
    finally:
        await connection.close()
    assert row is not None, "the server told nothing"
    return dict(row)
