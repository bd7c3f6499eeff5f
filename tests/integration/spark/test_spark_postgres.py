"""PostgreSQL through Spark: one snapshot a task, balanced shares, exact types, named errors."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from tests.support.calls import call_of
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
FITTING = [one for one in VALUES if one.postgres is not None and one.name not in REFUSED]
# Spark has no such type: it holds the text that PostgreSQL writes.
TEXTS = {
    "interval": "1 year 2 mons -3 days +04:05:06.5",
    "seconds": "00:01:30",
    "json": '{"a": [1, null]}',
    "uuid": UUID,
}
TYPE_IN_SPARK = {
    "time64[us]": "string",
    "month_day_nano_interval": "string",
    "uuid": "string",
    "json": "string",
    "decimal128(3, 2)": "decimal128(10, 2)",
}
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
    found = await postgres.create_database(name)
    await worker.put_credential("db", {"dsn": found})
    yield found
    await postgres.drop_database(name)


@pytest_asyncio.fixture(loop_scope="module")
async def db(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def asked(worker: Bench, sql: str, **inputs: dict[str, Any]) -> Any:
    named = {name: {"auth": "db", **source} for name, source in inputs.items()}
    return (await answered(worker, spark_call(sql=sql, inputs=named)))["rows"]


async def refused(worker: Bench, source: dict[str, Any], sql: str = "SELECT * FROM s") -> Any:
    call = spark_call(sql=sql, inputs={"s": {"auth": "db", **source}})
    found = await worker.tools.run(call)
    assert found.error is not None, found.data
    return found.error


async def test_every_type_is_read_as_it_is(worker: Bench, db: Any) -> None:
    columns = ", ".join(f"{one.postgres} as v{place}" for place, one in enumerate(FITTING))
    source = {"auth": "db", "query": f"select {columns}"}
    found = await answered(worker, spark_call(sql="SELECT * FROM s", inputs={"s": source}))
    (row,) = found["rows"]
    for name, value, kind in zip(found["columns"], FITTING, found["types"], strict=True):
        assert row[name] == TEXTS.get(value.name, value.json_form), value
        assert kind == TYPE_IN_SPARK.get(value.kind, value.kind), value
    assert db.is_closed() is False


async def test_what_spark_does_not_hold_is_refused_by_its_column(worker: Bench, db: Any) -> None:
    forms = [one.postgres for one in VALUES if one.name in REFUSED and one.postgres is not None]
    forms += ["array[[1, 2], [3, 4]]", "array[1e30::numeric]", "array['infinity'::date]"]
    for form in forms:
        error = await refused(worker, {"query": f"select 1 as a, {form} as v0"})
        assert error.kind == "schema", (form, error)
        for word in ("input 's'", "column 'v0'", "credential 'db'", "in the query"):
            assert word in error.message, (form, error)
    assert db.is_closed() is False


async def test_numbers_keep_the_digits_that_they_declare(worker: Bench, db: Any) -> None:
    await db.execute(
        "create table digits(a numeric(18,4), b numeric(38,0), c numeric, d numeric(3,5));"
        "insert into digits values (1.5, 99999999999999999999999999999999999999, 0.1, 0.00012)"
    )
    source = {"auth": "db", "table": "digits"}
    found = await answered(worker, spark_call(sql="SELECT * FROM s", inputs={"s": source}))
    assert found["types"] == [f"decimal128({one})" for one in ("18, 4", "38, 0", "38, 18", "5, 5")]
    assert found["rows"] == [{"a": 1.5, "b": "9" * 38, "c": 0.1, "d": 0.00012}]


async def test_every_type_comes_back_equal_from_a_copy(worker: Bench, db: Any) -> None:
    forms = [str(one.postgres) for one in FITTING] + list(LISTS)
    columns = ", ".join(f"{form} as v{place}" for place, form in enumerate(forms))
    await db.execute(f"create table typed as select {columns}; create table copy (like typed)")
    move = {
        "engine": "spark",
        "source": {"type": "postgres", "table": "typed"},
        "target": {"type": "postgres", "table": "copy"},
    }
    await answered(worker, call_of("transfer", move, auth="db", timeout_s=240))
    before = await db.fetchrow("select * from typed")
    after = await db.fetchrow("select * from copy")
    for place, form in enumerate(forms):
        assert repr(after[place]) == repr(before[place]), form


async def test_shares_hold_each_row_once_and_are_alike(worker: Bench, db: Any) -> None:
    await db.execute(
        "create table keyed as select case when i > 9990 then i * 1000000::bigint else i end as id,"
        " md5(i::text)::uuid as uid, date '2024-01-01' + i as day, 'n' || i as name,"
        " timestamptz '2024-01-01' + i * interval '1 s' as at from generate_series(1, 10000) i;"
        "insert into keyed select from generate_series(1, 7)"
    )
    sql = (
        "SELECT count(*) AS n, count(DISTINCT id) AS ids, count(DISTINCT part) AS parts,"
        " max(size) AS most FROM (SELECT *, count(*) OVER (PARTITION BY part) AS size FROM"
        " (SELECT *, spark_partition_id() AS part FROM s))"
    )
    shares: list[dict[str, Any]] = [{"partitions": 4}, {"partition": "auto"}]
    shares += [
        {"partitions": 4, "partition_column": column}
        for column in ("id", "uid", "day", "name", "at")
    ]
    for share in shares:
        (row,) = await asked(worker, sql, s={"table": "keyed", **share})
        assert (row["n"], row["ids"]) == (10_007, 10_000), share
        assert row["parts"] == (4 if "partitions" in share else 1), share
        assert row["parts"] == 1 or row["most"] < 3_000, share
    query = {"query": "select * from keyed where id > $1", "params": [10]}
    by_name = {**query, "partitions": 3, "partition_column": "name"}
    assert (await asked(worker, sql, s=by_name))[0]["n"] == 9_990


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
    keepers = "select count(*) from pg_stat_activity where application_name = 'noetl-spark'"
    assert await db.fetchval(keepers) == 0


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ({"table": "shopp"}, "validation", "there is no table 'shopp': did you mean 'shop'?"),
        ({"query": "select * from nowhere"}, "db_error", 'relation "nowhere" does not exist'),
        ({"query": "select prize from shop"}, "db_error", 'column "prize" does not exist'),
        ({"query": "select 1 as a, 2 as a"}, "schema", "several columns named 'a'"),
        ({"query": "select $1::int as a", "params": ["x"]}, "db_error", 'integer: "x"'),
        ({"query": "select 1 / (id - 500) as a from shop"}, "db_error", "division by zero"),
        (
            {"table": "shop", "partitions": 2, "partition_column": "idd"},
            "validation",
            "'idd' is no column of it: did you mean 'id'?",
        ),
        (
            {"table": "shop", "partitions": 2, "partition_column": "ok"},
            "validation",
            "'ok' is bool",
        ),
        ({"query": "select id from shop", "partitions": 2}, "validation", "'partition_column'"),
        (
            {"query": "select id from shop limit 9", "partitions": 2, "partition_column": "id"},
            "validation",
            "LIMIT without ORDER BY",
        ),
        (
            {"query": "select random() as r", "partitions": 2, "partition_column": "r"},
            "validation",
            "random()",
        ),
    ],
)
async def test_what_cannot_be_read_says_where_and_why(
    worker: Bench, db: Any, source: dict[str, Any], kind: str, said: str
) -> None:
    await db.execute(
        "create table if not exists shop as"
        " select i as id, true as ok from generate_series(1, 900) i"
    )
    error = await refused(worker, source)
    assert error.kind == kind, error
    for word in ("input 's'", "credential 'db'", said):
        assert word in error.message, error


async def test_a_table_that_may_not_be_read_is_named(worker: Bench, db: Any, dsn: str) -> None:
    await db.execute("create table closed(id int)")
    await db.execute("create role reader login password 'reader'")
    try:
        await worker.put_credential("reader", _as_reader(dsn))
        error = await refused(worker, {"table": "closed", "auth": "reader"})
        for word in ("table 'closed'", "credential 'reader'", "permission denied for table closed"):
            assert word in error.message, error
        assert error.pg_code == "42501"
    finally:
        await db.execute("drop role reader")


def _as_reader(database: str) -> dict[str, Any]:
    scheme, _, rest = database.partition("://")
    return {"dsn": f"{scheme}://reader:reader@{rest.rpartition('@')[2]}"}


async def test_a_server_that_ends_the_connection_is_a_lost_connection(
    worker: Bench, db: Any
) -> None:
    slow = {"query": "select i, pg_sleep(0.002)::text as s from generate_series(1, 100000) i"}
    failing = asyncio.ensure_future(refused(worker, slow, "SELECT count(*) AS n FROM s"))
    reads = (
        "select pid from pg_stat_activity where application_name = 'noetl-spark'"
        " and query like 'COPY%' and state = 'active'"
    )
    while (pid := await db.fetchval(reads)) is None:
        assert not failing.done()
        await asyncio.sleep(0.05)
    await db.execute("select pg_terminate_backend($1)", pid)
    error = await failing
    assert (error.kind, error.retryable) == ("db_connection", True), error
    assert "input 's'" in error.message
    assert await asked(worker, "SELECT count(*) AS n FROM s", s={"query": "select 1 as a"}) == [
        {"n": 1}
    ]


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
