"""What a run left in the ledger, as counts."""

import asyncio
from typing import Any

import asyncpg
from tests.support.stack import Stack

_COUNTS = """
SELECT event_type, count(*) AS events,
       COALESCE(sum((context->>'row_count')::integer)
           FILTER (WHERE event_type = 'frame.committed'), 0) AS rows
FROM noetl.event WHERE execution_id = $1 GROUP BY event_type
"""


def history(stack: Stack, execution_id: str) -> dict[str, Any]:
    """Events in all, frames, events a frame, events about commands."""
    rows = asyncio.run(_rows(stack.url("postgres_reader"), int(execution_id)))
    counts = {row["event_type"]: row["events"] for row in rows}
    frames = counts.get("frame.committed", 0)
    of_frames = sum(count for name, count in counts.items() if name.startswith("frame."))
    return {
        "events": sum(counts.values()),
        "frames": frames,
        "rows_per_frame": round(sum(row["rows"] for row in rows) / frames, 1) if frames else None,
        "frame_events_per_frame": round(of_frames / frames, 2) if frames else None,
        "command_events": sum(n for name, n in counts.items() if name.startswith("command.")),
    }


async def _rows(dsn: str, execution_id: int) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(_COUNTS, execution_id)
    finally:
        await connection.close()
