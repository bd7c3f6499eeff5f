"""A table read from the payload store and mapped from shared memory, in turn."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.storage import ORGANIZATION, TENANT
from tests.support.tiering import TierCounts, open_shared

from noetl_chassis.clock import SystemClock
from noetl_contracts.payloads import ARROW_MEDIA_TYPE
from noetl_storage.arrow import encoding
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.tiers.tiered_payloads import TieredPayloads

MEBIBYTE = 1024 * 1024
BATCHES, BATCH_ROWS = 32, MEBIBYTE
ROUNDS = 5


def measure(store_url: str, **keys: str) -> dict[str, Any]:
    """Return the milliseconds of both ways, medians of some rounds, and their ratio."""
    return asyncio.run(_measure(store_url, keys))


async def _measure(store_url: str, keys: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="noetl-bench-") as folder:
        shared = open_shared(Path(folder), clock=SystemClock(), bytes_max=512 * MEBIBYTE)
        async with open_payloads(store_url, **keys) as store:
            tiered = TieredPayloads(store, watch=TierCounts(), shared=shared)
            data = _table()
            ref = await tiered.put_payload(
                data, tenant_id=TENANT, organization_id=ORGANIZATION, media_type=ARROW_MEDIA_TYPE
            )

            async def from_store() -> Any:
                return encoding.read_table(await store.read_payload(ref))

            async def from_shared() -> Any:
                return await tiered.map_table(ref)

            seconds: dict[str, list[float]] = {"store": [], "shared": []}
            for _ in range(ROUNDS):
                seconds["store"].append(await _timed(from_store))
                seconds["shared"].append(await _timed(from_shared))
            await store.delete_payload(ref)
        shared.close()
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return {
        "megabytes": round(len(data) / MEBIBYTE),
        "store_ms": round(1000 * medians["store"], 1),
        "shared_ms": round(1000 * medians["shared"], 3),
        "ratio": round(medians["store"] / medians["shared"]),
    }


async def _timed(read: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    table = await read()
    seconds = time.perf_counter() - started
    assert table.num_rows == BATCHES * BATCH_ROWS
    return seconds


def _table() -> bytes:
    batch = pa.record_batch({"i": pa.array(range(BATCH_ROWS), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(BATCHES):
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
