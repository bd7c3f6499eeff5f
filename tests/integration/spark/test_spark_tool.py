"""The spark tool on a real session: SQL and functions over stored inputs, results by reference."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from msgspec import structs
from tests.support import lake
from tests.support.calls import call_of
from tests.support.sparking import answered, kept, spark_bench, spark_call, stored, trusting
from tests.support.working import ORGANIZATION, TENANT, Bench, command_of

from noetl_contracts import codec, spread_table
from noetl_contracts.commands.state_values import StateType
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests.facts import CommandCompleted
from noetl_playbook.model.playbook import Output
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_worker.payloads.result_store import find_spread
from noetl_worker.tools.tables.cursor_scan import CursorScan

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ORDERS = [{"id": i, "region": "east" if i % 3 else "west", "amount": i * 0.5} for i in range(3_000)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    # One connection for each credential: a move from a database into itself is content with it.
    async with spark_bench(tmp_path_factory.mktemp("spark"), postgres_connections_max=1) as found:
        yield found


@pytest.fixture
def trusted(worker: Bench) -> Bench:
    return trusting(worker)


async def test_queries_read_stored_results_and_give_small_ones_inline(worker: Bench) -> None:
    orders = await stored(worker, ORDERS)
    inputs = await answered(
        worker,
        spark_call(
            sql="CREATE TEMPORARY VIEW few AS SELECT * FROM o WHERE id < :most; "
            "SELECT f.region, r.head, count(*) AS n, sum(amount) AS total "
            "FROM few f JOIN r USING (region) GROUP BY ALL ORDER BY 1",
            inputs={"o": orders, "r": [{"region": "east", "head": "Ann"}]},
            params={"most": 9},
        ),
    )
    assert inputs == {
        "rows": [{"region": "east", "head": "Ann", "n": 6, "total": 13.5}],
        "row_count": 1,
        "columns": ["region", "head", "n", "total"],
        "types": ["string", "string", "int64", "double"],
        "statement_count": 2,
        "status": "ok",
    }


async def test_large_results_stay_in_the_store_in_parts(worker: Bench) -> None:
    orders = await stored(worker, ORDERS)
    step = """
  - step: split
    tool:
      kind: spark
      inputs: {o: "{{ workload.orders }}"}
      sql: SELECT *, timestamp'2026-01-02 03:04:05' AS at FROM o ORDER BY id
      output: {format: parquet, partition_by: [region]}
