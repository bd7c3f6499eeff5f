"""Exact numbers and moments from PostgreSQL through DuckDB: as the server has them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.working import Bench, bench, command_of

from noetl_contracts.commands.command_work import StepResult
from noetl_contracts.requests.facts import CommandCompleted

READ = """
  - step: read
    tool:
      kind: postgres
      auth: pg
      query: >-
        SELECT n::numeric(10,2) AS amount, 9007199254740993::bigint AS big,
        '2026-03-29 01:30:00+00'::timestamptz AS seen_at FROM (VALUES (0.1), (0.2)) AS t(n)
"""
ADD = """
  - step: add
    tool:
      kind: duckdb
      database: ":memory:"
      inputs: {t: "{{ %s }}"}
      query: >-
        SELECT CAST(sum(amount) AS VARCHAR) AS total, max(big) AS big,
        typeof(max(seen_at)) AS seen_type FROM t
"""


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("pg", {"dsn": database})
        yield found


async def completed(worker: Bench, step: str, **fields: Any) -> CommandCompleted:
    fact = (await worker.run(command_of(step, **fields)))[-1]
    assert isinstance(fact, CommandCompleted), fact
    return fact


STORED = [f"{{inline_max_bytes: 0, format: {form}}}" for form in ("json", "arrow", "parquet")]
WAYS = [
    *((passed, None) for passed in ("read", "read.data", "read.rows")),
    *((p, kept) for kept in STORED for p in ("read", "read.data", "read.rows", "read._ref")),
]


@pytest.mark.parametrize(("passed", "kept"), WAYS)
async def test_a_decimal_a_long_integer_and_a_moment_stay_what_they_are(
    worker: Bench, passed: str, kept: str | None
) -> None:
    output = "" if kept is None else f"      output: {kept}\n"
    read = await completed(worker, READ + output)
    step_result = StepResult(status="ok", result=read.result)
    add = await completed(worker, ADD % passed, steps={"read": step_result})
    (row,) = (await worker.value(add.result))["rows"]
    assert row == {
        "total": "0.30",
        "big": 9007199254740993,
        "seen_type": "TIMESTAMP WITH TIME ZONE",
    }
