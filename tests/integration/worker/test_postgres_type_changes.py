"""A column changes its type between two runs of one text, or during one: no old type is used."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.parquet
import pytest
from msgspec import structs
from tests.support.attempting import data_of, files_of, of_organization
from tests.support.calls import call_of
from tests.support.working import Bench, bench

from noetl_playbook.model.playbook import Output
from noetl_worker.tools.calls.call import Outcome
from noetl_worker.tools.postgres import postgres_session

QUERY = "select v from t"
START = "create table t as select 7::int8 as v"
CHANGES = {
    "altered": (START, "alter table t alter v type float8 using 1.5"),
    "made again": (START, "drop table t; create table t as select 1.5::float8 as v"),
    # A schema of the user's name comes before `public`.
    "another search path": (
        START,
        """
        create schema authorization current_user;
        do 'begin execute format(''create table %I.t as select 1.5::float8 as v'', user); end'
        """,
    ),
    "another view": (
        "create view t as select 7::int8 as v",
        "drop view t; create view t as select 1.5::float8 as v",
    ),
}
DATABASE = {"type": "postgres", "auth": "db", "query": QUERY}


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    files_of(tmp_path)
    # All runs use one connection.
    async with bench(work_directory=str(tmp_path), postgres_connections_max=1) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture
async def db(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    await connection.execute("create table public.target (v text)")
    yield connection
    await connection.close()


class Rows:
    """Takes a stream's rows; `at_first` runs when the first of them come."""

    window_rows = 100

    def __init__(self, at_first: Callable[[], Awaitable[None]] | None = None) -> None:
        self.rows: list[Any] = []
        self._at_first = at_first

    async def write_rows(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        self.rows += rows
        if rows and self._at_first is not None:
            at_first, self._at_first = self._at_first, None
            await at_first()


async def outcome_of(worker: Bench, query: str, **about: Any) -> Outcome:
    fields = {"query": query, **about.pop("fields", {})}
    call = call_of("postgres", fields, auth="db", timeout_s=60)
    return await worker.tools.run(structs.replace(call, **about))


async def read_by_tool(worker: Bench, folder: Path) -> Any:
    return (await data_of(worker, "postgres", {"query": QUERY}, auth="db"))["rows"][0]["v"]


async def read_together(worker: Bench, folder: Path) -> Any:
    query = f"select 1 as one; {QUERY}"
    return (await data_of(worker, "postgres", {"query": query}, auth="db"))["rows"][0]["v"]


async def read_as_stream(worker: Bench, folder: Path) -> Any:
    sink = Rows()
    found = await outcome_of(worker, QUERY, sink=sink)
    assert found.error is None, found.error
    return sink.rows[0]["v"]


async def read_as_parquet(worker: Bench, folder: Path) -> Any:
    found = await outcome_of(worker, QUERY, may_spread=True, output=Output(format="parquet"))
    assert found.error is None, found.error
    return found.data["rows"][0]["v"]


async def read_as_input(worker: Bench, folder: Path) -> Any:
    fields = {
        "query": "SELECT v FROM i",
        "database": ":memory:",
        "inputs": {"i": {"auth": "db", "query": QUERY}},
    }
    return (await data_of(worker, "duckdb", fields))["rows"][0]["v"]


async def read_in_target(worker: Bench, folder: Path) -> Any:
    target = {"type": "postgres", "auth": "db", "table": "public.target", "mode": "replace"}
    await data_of(worker, "transfer", {"source": DATABASE, "target": target})
    query = "select v from public.target"
    found = await data_of(worker, "postgres", {"query": query}, auth="db")
    return json.loads(found["rows"][0]["v"])


async def read_in_file(worker: Bench, folder: Path, *, format_: str) -> Path:
    name = f"rows.{format_}"
    target = {"type": "file", "uri": of_organization(name), "mode": "replace"}
    await data_of(worker, "transfer", {"source": DATABASE, "target": target})
    return files_of(folder) / name


async def read_in_csv(worker: Bench, folder: Path) -> Any:
    path = await read_in_file(worker, folder, format_="csv")
    return json.loads(path.read_text().split()[1])


async def read_in_parquet(worker: Bench, folder: Path) -> Any:
    path = await read_in_file(worker, folder, format_="parquet")
    return pyarrow.parquet.read_table(path).to_pylist()[0]["v"]


READS = [
    read_by_tool,
    read_together,
    read_as_stream,
    read_as_parquet,
    read_as_input,
    read_in_target,
    read_in_csv,
    read_in_parquet,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", READS)
async def test_the_second_run_has_the_new_type(
    worker: Bench, db: Any, tmp_path: Path, read: Any, change: str
) -> None:
    before, after = CHANGES[change]
    await db.execute(before)
    # Twice, so that whatever is kept is kept.
    assert [await read(worker, tmp_path) for _ in range(2)] == [7, 7]
    await db.execute(after)
    assert [await read(worker, tmp_path) for _ in range(2)] == [1.5, 1.5]


@pytest.mark.parametrize("is_together", [False, True])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [("float8", 2.5, "2.5"), ("text", "x", "x"), ("date", "2026-02-03", "2026-02-03")],
)
async def test_a_parameter_has_the_new_type(
    worker: Bench, db: Any, kind: str, value: Any, expected: str, *, is_together: bool
) -> None:
    await db.execute("create table t (v int8)")
    texts = ["insert into t values (:v)", *(["select 1 as one"] if is_together else [])]
    fields = {"query": texts}
    for _ in range(2):
        await data_of(worker, "postgres", {**fields, "params": {"v": 7}}, auth="db")
    await db.execute(f"truncate t; alter table t alter v type {kind} using null")
    await data_of(worker, "postgres", {**fields, "params": {"v": value}}, auth="db")
    assert await db.fetchval("select string_agg(v::text, ' ') from t") == expected


async def test_a_parameter_is_not_cut_to_its_old_type(
    worker: Bench, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_session, "PARAMETERS_TRUSTED_S", 0.0)
    await db.execute("create table t (v date)")
    fields = {"query": "insert into t values (:v)", "params": {"v": "2026-02-03T04:05:06"}}
    await data_of(worker, "postgres", fields, auth="db")
    await db.execute("alter table t alter v type timestamp")
    await data_of(worker, "postgres", fields, auth="db")
    assert await db.fetchval("select max(v)::text from t") == "2026-02-03 04:05:06"


async def test_an_attribute_has_its_new_name(worker: Bench, db: Any) -> None:
    await db.execute("create table t as select 7 as v, 8 as w")
    query = {"query": "select t as whole from t"}
    found = await data_of(worker, "postgres", query, auth="db")
    assert found["rows"] == [{"whole": {"v": 7, "w": 8}}]
    await db.execute("alter table t rename v to x; alter table t alter w type text using 'nine'")
    found = await data_of(worker, "postgres", query, auth="db")
    assert found["rows"] == [{"whole": {"x": 7, "w": "nine"}}]
    await db.execute("alter table t add z float8 default 1.5")
    found = await data_of(worker, "postgres", query, auth="db")
    assert found["rows"] == [{"whole": {"x": 7, "w": "nine", "z": 1.5}}]


async def test_nothing_is_done_twice_when_a_row_has_changed(worker: Bench, db: Any) -> None:
    await db.execute("create table t (id serial, v int8)")
    query = {"query": "insert into t (v) values (1) returning t as whole"}
    await data_of(worker, "postgres", query, auth="db")
    await db.execute("alter table t alter v type float8")
    await data_of(worker, "postgres", query, auth="db")
    assert await db.fetchval("select count(*) from t") == 2


async def test_a_stream_keeps_its_table_until_it_ends(worker: Bench, db: Any) -> None:
    await db.execute("create table t as select i::int8 as v from generate_series(1, 1000) as i")

    async def change() -> None:
        await db.execute("set lock_timeout = '50ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await db.execute("alter table t alter v type float8 using 1.5")

    sink = Rows(change)
    found = await outcome_of(worker, "select v from t order by v", sink=sink)
    assert found.error is None, found.error
    assert [row["v"] for row in sink.rows] == list(range(1, 1001))


async def test_types_change_inside_a_transaction(worker: Bench, db: Any) -> None:
    """What was prepared in an earlier run meets a table that this one makes."""
    text = "create temporary table s as select {} as v; select v from s; drop table s"
    for value, expected in (
        ("7::int8", 7),
        ("1.5::float8", 1.5),
        ("date '2026-02-03'", "2026-02-03"),
    ):
        fields = {"query": text.format(value)}
        found = await data_of(worker, "postgres", fields, auth="db")
        assert found["commands"][1]["rows"] == [{"v": expected}]


async def test_behind_a_pooler_types_are_those_of_now(worker: Bench, db: Any) -> None:
    """Statements without a name are described at every run."""
    await db.execute(
        "create function forget() returns void language plpgsql as 'begin deallocate all; end'"
    )
    await db.execute(START)
    for _ in range(2):
        await data_of(worker, "postgres", {"query": "select forget()"}, auth="db")
        assert await read_by_tool(worker, Path()) == 7
    await db.execute(CHANGES["altered"][1])
    assert await read_by_tool(worker, Path()) == 1.5
    insert = {"query": "insert into t values (:v)", "params": {"v": 2.5}}
    await data_of(worker, "postgres", insert, auth="db")
    assert await db.fetchval("select max(v) from t") == 2.5
