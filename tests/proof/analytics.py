"""Statistics on Spark of what a whole PFT run has fetched, held against the same in SQL."""

import asyncio
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet
from msgspec import convert
from tests.proof import running
from tests.support import pft
from tests.support.stack import Stack, running_stack

from noetl_contracts import codec, spread_table
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads.factory import open_payloads

FACILITIES, PATIENTS = 10, 1000
PLAYBOOK = Path(__file__).parents[2] / "examples/pft-analytics.yaml"
COLUMNS = ("facility", "domain", "pages", "total", "low", "high", "mean")
# The same figures by the database itself, over the tables that the run has filled.
EXPECTED = """
SELECT coalesce(facility_name, 'all') AS facility, coalesce(domain, 'all') AS domain, count(*) AS pages,
  sum(value) AS total, min(value) AS low, max(value) AS high, round(sum(value)::numeric / count(*), 3) AS mean
FROM (
  SELECT domain, facility_mapping_id, (payload -> 'data' -> 0 ->> 'value')::int AS value
  FROM (
    SELECT 'assessments' AS domain, facility_mapping_id, payload FROM pft_test_patient_assessments
    UNION ALL SELECT 'conditions', facility_mapping_id, payload FROM pft_test_patient_conditions
    UNION ALL SELECT 'medications', facility_mapping_id, payload FROM pft_test_patient_medications
    UNION ALL SELECT 'vital_signs', facility_mapping_id, payload FROM pft_test_patient_vital_signs
  ) each
) fetched JOIN pft_test_facilities USING (facility_mapping_id)
GROUP BY CUBE (facility_name, domain)
"""

Row = tuple[Any, ...]


def prove(folder: Path) -> dict[str, Any]:
    """Run PFT B, then the example over its tables; compare what it saved, row by row."""
    with running_stack(folder / "stack", "--workers", "1", "--no-s3") as stack:
        pft.prepare(stack)
        running.keep(stack, "main_db", stack.url("target"))
        with pft.fixture(folder) as served:
            run = pft.start(stack, served, variant="b", facilities=FACILITIES, patients=PATIENTS)
            run.wait(running.PATIENCE_S)
            run.verify()
        path = running.register(stack, PLAYBOOK.read_text())
        ran = [running.run(stack, path) for _ in ("cold", "warm")]
        wanted = asyncio.run(_rows(stack, EXPECTED))
        saved = asyncio.run(_rows(stack, f"SELECT {', '.join(COLUMNS)} FROM pft_statistics"))  # noqa: S608 - our own words
        stored, parts = asyncio.run(_parquet(stack, ran[-1].execution_id))
    assert len(wanted) == (FACILITIES + 1) * 5
    assert saved == wanted
    assert stored == wanted
    return {
        "facilities": FACILITIES,
        "patients": PATIENTS,
        "pages": max(row[2] for row in wanted),
        "rows": len(wanted),
        "parquet_parts": parts,
        "cold": _figures(ran[0]),
        "warm": _figures(ran[1]),
    }


def _figures(ran: running.Ran) -> dict[str, Any]:
    return {name: getattr(ran, name) for name in ("seconds", "cpu_s", "memory_mib")}


async def _rows(stack: Stack, query: str) -> list[Row]:
    db = await asyncpg.connect(stack.url("target"))
    try:
        return _sorted([tuple(row) for row in await db.fetch(query)])
    finally:
        await db.close()


async def _parquet(stack: Stack, execution_id: str) -> tuple[list[Row], int]:
    """Read the stored table as anybody would who has only its files."""
    db = await asyncpg.connect(stack.url("postgres_reader"))
    try:
        kept = await db.fetchval(
            "SELECT result FROM noetl.event WHERE execution_id = $1 AND event_type = 'call.done'"
            " AND node_name = 'table'",
            int(execution_id),
        )
    finally:
        await db.close()
    ref = convert(codec.decode_json(kept.encode())["reference"], PayloadRef)
    async with open_payloads(stack.url("payloads")) as store:
        found = spread_table.find_spread_table(
            codec.decode_json(await store.read_payload(ref)), owner=ref
        )
        assert found is not None
        parts = [await store.read_payload(part) for part in found.parts]
    rows: list[Row] = []
    for part in parts:
        table = pa.parquet.read_table(io.BytesIO(part))
        rows += [tuple(row[name] for name in COLUMNS) for row in table.to_pylist()]
    return _sorted(rows), len(parts)


def _sorted(rows: list[Row]) -> list[Row]:
    # A stored table has the mean as a number of JSON.
    return sorted((*row[:-1], Decimal(str(row[-1]))) for row in rows)


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    return f"""`examples/pft-analytics.yaml` over the tables that PFT B has filled, verified, at {found["facilities"]} facilities x \
{found["patients"]:,} patients: a shard for each
facility reads its {found["pages"] // found["facilities"]:,} pages on Spark, a reduce makes one table of {found["rows"]} rows, which is saved in PostgreSQL and as Parquet
({found["parquet_parts"]} parts). Both hold exactly what the database computes itself from {found["pages"]:,} pages in SQL.

With Spark's session still to be started:

{running.costs(found["cold"])}
With a warm session:

{running.costs(found["warm"])}"""
