"""Streams whose rows do not fit on the worker's disk: the error says so, and nothing stays open."""

import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.integration.worker.test_streams_of_rows import refused, step_with, streamed
from tests.support.files import nameless_files
from tests.support.working import Bench, bench

ROOM_BYTES = 200_000
REPEATED = "select repeat('x', 1000) as t from {rows}"
# What no compression makes fit.
MIXED = "select hash(i)::text || hash(i + 1)::text || hash(i + 2)::text as t from {rows}"
ROWS = {"duckdb": "range(20000) r(i)", "postgres": "generate_series(1, 20000) r(i)"}


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    async with bench() as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@contextmanager
def little_room() -> Iterator[None]:
    """Let no file of this process grow beyond a bound, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


CODE = "for i in range(20000):\n  yield {'t': 'x' * 1000}"
TOOLS: list[dict[str, Any]] = [
    {"kind": "duckdb", "database": ":memory:", "query": REPEATED.format(rows=ROWS["duckdb"])},
    {"kind": "duckdb", "database": ":memory:", "query": MIXED.format(rows=ROWS["duckdb"])},
    {"kind": "postgres", "auth": "db", "query": REPEATED.format(rows=ROWS["postgres"])},
    {"kind": "python", "code": CODE},
]


@pytest.mark.parametrize("tool", TOOLS, ids=["duckdb", "duckdb-mixed", "postgres", "python"])
async def test_a_stream_without_room_says_so(worker: Bench, tool: dict[str, Any]) -> None:
    before = nameless_files()
    with little_room():
        found = await streamed(worker, step_with({**tool, "stream": {"chunk_rows": 100}}))
    error = refused(found).error
    assert (error.kind, error.retryable) == ("storage_access", True), error
    assert "do not fit on the worker's disk" in error.message
    assert not nameless_files() - before


async def test_an_attempt_after_one_without_room_begins_anew(worker: Bench) -> None:
    rule = {"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3}}
    retried = {**TOOLS[0], "spec": {"policy": {"rules": [rule]}}, "stream": {"chunk_rows": 100}}
    with little_room():
        error = refused(await streamed(worker, step_with(retried))).error
    assert (error.kind, error.attempt) == ("storage_access", 3), error