"""
    (*_, done) = await worker.run(command_of(step, workload={"orders": orders}))
    assert isinstance(done, CommandCompleted), done
    result = done.result
    assert result.reference is not None
    assert result.reference.media_type == spread_table.SPREAD_MEDIA_TYPE
    assert result.reference.row_count == 3_000
    assert result.context["columns"] == ["id", "region", "amount", "at"]
    found = await worker.value(result)
    assert {row["region"] for row in found["rows"]} == {"east", "west"}
    assert sum(row["amount"] for row in found["rows"]) == sum(item["amount"] for item in ORDERS)
    assert found["rows"][0]["at"] == "2026-01-02T03:04:05+00:00"


async def test_a_spread_result_is_read_by_executors_part_by_part(worker: Bench) -> None:
    orders = await stored(worker, ORDERS)
    raw = await answered(
        worker,
        spark_call(
            sql="SELECT * FROM o",
            inputs={"o": orders},
            output=Output(format="parquet", partition_by=("region",)),
        ),
    )
    found = find_spread(PipelineResult(tasks={"t": TaskResult(kind="spark", raw=raw)}, last="t"))
    assert found is not None
    assert found.partition_by == ["region"]
    assert sorted(found.partitions) == [["east"], ["west"]]
    assert sum(part.row_count or 0 for part in found.parts) == found.row_count == 3_000
    whole = await kept(worker, raw)
    again = await answered(
        worker,
        spark_call(
            sql="SELECT _part, region, count(*) AS n FROM u GROUP BY ALL ORDER BY ALL",
            inputs={"u": [whole, orders]},
        ),
    )
    assert again["rows"] == [
        {"_part": part, "region": region, "n": count}
        for part in (0, 1)
        for region, count in (("east", 2_000), ("west", 1_000))
    ]


@pytest.mark.parametrize(
    ("sql", "kind", "said"),
    [
        ("SELECT nothing FROM o", "db_error", "nothing"),
        ("SELEC 1", "db_error", "SELEC"),
        ("SELECT 1 AS a, 2 AS a", "schema", "several columns named a"),
        ("SET spark.sql.shuffle.partitions = 1", "config", "SetCommand"),
        ("SELECT reflect('java.lang.System', 'getenv', 'HOME')", "config", "Reflection"),
        (
            "SELECT (SELECT java_method('java.lang.System', 'nanoTime'))",
            "config",
            "Reflection",
        ),
        ("SELECT TRANSFORM (id) USING 'cat' AS (x) FROM o", "config", "ScriptTransformation"),
        ("INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1", "config", "InsertIntoDir"),
        ("CREATE TABLE t AS SELECT 1; SELECT 1", "validation", "only the last statement"),
        ("SELECT * FROM csv.`/etc/passwd`", "db_error", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT assert_true(id < 0) FROM o", "db_error", "is not true"),
    ],
)
async def test_what_spark_refuses_is_an_error_that_says_why(
    worker: Bench, sql: str, kind: str, said: str
) -> None:
    call = spark_call(sql=sql, inputs={"o": [{"id": 1}]})
    found = await worker.tools.run(call)
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == (kind, False)
    assert said in found.error.message
    assert "\tat " not in found.error.message


async def test_a_payload_that_is_gone_is_named_as_such(worker: Bench) -> None:
    orders = await stored(worker, ORDERS[:3])
    gone = {**orders, "sha256": "0" * 64}
    found = await worker.tools.run(spark_call(sql="SELECT * FROM o", inputs={"o": gone}))
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("reference_not_available", True)


async def test_code_needs_the_operator(worker: Bench) -> None:
    code = "def main(spark, inputs): return 1"
    found = await worker.tools.run(spark_call(code=code))
    assert found.error is not None
    assert found.error.kind == "config"
    assert "NOETL_WORKER_SPARK_CODE_ALLOWED=true" in found.error.message


async def test_a_function_gives_a_frame_a_table_or_any_value(trusted: Bench) -> None:
    orders = await stored(trusted, ORDERS[:6])
    frame = await answered(
        trusted,
        spark_call(
            code="def main(spark, inputs, params):\n"
            "  return inputs['o'].where(inputs['o'].id < params['most']).groupBy('region').count()"
            ".orderBy('region')",
            inputs={"o": orders},
            params={"most": 4},
        ),
    )
    assert frame["rows"] == [{"region": "east", "count": 2}, {"region": "west", "count": 2}]
    value = await answered(
        trusted,
        spark_call(
            code="def main(spark, inputs): return {'n': inputs['o'].count()}", inputs={"o": orders}
        ),
    )
    assert value == {"n": 6}
    where = {"tenant": TENANT, "organization": ORGANIZATION, "table": "made/orders"}
    again = await answered(
        trusted,
        spark_call(
            code="def main(spark, inputs, params):\n"
            "  inputs['o'].write.format('noetl').mode('append').options(**params).save()\n"
            "  return spark.read.format('noetl').options(**params).load().groupBy().sum('amount')",
            inputs={"o": orders},
            params={
                "store": trusted.tools.spark.open_once().build_store_address(spark_call()).url,
                **where,
            },
        ),
    )
    assert again["rows"] == [{"sum(amount)": 7.5}]
    failed = await trusted.tools.run(
        spark_call(code="def main(spark, inputs): raise KeyError('what')")
    )
    assert failed.error is not None
    assert (failed.error.kind, failed.error.exception_type) == ("transform", "KeyError")


async def test_a_timeout_cancels_the_job_and_the_session_lives_on(worker: Bench) -> None:
    endless = "SELECT count(*) AS n FROM range(1000000000000) WHERE id % 7 = hash(id)"
    found = await worker.tools.run(spark_call(sql=endless, timeout_s=3))
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("timeout", True)
    after = await answered(worker, spark_call(sql="SELECT 1 AS one"))
    assert after["rows"] == [{"one": 1}]


async def test_executors_read_and_fill_postgres_tables_by_themselves(
    worker: Bench, database: str
) -> None:
    await worker.put_credential("db", {"dsn": database})
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(
            "create table shop(id int, name text, at timestamptz, tags text[], price numeric(9,2),"
            " j jsonb, ok bool);"
            "insert into shop select i, case when i % 2 = 0 then 'a ''\"\\' || i end,"
            " '2026-01-02 03:04:05+02', array['x', null, 'y,z'], i + 0.25, '{\"k\": [1]}', i > 5"
            " from generate_series(1, 1000) i;"
            "create table copied(id bigint primary key, title text, price numeric, at timestamptz)"
        )
        inputs = await answered(
            worker,
            spark_call(
                sql="SELECT count(*) AS n, count(DISTINCT id) AS d, count(name) AS named,"
                " CAST(sum(price) AS DOUBLE) AS total, min(at) AS at, max(tags) AS tags,"
                " max(j) AS j, count_if(ok) AS ok FROM s",
                inputs={
                    "s": {
                        "auth": "db",
                        "query": "select * from shop where id > $1",
                        "params": [0],
                        "partition_column": "id",
                        "partitions": 3,
                    }
                },
            ),
        )
        assert inputs["rows"] == [
            {
                "n": 1_000,
                "d": 1_000,
                "named": 500,
                "total": 500_750.0,
                "at": "2026-01-02T01:04:05+00:00",
                "tags": ["x", None, "y,z"],
                "j": '{"k": [1]}',
                "ok": 995,
            }
        ]
        move = {
            "engine": "spark",
            "source": {"type": "postgres", "query": "select * from shop"},
            "target": {"type": "postgres", "table": "copied", "mode": "upsert", "key": "id"},
            "mapping": {"id": "id", "title": "name", "price": "price", "at": "at"},
        }
        attempt = call_of("transfer", move, auth="db", timeout_s=240)
        first = await answered(worker, attempt)
        assert first["rows_transferred"] == first["records_fetched"] == 1_000
        assert first["engine"] == "spark"
        rows = await connection.fetch("select * from copied order by id")
        assert len(rows) == 1_000
        assert (rows[0]["title"], rows[1]["title"]) == (None, "a '\"\\2")
        assert rows[3]["price"] == Decimal("4.25")
        await connection.execute("truncate copied")
        # The same attempt again finds that it was done.
        assert await answered(worker, attempt) == first
        assert await connection.fetchval("select count(*) from copied") == 0
        left = "select count(*) from pg_class where relname like 'noetl_staging%'"
        assert await connection.fetchval(left) == 0
        wrong = {**move, "mapping": {"id": "id", "titel": "name"}}
        found = await worker.tools.run(call_of("transfer", wrong, auth="db"))
        assert found.error is not None
        assert "'titel'" in found.error.message
        # Of an increment the greatest cursor is found among what was staged, and kept with it.
        latest = await connection.fetchval("select max(at) from shop")
        read = structs.replace(
            call_of("transfer", move, auth="db", timeout_s=240),
            increment=CursorScan("at", StateType.TIMESTAMP),
        )
        answer = await answered(worker, read)
        shown = latest.astimezone(UTC).isoformat()
        assert answer["increment"] == {"cursor": shown, "rows": 1_000}
        await connection.execute("update shop set at = at + interval '1 day'")
        again = structs.replace(read, increment=CursorScan("at", StateType.TIMESTAMP))
        assert await answered(worker, again) == answer
        unread = {**move, "mapping": {"id": "id"}}
        lacking = structs.replace(
            call_of("transfer", unread, auth="db", timeout_s=240),
            increment=CursorScan("at", StateType.TIMESTAMP),
        )
        found = await worker.tools.run(lacking)
        assert found.error is not None
        assert "cursor 'at' is not among the columns" in found.error.message
    finally:
        await connection.close()


class Taking:
    """A sink that only counts."""

    window_rows = 400

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.columns: tuple[str, ...] = ()

    async def write_rows(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        self.taken.append(len(rows))
        self.columns = tuple(columns)


async def test_a_task_that_streams_hands_its_rows_over_in_windows(worker: Bench) -> None:
    sink = Taking()
    call = structs.replace(spark_call(sql="SELECT id FROM range(1000)"), sink=sink)
    assert await answered(worker, call) == {"statement_count": 1, "status": "ok"}
    assert (sum(sink.taken), sink.columns) == (1_000, ("id",))
    assert max(sink.taken) <= 400


@pytest.mark.parametrize(
    ("session", "said"),
    [
        ({"conf": {"spark.jars": "x.jar"}}, "may not set 'spark.jars'"),
        ({"master": "spark://elsewhere:7077"}, "runs Spark at local[2]"),
    ],
)
async def test_a_session_of_its_own_is_bounded(
    worker: Bench, session: dict[str, Any], said: str
) -> None:
    found = await worker.tools.run(spark_call(sql="SELECT 1", session=session))
    assert found.error is not None
    assert found.error.kind == "config"
    assert said in found.error.message


async def test_spark_answers_an_auditors_questions_over_the_event_lake_as_duckdb_does(
    worker: Bench, tmp_path: Path
) -> None:
    folder = await lake.fill(tmp_path)
    asked = [lake.question(number, DIGEST=lake.a_digest()) for number in range(5)]

    def ask(session: Any) -> list[list[tuple[Any, ...]]]:
        session.read.parquet(str(folder)).createOrReplaceTempView("events")
        return [[tuple(row) for row in session.sql(text).collect()] for text in asked]

    answered = await worker.tools.spark.open_once()._spark_session.run_job(ask, name="lake")
    with lake.connect(folder) as connection:
        expected = [connection.execute(text).fetchall() for text in asked]
    assert [plainly(rows) for rows in answered] == [plainly(rows) for rows in expected]
    assert [bool(rows) for rows in expected] == [True, True, True, False, True]


def plainly(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Write instants without their zone, and all else as text: months are dates in the one."""
    return [[_plain(value) for value in row] for row in rows]


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else str(value)


