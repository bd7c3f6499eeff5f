"""Histories on their way out of the ledger: written, read back, and deleted."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from tests.bench.auditing import PATIENCE_S, TOGETHER, keep_many, slices
from tests.bench.page_workloads import told
from tests.bench.spread import spread
from tests.support.retaining import archivist, make_partition
from tests.support.servers import PostgresServer, postgres_server
from tests.support.storage import a_fence, migrated, postgres_stores

from noetl_chassis.lifecycle import tune_garbage_collector
from noetl_storage.archive import parquet
from noetl_storage.archive.archivist import UnitProgress
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.retention import PostgresRetention

EXECUTIONS = 2_500
ROUNDS = 5
COUNT = "select count(*) from noetl.event"


def measure(*, executions: int = EXECUTIONS) -> dict[str, Any]:
    """Fill a ledger with histories that are over, and let one archivist take all of them."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder) / "server", is_durable=True) as server,
    ):
        # What a service does as it starts, and loads with the first part that it writes.
        tune_garbage_collector()
        assert parquet.SCHEMA
        stores = [Path(folder) / f"retiring_{number}" for number in range(ROUNDS)]
        for store in stores:
            store.mkdir()
        rounds = [uvloop.run(_retire(server, store, executions)) for store in stores]
    return {
        "executions": executions,
        "rounds": ROUNDS,
        "events": int(rounds[0]["events"]),
        **{
            name: spread([item[name] for item in rounds])
            for name in ("events_per_s", "archivist_cpu_us_per_event")
        },
    }


async def _retire(server: PostgresServer, store: Path, executions: int) -> dict[str, float]:
    """Fill a database and empty it into a store, both of this round's own."""
    dsn = await server.create_database(store.name)
    left: list[UnitProgress] = []
    async with migrated(dsn) as database, open_payloads(store.as_uri()) as payloads:
        await make_partition(database)
        stores = postgres_stores(database)
        fence = await a_fence(stores, lease_s=PATIENCE_S)
        for some in slices(range(executions), TOGETHER):
            await keep_many(stores, fence, some)
        await database.execute_statement("analyze")
        ((events,),) = await database.fetch_rows(COUNT)
        leaving = archivist(
            PostgresRetention(database), PostgresLedgerAudit(database), payloads, can_delete=True
        )
        began, began_cpu = time.perf_counter(), sum(os.times()[:2])
        await leaving.archive_all_due(left.append)
        seconds = time.perf_counter() - began
        cpu_s = sum(os.times()[:2]) - began_cpu
        ((rest,),) = await database.fetch_rows(COUNT)
    assert not rest, left[-1]
    return {
        "events": events,
        "events_per_s": round(events / seconds),
        "archivist_cpu_us_per_event": round(cpu_s / events * 1e6, 1),
    }


def section(one: dict[str, Any]) -> str:
    """Write the figures for people."""
    return f"""## {one["executions"]:,} histories leave the ledger

| what | figure |
|---|---:|
| written to the archive, read back and deleted from the ledger by one archivist | {told(one["events_per_s"])} events/s |
| its CPU | {told(one["archivist_cpu_us_per_event"])} us an event |
"""
