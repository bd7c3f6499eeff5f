"""DuckDB queries that fail while their rows are read: told as DuckDB's errors, wherever they go."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.attempting import attempt
from tests.support.calls import call_of
from tests.support.working import Bench, bench

from noetl_contracts.errors import ErrorObject

LATE = "case when i = 90000 then {what} else 0 end as v from range(100000) r(i)"
FAILURES = {
    "ConversionException": "select " + LATE.format(what="(i::text || 'x')::int"),
    "InvalidInputException": "select " + LATE.format(what="error('no such day')"),
    "OutOfRangeException": "select " + LATE.format(what="(i * 9223372036854775807)"),
}


class Sink:
    """Takes every row."""

    window_rows = 10

    async def write_rows(self, rows: list[Any], columns: Any = ()) -> None:
        """Take them."""


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        yield found


async def failed(worker: Bench, way: str, query: str) -> ErrorObject | None:
    if way == "transfer":
        ends = {
            "source": {"type": "duckdb", "query": query},
            "target": {"type": "file", "uri": "a.csv"},
        }
        return (await attempt(worker, "transfer", ends)).error
    call = call_of("duckdb", {"query": f"select 1; {query}" if way == "several" else query})
    sink = Sink() if way == "stream" else None
    found = structs.replace(call, sink=sink, may_spread=way == "spread")
    return (await worker.tools.run(found)).error


@pytest.mark.parametrize("way", ["one", "several", "spread", "stream", "transfer"])
@pytest.mark.parametrize("kind", FAILURES)
async def test_a_query_that_fails_at_a_later_row_is_an_error_of_duckdb(
    worker: Bench, kind: str, way: str
) -> None:
    error = await failed(worker, way, FAILURES[kind])
    assert error is not None
    assert (error.kind, error.code, error.source) == ("db_error", "DUCKDB", "duckdb"), error
    assert (error.exception_type, error.retryable) == (kind, False)
    if way in ("one", "several"):
        assert error.details == {"statement": int(way == "several")}
