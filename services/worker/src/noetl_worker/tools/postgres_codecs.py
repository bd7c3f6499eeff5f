"""How a connection's client reads and writes PostgreSQL's values.

The client's own forms of dates, times, timestamps and intervals are Python's, which have no
infinity, no year 10000 and no months. These codecs take PostgreSQL's numbers instead, so the same
value has the same JSON form wherever it stands: in a column, an array, a range or a composite.
"""

from collections.abc import Callable
from typing import Any

import asyncpg

from noetl_worker.tools.postgres_intervals import read_interval, write_interval
from noetl_worker.tools.postgres_moments import (
    read_date,
    read_time,
    read_timestamp,
    read_timestamptz,
    read_timetz,
    write_date,
    write_time,
    write_timestamp,
    write_timetz,
)

_CODECS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "date": (write_date, read_date),
    "timestamp": (write_timestamp, read_timestamp),
    "timestamptz": (write_timestamp, read_timestamptz),
    "time": (write_time, read_time),
    "timetz": (write_timetz, read_timetz),
    "interval": (write_interval, read_interval),
}


async def set_codecs(connection: "asyncpg.Connection[Any]") -> None:
    """Let a connection pass these types as their exact values; no statement is sent."""
    for name, (encoder, decoder) in _CODECS.items():
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="tuple"
        )
