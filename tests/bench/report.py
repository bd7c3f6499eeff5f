"""Where figures are kept, and what has to be known of the machine and the servers that gave them."""

import asyncio
import platform
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psutil
from tests.bench import plots
from tests.bench.page import page
from tests.support.stack import Stack

from noetl_cli.stack.servers.nats import SYNC_INTERVAL

BENCHMARKS = Path("benchmarks")
JSON_FILE = BENCHMARKS / "benchmarks.json"
COMPARISON_FILE = BENCHMARKS / "benchmarks-comparison.json"
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")


def read() -> dict[str, Any]:
    """Return what was kept."""
    return msgspec.json.decode(JSON_FILE.read_bytes()) if JSON_FILE.exists() else {}


def write(found: dict[str, Any]) -> None:
    """Keep the figures, the page and its plots."""
    JSON_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    (BENCHMARKS / "benchmarks.md").write_text(page(found))
    for name, drawing in plots.draw(found).items():
        (BENCHMARKS / name).write_bytes(drawing)


def keep_comparison(found: dict[str, Any]) -> None:
    """Keep what two commits gave."""
    COMPARISON_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def machine() -> dict[str, Any]:
    """Say on what the run is."""
    return {
        "machine": {
            "cores": psutil.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30),
            "python": platform.python_version(),
            "system": platform.platform(),
        }
    }


def durability(stack: Stack) -> dict[str, str]:
    """Say what the servers promise while they are measured."""
    return {**asyncio.run(_settings(stack.url("postgres"))), "sync_interval": SYNC_INTERVAL}


async def _settings(dsn: str) -> dict[str, str]:
    connection = await asyncpg.connect(dsn)
    try:
        return {
            name: str(await connection.fetchval("SELECT current_setting($1)", name))
            for name in SETTINGS
        }
    finally:
        await connection.close()
