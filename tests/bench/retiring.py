"""Histories on their way out of the ledger: written, read back, and deleted."""

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.auditing import PATIENCE_S, TOGETHER, keep_many, slices
from tests.support.retaining import archivist, make_partition
from tests.support.servers import PostgresServer, postgres_server
from tests.support.storage import a_fence, migrated, postgres_stores

from noetl_storage.archive.archivist import Progress
from noetl_storage.payloads.open import open_payloads
from noetl_storage.postgres.audit import PostgresLedgerAudit
from noetl_storage.postgres.retention import PostgresRetention

EXECUTIONS = 2_500
COUNT = "select count(*) from noetl.event"


def measure(*, executions: int = EXECUTIONS) -> dict[str, Any]:
    """Fill a ledger with histories that are over, and let one archivist take all of them."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder) / "server", is_durable=True) as server,
    ):
        store = Path(folder) / "store"
        store.mkdir()
        return asyncio.run(_retire(server, store.as_uri(), executions))


async def _retire(server: PostgresServer, url: str, executions: int) -> dict[str, Any]:
    dsn = await server.create_database("retiring")
    left: list[Progress] = []
    async with migrated(dsn) as database, open_payloads(url) as payloads:
        await make_partition(database)
        stores = postgres_stores(database)
        fence = await a_fence(stores, lease_s=PATIENCE_S)
        for some in slices(range(executions), TOGETHER):
            await keep_many(stores, fence, some)
        await database.execute("analyze")
        ((events,),) = await database.fetch(COUNT)
        leaving = archivist(
            PostgresRetention(database), PostgresLedgerAudit(database), payloads, can_delete=True
        )
        began, began_cpu = time.perf_counter(), sum(os.times()[:2])
        await leaving.run(left.append)
        seconds = time.perf_counter() - began
        cpu_s = sum(os.times()[:2]) - began_cpu
        ((rest,),) = await database.fetch(COUNT)
    assert not rest, left[-1]
    return {
        "executions": executions,
        "events": events,
        "seconds": round(seconds, 3),
        "events_per_s": round(events / seconds),
        "archivist_cpu_us_per_event": round(cpu_s / events * 1e6, 1),
    }


def section(one: dict[str, Any]) -> str:
    """Write the figures for people."""
    return f"""## {one["executions"]:,} histories leave the ledger

| what | figure |
|---|---:|
| written to the archive, read back and deleted from the ledger by one archivist | {one["events_per_s"]:,} events/s |
| its CPU | {one["archivist_cpu_us_per_event"]} us an event |
"""