async def test_a_function_that_raises_in_an_executor_shows_its_line(trusted: Bench) -> None:
    code = (
        "from pyspark.sql.functions import udf\n"
        "def main(spark, inputs):\n"
        "    @udf('int')\n"
        "    def halve(n):\n"
        "        return 1 // n\n"
        "    return inputs['r'].select(halve('n').alias('h'))\n"
    )
    found = await trusted.tools.run(spark_call(code=code, inputs={"r": [{"n": 1}, {"n": 0}]}))
    assert found.error is not None
    assert (found.error.kind, found.error.exception_type) == ("transform", "ZeroDivisionError")
    assert found.error.details is not None
    assert (found.error.details["line"], found.error.details["line_text"]) == (5, "return 1 // n")


async def read_events(worker: Bench, about: dict[str, Any]) -> list[Any]:
    """The events that a result or an error refers to."""
    ref = PayloadRef(
        uri=about["ref"],
        sha256=about["sha256"],
        media_type=about["media_type"],
        payload_bytes=about["bytes"],
        row_count=about["event_count"],
    )
    events: list[Any] = codec.decode_json(await worker.payloads.read_payload(ref))
    return events


async def test_the_event_log_of_a_task_is_kept_without_secrets(worker: Bench) -> None:
    worker.mask.learn_secrets({"password": "gold-under-the-tree"})
    sql = "SELECT count(*) AS n FROM o WHERE region <> 'gold-under-the-tree'"
    inputs = {"o": await stored(worker, ORDERS)}
    done = await answered(worker, spark_call(sql=sql, inputs=inputs, event_log=True))
    assert done["rows"] == [{"n": 3_000}]
    events = await read_events(worker, done["event_log"])
    kinds = [event["Event"].rpartition(".")[2] for event in events]
    assert kinds[0] == "SparkListenerLogStart"
    assert {"SparkListenerJobStart", "SparkListenerTaskEnd", "SparkListenerJobEnd"} <= set(kinds)
    assert "SparkListenerSQLExecutionStart" in kinds
    assert "gold-under-the-tree" not in str(events)

    sql = "SELECT raise_error(region) AS e FROM o"
    outcome = await worker.tools.run(spark_call(sql=sql, inputs=inputs, event_log=True))
    assert outcome.error is not None
    assert outcome.error.details is not None
    events = await read_events(worker, outcome.error.details["event_log"])
    ends = [event for event in events if event["Event"] == "SparkListenerJobEnd"]
    assert "JobFailed" in str(ends)
    other = await answered(worker, spark_call(sql="SELECT 1 AS one"))
    assert "event_log" not in other
