"""Checks of rows that take for ever: a task whose time is over ends them, and leaves nothing."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from tests.support.attempting import attempt
from tests.support.buckets import account_of, open_bucket
from tests.support.servers import S3Server
from tests.support.working import Bench, bench

ENDLESS = {
    "predicate": "list_sum(list_transform(range(1000000), lambda x: "
    "list_sum(list_transform(range(3000), lambda y: x + y)))) > id"
}
QUERY = "SELECT 1 AS id UNION ALL SELECT 2"


@pytest.fixture
async def worker(tmp_path: Path, database: str, s3: S3Server) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path / "work"), postgres_connections_max=1) as opened:
        await opened.put_credential("db", {"dsn": database})
        await opened.put_credential("lake", account_of(s3), kind="s3")
        yield opened


def build_task(kind: str, s3: S3Server) -> tuple[str, dict[str, Any]]:
    """Build a task whose rows are checked in one of the ways."""
    plain = {"path": f"s3://{s3.bucket}/endless/in.csv", "auth": "lake", "schema": "infer"}
    source = {**plain, "expect": ENDLESS}
    target = {"path": f"s3://{s3.bucket}/endless/{kind}/", "auth": "lake"}
    checked_target = {**target, "expect": ENDLESS}
    file_target = {"type": "file", "uri": "out.ndjson"}
    rows = {"type": "data", "data": [{"id": 1}]}
    memory = {"database": ":memory:"}
    tasks: dict[str, tuple[str, dict[str, Any]]] = {
        "input": ("duckdb", {"query": "SELECT * FROM o", "inputs": {"o": source}, **memory}),
        "output": ("duckdb", {"query": QUERY, "sink": checked_target, **memory}),
        "query": ("postgres", {"query": QUERY, "sink": checked_target}),
        "source": ("transfer", {"source": source, "target": file_target}),
        "whole": ("transfer", {"source": source, "target": target}),
        "dataset": ("transfer", {"source": plain, "target": checked_target}),
        "data": ("transfer", {"source": rows, "target": checked_target}),
        "duckdb": (
            "transfer",
            {"source": {"type": "duckdb", "query": QUERY}, "target": checked_target},
        ),
        "postgres": (
            "transfer",
            {
                "source": {"type": "postgres", "auth": "db", "query": QUERY},
                "target": checked_target,
            },
        ),
    }
    return tasks[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("input", "output", "query"),
        *("source", "whole", "dataset", "data", "duckdb", "postgres"),
    ],
)
async def test_a_task_whose_time_is_over_ends_its_checks(
    worker: Bench, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    obstore.put(open_bucket(s3), "endless/in.csv", b"id\n1\n2\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    tool, fields = build_task(kind, s3)
    auth = "db" if tool == "postgres" else None
    async with asyncio.timeout(120):
        outcome = await attempt(worker, tool, fields, auth=auth, timeout_s=2)
    assert outcome.error is not None, outcome.data
    assert outcome.error.kind == "timeout"
    assert [path.name for path in temporary.iterdir() if "checks" in path.name] == []
