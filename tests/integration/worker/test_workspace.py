"""Files between steps: a relative name is the same file on every worker of an execution."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.attempting import attempt, data_of, site_of
from tests.support.polling import eventually
from tests.support.processes import count_running, make_nap
from tests.support.working import Bench, bench

from noetl_contracts.execution_files import FileSource
from noetl_storage.payloads.memory import MemoryPayloads

pytestmark = pytest.mark.integration


@asynccontextmanager
async def workers(count: int, **settings: Any) -> AsyncIterator[list[Bench]]:
    """Workers that share a payload store and nothing else."""
    store = MemoryPayloads()
    async with asyncio.timeout(120):
        if count == 1:
            async with bench(store=store, shell_allowed=True, **settings) as one:
                yield [one]
            return
        async with (
            bench(store=store, shell_allowed=True, **settings) as one,
            bench(store=store, shell_allowed=True, **settings) as other,
        ):
            yield [one, other]


def python(code: str) -> dict[str, Any]:
    return {"code": code}


def step(name: str, activation: int = 1, **fields: Any) -> Any:
    return site_of(step=name, activation=activation, **fields)


async def test_a_duckdb_file_is_the_same_for_every_worker() -> None:
    async with workers(2) as (item, other):
        create = {"database": "sales.duckdb", "query": "CREATE TABLE sales AS SELECT 1 AS id"}
        await data_of(item, "duckdb", create, at=step("create", 1))
        for number in range(10):
            worker = (item, other)[number % 2]
            fill = {
                "database": "sales.duckdb",
                "query": "INSERT INTO sales VALUES ($1)",
                "params": [number],
            }
            await data_of(worker, "duckdb", fill, at=step("fill", 2, unit=f"item-{number}"))
        count = {"database": "sales.duckdb", "query": "SELECT count(*) AS n FROM sales"}
        found = await data_of(item, "duckdb", count, at=step("count", 3))
    assert found["rows"] == [{"n": 11}]


async def test_the_database_of_the_execution_is_shared_too() -> None:
    async with workers(2) as (item, other):
        await data_of(item, "duckdb", {"query": "CREATE TABLE t AS SELECT 7 AS a"}, at=step("a", 1))
        found = await data_of(other, "duckdb", {"query": "SELECT a FROM t"}, at=step("b", 2))
    assert found["rows"] == [{"a": 7}]


async def test_an_attempt_that_is_sent_again_does_its_work_once() -> None:
    async with workers(2) as (item, other):
        create = {"database": "d.duckdb", "query": "CREATE TABLE t (a INTEGER)"}
        await data_of(item, "duckdb", create, at=step("create", 1))
        insert = {"database": "d.duckdb", "query": "INSERT INTO t VALUES (1) RETURNING a"}
        first = await data_of(item, "duckdb", insert, at=step("fill", 2), visit=1)
        again = await data_of(other, "duckdb", insert, at=step("fill", 2), visit=1)
        count = {"database": "d.duckdb", "query": "SELECT count(*) AS n FROM t"}
        found = await data_of(other, "duckdb", count, at=step("count", 3))
    assert first["rows"] == again["rows"] == [{"a": 1}]
    assert found["rows"] == [{"n": 1}]


async def test_python_reads_and_extends_the_file_of_an_earlier_step() -> None:
    async with workers(2) as (item, other):
        write = python("open('log.txt', 'w').write('a'); return 1")
        extend = python("open('log.txt', 'a').write('b'); return open('log.txt').read()")
        await data_of(item, "python", write, at=step("write", 1))
        for worker in (other, item):
            found = await data_of(worker, "python", extend, at=step("extend", 2), visit=1)
            assert found == "ab"
        read = python("return open('log.txt').read()")
        assert await data_of(item, "python", read, at=step("read", 3)) == "ab"


async def test_a_failed_attempt_leaves_no_file() -> None:
    async with workers(1) as (item,):
        write = python("open('a.txt', 'w').write('whole'); return 1")
        await data_of(item, "python", write, at=step("write", 1))
        spoil = python("open('a.txt', 'w').write('ha'); open('b.txt', 'w'); raise ValueError('x')")
        failed = await attempt(item, "python", spoil, at=step("spoil", 2))
        assert failed.error is not None
        look = python("import os; return [sorted(os.listdir('.')), open('a.txt').read()]")
        assert await data_of(item, "python", look, at=step("look", 3)) == [["a.txt"], "whole"]


async def test_a_removed_file_is_gone_for_later_steps() -> None:
    async with workers(2) as (item, other):
        await data_of(item, "python", python("open('a', 'w'); return 1"), at=step("make", 1))
        await data_of(other, "shell", {"cmds": "rm a"}, at=step("remove", 2))
        look = python("import os; return os.listdir('.')")
        assert await data_of(item, "python", look, at=step("look", 3)) == []


async def test_every_tool_sees_the_same_files() -> None:
    async with workers(2) as (item, other):
        copy = {
            "database": ":memory:",
            "query": "COPY (SELECT range AS id FROM range(3)) TO 'out/rows.csv' (HEADER)",
        }
        await data_of(item, "shell", {"cmds": "mkdir out && touch out/keep"}, at=step("mkdir", 1))
        await data_of(item, "duckdb", copy, at=step("copy", 2))
        shown = await data_of(other, "shell", {"cmds": "cat out/rows.csv"}, at=step("show", 3))
        assert shown["stdout"].split() == ["id", "0", "1", "2"]
        got = {"action": "get", "uri": "out/rows.csv", "format": "csv"}
        found = await data_of(other, "artifact", got, at=step("get", 4))
        assert [int(row["id"]) for row in found["data"]["rows"]] == [0, 1, 2]
        moved = {
            "source": {"type": "file", "uri": "out/rows.csv"},
            "target": {"type": "file", "uri": "out/rows.parquet"},
        }
        await data_of(item, "transfer", moved, at=step("move", 5))
        query = {
            "database": ":memory:",
            "inputs": {"t": {"path": "out/rows.parquet"}},
            "query": "SELECT count(*) AS n FROM t",
        }
        assert (await data_of(other, "duckdb", query, at=step("q", 6)))["rows"] == [{"n": 3}]


async def test_a_folder_of_parquet_parts_travels() -> None:
    async with workers(2) as (item, other):
        write = (
            "COPY (SELECT range AS id, range % 3 AS p FROM range(30)) TO 'parts' "
            "(FORMAT parquet, PARTITION_BY (p))"
        )
        await data_of(item, "duckdb", {"database": ":memory:", "query": write}, at=step("a", 1))
        read = "SELECT count(*) AS n, count(DISTINCT p) AS p FROM read_parquet('parts/*/*.parquet')"
        found = await data_of(
            other, "duckdb", {"database": ":memory:", "query": read}, at=step("b", 2)
        )
    assert found["rows"] == [{"n": 30, "p": 3}]


async def test_a_sqlite_database_travels() -> None:
    insert = python(
        "import sqlite3\n"
        "db = sqlite3.connect('app.db')\n"
        "db.execute('create table if not exists t (a)')\n"
        "db.execute('insert into t values (1)')\n"
        "db.commit(); db.close(); return 1"
    )
    async with workers(2) as (item, other):
        for number in range(6):
            at = step("fill", 1, unit=f"item-{number}")
            await data_of((item, other)[number % 2], "python", insert, at=at)
        count = python(
            "import sqlite3; c = sqlite3.connect('app.db'); "
            "return c.execute('select count(*) from t').fetchone()[0]"
        )
        assert await data_of(item, "python", count, at=step("count", 2)) == 6


async def test_two_writers_of_one_file_are_told_of_each_other(tmp_path: Path) -> None:
    nap, go = make_nap(), tmp_path / "go"
    slow = python(
        "import os, subprocess, time\n"
        "open('a.txt', 'w').write('slow')\n"
        f"subprocess.Popen(['/bin/sleep', '{nap}'])\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "return 1"
    )

    async def has_begun() -> bool:
        return count_running(nap) == 1

    quick = python("open('a.txt', 'w').write('quick'); return 1")
    async with workers(2, task_folders=(str(tmp_path),)) as (item, other):
        waiting = asyncio.create_task(attempt(item, "python", slow, at=step("slow", 1)))
        await eventually(has_begun)
        await data_of(other, "python", quick, at=step("quick", 2))
        go.touch()
        refused = await waiting
        assert refused.error is not None
        assert refused.error.kind == "file_conflict"
        assert "step 'quick'" in refused.error.message
        assert "step 'slow'" in refused.error.message
        read = python("return open('a.txt').read()")
        assert await data_of(item, "python", read, at=step("read", 3)) == "quick"


async def test_two_writers_of_one_database_both_end_in_it() -> None:
    async with workers(2) as found:
        create = {"database": "d.duckdb", "query": "CREATE TABLE t (a INTEGER)"}
        await data_of(found[0], "duckdb", create, at=step("create", 1))
        await asyncio.gather(
            *(
                data_of(
                    found[number % 2],
                    "duckdb",
                    {
                        "database": "d.duckdb",
                        "query": "INSERT INTO t VALUES ($1)",
                        "params": [number],
                    },
                    at=step("fill", 2, unit=f"item-{number}"),
                )
                for number in range(12)
            )
        )
        count = {"database": "d.duckdb", "query": "SELECT count(DISTINCT a) AS n FROM t"}
        assert (await data_of(found[1], "duckdb", count, at=step("count", 3)))["rows"] == [
            {"n": 12}
        ]


async def test_a_rerun_sees_the_files_as_its_first_step_saw_them() -> None:
    async with workers(2) as (item, other):
        create = {"database": "d.duckdb", "query": "CREATE TABLE t AS SELECT 1 AS a"}
        insert = {"database": "d.duckdb", "query": "INSERT INTO t VALUES (2)"}
        count = {"database": "d.duckdb", "query": "SELECT count(*) AS n FROM t"}
        await data_of(item, "duckdb", create, at=step("create", 1))
        await data_of(item, "duckdb", insert, at=step("fill", 2))
        again = {
            "execution_id": "777",
            "file_sources": (FileSource(execution_id=site_of().execution_id, before_activation=2),),
        }
        await data_of(other, "duckdb", insert, at=step("fill", 1, **again))
        found = await data_of(other, "duckdb", count, at=step("count", 2, **again))
        assert found["rows"] == [{"n": 2}]
        found = await data_of(item, "duckdb", count, at=step("count", 3))
        assert found["rows"] == [{"n": 2}]


async def test_an_organizations_file_outlives_the_execution(tmp_path: Path) -> None:
    async with workers(2, work_directory=str(tmp_path)) as (item, other):
        create = {"database": "noetl://files/s.duckdb", "query": "CREATE TABLE t AS SELECT 5 AS a"}
        await data_of(item, "duckdb", create, at=step("create", 1))
        read = {"database": "noetl://files/s.duckdb", "query": "SELECT a FROM t"}
        found = await data_of(other, "duckdb", read, at=step("read", 1, execution_id="778"))
    assert found["rows"] == [{"a": 5}]


async def test_an_organizations_file_is_refused_where_none_can_last() -> None:
    async with workers(1) as (item,):
        read = {"database": "noetl://files/s.duckdb", "query": "SELECT 1"}
        refused = await attempt(item, "duckdb", read, at=step("read", 1))
    assert refused.error is not None
    assert "NOETL_WORKER_WORK_DIRECTORY" in refused.error.message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.symlink('/etc/passwd', 'a'); return 1", "link"),
        ("import os; os.mkfifo('a'); return 1", "device"),
        ("import os; os.makedirs('.noetl'); open('.noetl/a', 'w'); return 1", "engine"),
    ],
)
async def test_what_cannot_be_kept_is_refused(code: str, words: str) -> None:
    async with workers(1) as (item,):
        refused = await attempt(item, "python", python(code), at=step("odd", 1))
        assert refused.error is not None
        assert words in refused.error.message
        look = python("import os; return os.listdir('.')")
        assert await data_of(item, "python", look, at=step("look", 2)) == []


async def test_more_files_than_an_execution_keeps_are_refused() -> None:
    async with workers(1, workspace_files_max=2, workspace_bytes_max=100) as (item,):
        many = python("[open(str(n), 'w') for n in range(3)]; return 1")
        large = python("open('a', 'w').write('x' * 101); return 1")
        for code in (many, large):
            refused = await attempt(item, "python", code, at=step("much", 1))
            assert refused.error is not None
            assert refused.error.kind == "limit"


async def test_a_large_file_changes_by_its_chunks() -> None:
    make = python("open('big', 'wb').write(bytes(range(256)) * 8192); return 1")
    change = python(
        "f = open('big', 'r+b'); f.seek(1_000_000); f.write(b'changed'); f.close(); return 1"
    )
    read = python(
        "d = open('big', 'rb').read(); "
        "return [len(d), d[1_000_000:1_000_007].decode(), d[:3].hex(), d[-3:].hex()]"
    )
    async with workers(2) as (item, other):
        await data_of(item, "python", make, at=step("make", 1))
        await data_of(other, "python", change, at=step("change", 2))
        found = await data_of(item, "python", read, at=step("read", 3))
    assert found == [2_097_152, "changed", "000102", "fdfeff"]
