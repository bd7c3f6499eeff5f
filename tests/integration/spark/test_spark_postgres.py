"""PostgreSQL through Spark: one snapshot a task, balanced shares, exact types, named errors."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from tests.support.calls import call_of
from tests.support.polling import eventually
from tests.support.servers import PostgresServer
from tests.support.sparking import answered, spark_bench, spark_call, trusting
from tests.support.typed_values import UUID, VALUES
from tests.support.working import Bench

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

# Columns of a numeric without digits hold 20 before the point and 18 behind it.
REFUSED = {
    *("38 digits", "39 digits", "wide decimal", "numeric that is none"),
    *("endless date", "endless moment ", "endless moment with a zone"),
}
FITTING = [item for item in VALUES if item.postgres is not None and item.name not in REFUSED]
LISTS = (
    "array['a\"b', null, '', 'c,\\d']::text[]",
    "array[1.50, null]::numeric(10,2)[]",
    "array['\\x00ff'::bytea]",
    "array[timestamptz '2024-01-02 03:04:05.678+02']",
    "array[date '2024-01-02', null]",
    "array[true, false]",
    "array[0.1::float8, 'nan', '-inf']",
    f"array['{UUID}'::uuid]",
    "array['{\"a\": [1]}'::jsonb]",
    "'{}'::int[]",
    "null::int[]",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark"), postgres_connections_max=2) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dsn(worker: Bench, postgres: PostgresServer) -> AsyncIterator[str]:
    """One database for all tests: a worker knows a credential's fields for a while."""
    name = f"test_{secrets.token_hex(6)}"
    database = await postgres.create_database(name)
    await worker.put_credential("db", {"dsn": database})
    yield database
    await postgres.drop_database(name)


