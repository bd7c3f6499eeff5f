"""How fast one execution is shown when the ledger is full: a million events, ten thousand runs."""

import asyncio
import random
import time
from typing import Any

import asyncpg
import httpx
from tests.bench.spread import share
from tests.support.stack import Stack

EXECUTIONS = 10_000
EVENTS_EACH = 100
ASKED = 2_000
# Of every execution its head, its row and its position agree, so that nobody mends anything.
FILL = """
insert into noetl.execution_head (execution_id, tenant_id, organization_id, version, checksum)
select $1::bigint + n, 'default', 'default', $3, 'c' from generate_series(1, $2::bigint) as n;
insert into noetl.projection_position (execution_id, shard_id, version)
select $1::bigint + n, 0, $3 from generate_series(1, $2::bigint) as n;
insert into noetl.execution (
    execution_id, tenant_id, organization_id, path, status, version, envelope_checksum, workload,
    variables, started_at, updated_at, ended_at
)
select
    $1::bigint + n, 'default', 'default', 'bench/full', 'COMPLETED', $3, 'c', '{"n": 1}',
    '{"total": 12}', now(), now(), now()
from generate_series(1, $2::bigint) as n;
insert into noetl.event (
    event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,
    aggregate_id, event_type, schema_name, schema_version, event_time, producer, context,
    envelope_checksum
)
select
    $1::bigint + n * 4096 + v, $1::bigint + n, v, 'default', 'default', 'execution/' || n,
    'execution', n::text, 'step.enter', 'noetl.step.enter', 1, now(), 'bench',
    '{"step": "one", "run_id": "1", "activation": 1}', repeat('0', 64)
from generate_series(1, $2::bigint) as n, generate_series(1, $3::bigint) as v;
"""
# As a ledger is that took a million events over time: the first to read a row marks it as committed,
# which writes its page again.
SETTLE = (
    "vacuum (analyze) noetl.event",
    "vacuum (analyze) noetl.execution, noetl.execution_head, noetl.projection_position",
)
FLOOR = "select * from noetl.execution where execution_id = $1"


def measure(
    stack: Stack, *, executions: int = EXECUTIONS, events_each: int = EVENTS_EACH
) -> dict[str, Any]:
    """Fill the ledger and ask for executions by lot, through the API and of the database itself."""
    first = asyncio.run(_fill(stack.url("postgres"), executions, events_each))
    lot = random.Random(executions)
    asked = [first + lot.randint(1, executions) for _ in range(ASKED)]
    proof = stack.owner_headers
    with httpx.Client(base_url=stack.url("api"), headers=proof, timeout=30) as client:
        shown = [_timed_ms(client, execution_id) for execution_id in asked]
    floor = asyncio.run(_floor_ms(stack.url("postgres"), asked))
    return {
        "executions": executions,
        "events": executions * events_each,
        "asked": ASKED,
        **{f"api_{name}_ms": round(share(shown, part), 2) for name, part in _SHARES.items()},
        **{f"query_{name}_ms": round(share(floor, part), 2) for name, part in _SHARES.items()},
    }


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


async def _fill(dsn: str, executions: int, events_each: int) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        first = await connection.fetchval("select noetl.snowflake_floor(now() - interval '1 s')")
        numbers = {"$1": str(first), "$2": str(executions), "$3": str(events_each)}
        statements = FILL
        for parameter, number in numbers.items():
            statements = statements.replace(parameter, number)
        async with connection.transaction():
            await connection.execute(statements)
        for statement in SETTLE:
            await connection.execute(statement)
        return int(first)
    finally:
        await connection.close()


def _timed_ms(client: httpx.Client, execution_id: int) -> float:
    began = time.perf_counter()
    answer = client.get(f"/api/executions/{execution_id}")
    took = (time.perf_counter() - began) * 1000
    assert answer.json()["status"] == "COMPLETED", answer.text
    return took


async def _floor_ms(dsn: str, asked: list[int]) -> list[float]:
    connection = await asyncpg.connect(dsn)
    try:
        found = []
        for execution_id in asked:
            began = time.perf_counter()
            await connection.fetchrow(FLOOR, execution_id)
            found.append((time.perf_counter() - began) * 1000)
        return found
    finally:
        await connection.close()