@pytest_asyncio.fixture(loop_scope="module")
async def db(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def asked(worker: Bench, sql: str, **inputs: dict[str, Any]) -> Any:
    named = {name: {"auth": "db", **source} for name, source in inputs.items()}
    return (await answered(worker, spark_call(sql=sql, inputs=named)))["rows"]


async def test_every_type_comes_back_equal_from_a_copy(worker: Bench, db: Any) -> None:
    forms = [str(item.postgres) for item in FITTING] + list(LISTS)
    columns = ", ".join(f"{form} as v{place}" for place, form in enumerate(forms))
    await db.execute(f"create table typed as select {columns}; create table copy (like typed)")
    move = {
        "engine": "spark",
        "source": {"type": "postgres", "table": "typed"},
        "target": {"type": "postgres", "table": "copy"},
    }
    await answered(worker, call_of("transfer", move, auth="db", timeout_s=240))
    # The client reads no date after the year 9999.
    texts = ", ".join(f"v{place}::text" for place in range(len(forms)))
    before = await db.fetchrow(f"select {texts} from typed")  # noqa: S608 - columns of the test
    after = await db.fetchrow(f"select {texts} from copy")  # noqa: S608 - as above
    for place, form in enumerate(forms):
        assert after[place] == before[place], form


async def test_what_changes_at_each_run_is_read_once(worker: Bench, db: Any) -> None:
    source = {"query": "select i, random() as r from generate_series(1, 1000) i"}
    join = "SELECT count(*) AS n FROM s a JOIN s b ON a.i = b.i AND a.r = b.r"
    assert await asked(worker, join, s=source) == [{"n": 1_000}]
    views = (
        "CREATE TEMPORARY VIEW v AS SELECT * FROM s; "
        "SELECT count(*) AS n FROM s a JOIN v b ON a.i = b.i AND a.r = b.r"
    )
    assert await asked(worker, views, s=source) == [{"n": 1_000}]
    in_subquery = "SELECT count(*) AS n FROM s WHERE r IN (SELECT r FROM s)"
    assert await asked(worker, in_subquery, s=source) == [{"n": 1_000}]
    code = """
def main(spark, inputs):
    s = inputs["s"]
    return s.join(s.withColumnRenamed("r", "q"), "i").where("r = q").count()
"""
    call = spark_call(code=code, inputs={"s": {"auth": "db", **source}})
    assert await answered(trusting(worker), call) == 1_000
    assert db.is_closed() is False


async def test_columns_that_no_statement_needs_are_not_read(worker: Bench, db: Any) -> None:
    # Reading the other column would divide by zero.
    await db.execute(
        "create view costly as select i, i * 2 as twice, 1 / (i - i) as none"
        " from generate_series(1, 10) i"
    )
    few = "SELECT sum(twice) AS n FROM s WHERE i > 8"
    for source in ({"table": "costly"}, {"query": "select * from costly"}):
        assert await asked(worker, few, s=source) == [{"n": 38}]
        assert await asked(worker, "SELECT count(*) AS n FROM s", s=source) == [{"n": 10}]
        twice = "SELECT count(*) AS n FROM s JOIN (SELECT twice FROM s) t ON s.i * 2 = t.twice"
        assert await asked(worker, twice, s={**source, "partitions": 1}) == [{"n": 10}]
    every = await worker.tools.run(
        spark_call(sql="SELECT * FROM s", inputs={"s": {"auth": "db", "table": "costly"}})
    )
    assert every.error is not None
    assert "division by zero" in every.error.message


async def test_all_reads_of_a_task_see_one_moment(worker: Bench, db: Any, dsn: str) -> None:
    await db.execute("create table moment as select i from generate_series(1, 100) i")
    code = """
import asyncio
import asyncpg

async def insert(params):
    connection = await asyncpg.connect(params['dsn'])
    await connection.execute("insert into moment select i from generate_series(1, 50) i")
    await connection.close()

def main(spark, inputs, params):
    counts = [inputs["a"].count()]
    asyncio.run(insert(params))
    return counts + [inputs["a"].count(), inputs["b"].count(), inputs["c"].count()]
"""
    inputs = {
        "a": {"auth": "db", "table": "moment", "partitions": 2},
        "b": {"auth": "db", "table": ["public", "moment"]},
        "c": {"auth": "db", "query": "select i from moment where i > 0"},
    }
    call = spark_call(code=code, inputs=inputs, params={"dsn": dsn})
    assert await answered(trusting(worker), call) == [100] * 4
    assert await db.fetchval("select count(*) from moment") == 150
    nobody = "select count(*) = 0 from pg_stat_activity where application_name = 'noetl-spark'"
    await eventually(lambda: db.fetchval(nobody))


async def test_a_copy_adds_to_what_is_there_and_does_so_once(worker: Bench, db: Any) -> None:
    await db.execute(
        "create table totals(id int primary key, total numeric(12,2));"
        "insert into totals values (1, 10), (2, 20);"
        "create table news as select i as id, i + 0.25 as total from generate_series(2, 1000) i"
    )
    move = {
        "engine": "spark",
        "source": {"type": "postgres", "table": "news", "partitions": 3},
        "target": {
            "type": "postgres",
            "table": "totals",
            "mode": "upsert",
            "key": "id",
            "set": {"total": "target.total + source.total"},
        },
    }
    call = call_of("transfer", move, auth="db", timeout_s=240)
    first = await answered(worker, call)
    assert await answered(worker, call) == first
    assert first["rows_transferred"] == 999
    sums = "select sum(total) from totals where id in (1, 2, 3)"
    assert str(await db.fetchval(sums)) == "35.50"
    await db.execute("insert into news values (2, 1)")
    twice = await worker.tools.run(call_of("transfer", move, auth="db", timeout_s=240))
    assert twice.error is not None
    assert "id = 2" in twice.error.message
    assert str(await db.fetchval(sums)) == "35.50"


async def test_a_value_that_the_target_does_not_take_is_named(worker: Bench, db: Any) -> None:
    await db.execute("create table narrow(id int, code varchar(3))")
    move = {
        "engine": "spark",
        "source": {"type": "postgres", "query": "select 1 as id, 'long' as code"},
        "target": {"type": "postgres", "table": "narrow"},
    }
    found = await worker.tools.run(call_of("transfer", move, auth="db", timeout_s=240))
    assert found.error is not None
    for word in ("target 'public.narrow'", "credential 'db'", "too long", "column code"):
        assert word in found.error.message, found.error
