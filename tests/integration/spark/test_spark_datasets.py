"""Datasets of files as inputs and outputs of Spark tasks, in buckets of a real S3 server."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet
import pytest
import pytest_asyncio
from msgspec import structs
from obstore.exceptions import PermissionDeniedError
from obstore.store import S3Store
from tests.support.buckets import account_of, keys_of, open_bucket
from tests.support.servers import S3Server
from tests.support.site import serving
from tests.support.sparking import SEAL_KEY, answered, spark_bench, spark_call, trusting
from tests.support.working import KEY, Bench, command_of, step_of

from noetl_contracts import codec
from noetl_contracts.commands.command_work import StateSlice
from noetl_contracts.commands.state_values import Increment, StateType
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_worker.datasets import read_plan
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.tables import file_source
from noetl_worker.spark.task_request import SparkRequest
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.spark import job_grants

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

VERSIONS = count(1)
PEOPLE = 'id;code;joined\n1;007;2026-01-31\n2;"a\nb";\n3;x;2026-02-01\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark"), s3=s3) as found:
        await found.put_credential("lake", account_of(s3), kind="s3")
        await found.put_credential("wrong", {**account_of(s3), "secret_key": "no"}, kind="s3")
        yield found


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> S3Store:
    return open_bucket(s3)


def sink_call(sink: dict[str, Any], *, key: str = "s", attempt: int = 1, **fields: Any) -> Call:
    """A call whose rows go into a dataset; `key` is the task that it is of."""
    call = spark_call(sink=sink, **fields)
    return structs.replace(call, task=key, attempt=attempt, visit=1)


async def test_csv_in_a_bucket_becomes_parquet_by_day_in_a_bucket(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    obstore.put(bucket, "in/people.csv", PEOPLE.encode())
    step = """
  - step: convert
    tool:
      kind: spark
      inputs:
        people:
          path: "s3://BUCKET/in/{{ workload.name }}.csv"
          auth: lake
          delimiter: ";"
          schema: "id BIGINT, code STRING, joined DATE"
      sql: SELECT * FROM people
      output:
        path: "s3://BUCKET/out/people/"
        auth: lake
        partition_by: [joined]
"""
    step = step.replace("BUCKET", s3.bucket)
    (*_, done) = await worker.run(command_of(step, workload={"name": "people"}))
    assert isinstance(done, CommandCompleted), done
    raw = await worker.value(done.result)
    assert raw["row_count"] == 3
    assert raw["written"]["partition_count"] == 3
    keys = keys_of(bucket, "out/people")
    (null_file,) = [key for key in keys if "joined=__HIVE_DEFAULT_PARTITION__/" in key]
    data = bytes(obstore.get(bucket, null_file).bytes())
    assert pa.parquet.read_table(pa.BufferReader(data)).to_pylist() == [{"id": 2, "code": "a\nb"}]
    assert "out/people/_SUCCESS" in keys

    again = await answered(
        worker,
        spark_call(
            sql="SELECT code, joined FROM p WHERE joined >= date'2026-01-01' ORDER BY id",
            inputs={"p": {"path": f"s3://{s3.bucket}/out/people/", "auth": "lake"}},
        ),
    )
    assert again["rows"] == [
        {"code": "007", "joined": "2026-01-31"},
        {"code": "x", "joined": "2026-02-01"},
    ]
    assert again["types"] == ["string", "date32[day]"]


async def test_sql_reads_only_the_columns_that_it_needs(
    worker: Bench, s3: S3Server, bucket: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({f"c{number}": [number, number + 1] for number in range(50)})
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(rows, sink)
    obstore.put(bucket, "wide/day=2026-01-01/a.parquet", sink.getvalue().to_pybytes())
    plans: list[list[str]] = []
    encode = file_source.encode_input

    def note_columns(given: Any) -> str:
        plans.append(read_plan.decode_schema(given.plan.schema).names)
        return encode(given)

    monkeypatch.setattr(file_source, "encode_input", note_columns)
    wide = {"path": f"s3://{s3.bucket}/wide/", "auth": "lake"}
    found = await answered(
        worker,
        spark_call(
            sql="""
                CREATE TEMPORARY VIEW v AS SELECT c1, c2 + c3 AS s FROM w WHERE c4 > 4;
                SELECT v.s, (SELECT max(c5) FROM w) AS m FROM v JOIN w USING (c1)
                WHERE w.day = '2026-01-01'
            """,
            inputs={"w": wide},
        ),
    )
    assert found["rows"] == [{"s": 7, "m": 6}]
    assert len(plans[0]) == 51
    assert set(plans[-1]) == {"c1", "c2", "c3", "c4", "c5", "day"}
    counted = await answered(
        worker, spark_call(sql="SELECT count(*) AS n FROM w", inputs={"w": wide})
    )
    assert (counted["rows"], plans[-1]) == ([{"n": 2}], ["c0"])
    every = await answered(worker, spark_call(sql="SELECT * FROM w", inputs={"w": wide}))
    assert (len(every["columns"]), len(plans[-1])) == (51, 51)


async def test_a_repeated_attempt_writes_once_and_modes_hold(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    sink = {"path": f"s3://{s3.bucket}/modes/", "auth": "lake", "mode": "append"}
    rows = {"r": [{"id": 1}, {"id": 2}]}
    first = await answered(worker, sink_call(sink, sql="SELECT * FROM r", inputs=rows))
    again = await answered(worker, sink_call(sink, sql="SELECT * FROM r", inputs=rows, attempt=2))
    assert (first["written"]["is_repeated"], again["written"]["is_repeated"]) == (False, True)
    assert first["row_count"] == again["row_count"] == 2
    assert (
        len([key for key in keys_of(bucket, "modes") if key.endswith(".parquet")])
        == again["written"]["file_count"]
    )
    refused = await worker.tools.run(
        sink_call({**sink, "mode": "error"}, key="o", sql="SELECT * FROM r", inputs=rows)
    )
    assert refused.error is not None
    assert refused.error.kind == "validation"
    assert "holds data already" in refused.error.message
    wider = await worker.tools.run(
        sink_call(sink, key="w", sql="SELECT *, 1 AS more FROM r", inputs=rows)
    )
    assert wider.error is not None
    assert "column 'more' is absent there" in wider.error.message
    evolving = {**sink, "expect": {"schema": {"columns": "id BIGINT", "drift": "evolve"}}}
    # Spark takes a literal for never null, and the rows that are there have none.
    grown = await answered(
        worker, sink_call(evolving, key="g", sql="SELECT id, 'x' AS more FROM r", inputs=rows)
    )
    assert grown["written"]["added_columns"] == ["more STRING"]
    counts = "SELECT count(*) AS n, count_if(more IS NULL) AS without FROM o"
    place = {"path": sink["path"], "auth": "lake"}
    whole = await answered(worker, spark_call(sql=counts, inputs={"o": place}))
    assert whole["rows"] == [{"n": 4, "without": 2}]


async def test_rows_that_do_not_fit_are_told_beside_the_result(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    obstore.put(bucket, "bad/a.csv", b"id,n\n1,2\nx,3\n4,5,6\n")
    source = {
        "path": f"s3://{s3.bucket}/bad/*.csv",
        "auth": "lake",
        "schema": "id INT, n INT",
    }
    failed = await worker.tools.run(spark_call(sql="SELECT * FROM b", inputs={"b": source}))
    assert failed.error is not None
    assert failed.error.kind == "schema"
    assert "line 4" in failed.error.message
    diverted = {**source, "on_bad_row": "divert"}
    inputs = await answered(worker, spark_call(sql="SELECT * FROM b", inputs={"b": diverted}))
    assert inputs["rows"] == [{"id": 1, "n": 2}]
    assert inputs["rejected"]["b"]["row_count"] == 2
    assert {row["line"] for row in inputs["rejected"]["b"]["rows"]} == {3, 4}


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ({"path": "s3://{bucket}/none/"}, "not_found", "there are no files at s3://"),
        ({"path": "s3://{bucket}/in/people.csv", "auth": "wrong"}, "auth", "is refused to"),
        ({"path": "s3://{bucket}/in/people.csv", "auth": None}, "config", "needs 'auth'"),
        ({"path": "s3://nobody-has-this/x.csv"}, "not_found", "no such bucket"),
        ({"path": "s3://{bucket}/in/people.csv", "frmat": "csv"}, "validation", "did you mean"),
        ({"path": "s3://{bucket}/in/people.csv", "format": "parquet"}, "parse", "does not read as"),
        (
            {"path": "s3://{bucket}/in/people.csv", "schema": "id BIGNUM"},
            "validation",
            "has the unknown type BIGNUM",
        ),
        (
            {"path": "s3://{bucket}/in/people.csv", "delimiter": ";", "schema": "nope INT"},
            "schema",
            "has no column 'nope'",
        ),
    ],
)
async def test_a_source_that_cannot_be_read_says_why(
    worker: Bench, s3: S3Server, bucket: S3Store, source: dict[str, Any], kind: str, said: str
) -> None:
    obstore.put(bucket, "in/people.csv", PEOPLE.encode())
    given = {"auth": "lake", **source, "path": source["path"].format(bucket=s3.bucket)}
    found = await worker.tools.run(spark_call(sql="SELECT * FROM p", inputs={"p": given}))
    assert found.error is not None
    assert (found.error.kind, said in found.error.message) == (kind, True), found.error


async def test_files_of_the_execution_are_read_and_written(worker: Bench) -> None:
    step = """
  - step: make
    tool:
      - first:
          kind: spark
          inputs: {r: [{k: a, n: 1}, {k: b, n: 2}]}
          sql: SELECT * FROM r
          output: {path: sums/, partition_by: k}
      - second:
          kind: spark
          inputs: {s: {path: "sums/k=b/"}}
          sql: SELECT n, k FROM s
"""
    (*_, done) = await worker.run(command_of(step))
    assert not isinstance(done, CommandFailed), done
    raw = await worker.value(done.result)
    assert raw["rows"] == [{"n": 2, "k": "b"}]


async def test_a_delta_table_takes_each_commit_once_and_can_be_read_as_it_was(
    worker: Bench, s3: S3Server
) -> None:
    place = {"delta": f"s3://{s3.bucket}/tables/sales", "auth": "lake"}
    rows = {"r": [{"id": 1, "day": "a", "n": 1}, {"id": 2, "day": "b", "n": 2}]}
    make = {**place, "partition_by": ["day"]}
    for attempt in (1, 2):
        made = await answered(
            worker,
            sink_call(make, key="m", attempt=attempt, sql="SELECT * FROM r", inputs=rows),
        )
        assert (made["row_count"], made["written"]["version"]) == (2, 0)
    more = {"r": [{"id": 2, "day": "b", "n": 20}, {"id": 3, "day": "c", "n": 3}]}
    merged = await answered(
        worker,
        sink_call(
            {**place, "mode": "upsert", "key": ["id"]},
            key="u",
            sql="SELECT * FROM r",
            inputs=more,
        ),
    )
    assert merged["written"]["version"] == 1
    query = "SELECT id, n, day FROM t ORDER BY id"
    now = await answered(worker, spark_call(sql=query, inputs={"t": place}))
    assert now["rows"] == [
        {"id": 1, "n": 1, "day": "a"},
        {"id": 2, "n": 20, "day": "b"},
        {"id": 3, "n": 3, "day": "c"},
    ]
    before = await answered(worker, spark_call(sql=query, inputs={"t": {**place, "as_of": "0"}}))
    assert [row["n"] for row in before["rows"]] == [1, 2]
    anew = {**place, "mode": "overwrite_partitions", "partition_by": ["day"]}
    await answered(
        worker,
        sink_call(anew, key="p", sql="SELECT * FROM r WHERE id = 3", inputs=more),
    )
    count = await answered(
        worker, spark_call(sql="SELECT count(*) AS n FROM t", inputs={"t": place})
    )
    assert count["rows"] == [{"n": 3}]
    twice = await worker.tools.run(
        sink_call(
            {**place, "mode": "upsert", "key": "day"},
            key="t",
            sql="SELECT * FROM r UNION ALL SELECT * FROM r",
            inputs=more,
        )
    )
    assert twice.error is not None
    assert "keys are in several rows" in twice.error.message


async def test_an_iceberg_table_takes_each_commit_once_and_can_be_read_as_it_was(
    worker: Bench, s3: S3Server, database: str
) -> None:
    await worker.put_credential("catalog", {"dsn": database}, version=next(VERSIONS))
    about = {
        "catalog": "catalog",
        "warehouse": f"s3://{s3.bucket}/warehouse",
        "table": "shop.sales",
    }
    place = {"iceberg": about, "auth": "lake"}
    rows = {"r": [{"id": 1, "day": "a", "n": 1}, {"id": 2, "day": "b", "n": 2}]}
    make = {**place, "partition_by": ["day"]}
    for attempt in (1, 2):
        made = await answered(
            worker,
            sink_call(make, key="im", attempt=attempt, sql="SELECT * FROM r", inputs=rows),
        )
        assert made["written"]["is_repeated"] is (attempt == 2)
        assert made["row_count"] == 2
    more = {"r": [{"id": 2, "day": "b", "n": 20}, {"id": 3, "day": "c", "n": 3}]}
    for attempt in (1, 2):
        await answered(
            worker,
            sink_call(
                {**place, "mode": "upsert", "key": ["id"]},
                key="iu",
                attempt=attempt,
                sql="SELECT * FROM r",
                inputs=more,
            ),
        )
    query = "SELECT id, n, day FROM t ORDER BY id"
    now = await answered(worker, spark_call(sql=query, inputs={"t": place}))
    assert now["rows"] == [
        {"id": 1, "n": 1, "day": "a"},
        {"id": 2, "n": 20, "day": "b"},
        {"id": 3, "n": 3, "day": "c"},
    ]
    before = await answered(worker, spark_call(sql=query, inputs={"t": {**place, "as_of": "1"}}))
    assert [row["n"] for row in before["rows"]] == [1, 2]
    anew = {**place, "mode": "overwrite_partitions", "partition_by": ["day"]}
    fresh = {"r": [{"id": 9, "day": "c", "n": 9}]}
    await answered(worker, sink_call(anew, key="ip", sql="SELECT * FROM r", inputs=fresh))
    after = await answered(worker, spark_call(sql=query, inputs={"t": place}))
    assert [row["id"] for row in after["rows"]] == [1, 2, 9]
    wrong = await worker.tools.run(
        spark_call(sql=query, inputs={"t": {**place, "iceberg": {**about, "table": "shop.nope"}}})
    )
    assert wrong.error is not None
    assert (wrong.error.kind, "there is no Iceberg table shop.nope" in wrong.error.message) == (
        "not_found",
        True,
    )


async def test_rows_are_held_to_what_is_expected_of_them(worker: Bench, s3: S3Server) -> None:
    people = [{"id": 1}, {"id": 2}]
    orders = {
        "columns": ["id", "person", "amount", "at"],
        "rows": [
            {"id": 1, "person": 1, "amount": 5, "at": "2026-01-01T00:00:00Z"},
            {"id": 2, "person": 3, "amount": -1, "at": "2026-01-02T00:00:00Z"},
            {"id": 2, "person": None, "amount": None, "at": None},
        ],
    }
    expect = {
        "not_null": ["id"],
        "unique": ["id"],
        "range": {"amount": {"min": 0}},
        "in": {"person": [1, 2, 3]},
        "predicate": "id > 0",
        "row_count": {"min": 3, "max": 3},
    }
    place = {"path": f"s3://{s3.bucket}/checked/", "auth": "lake"}
    inputs = {"o": orders, "p": people}

    def checked(**more: Any) -> Call:
        sink = {**place, "expect": {**expect, **more}, "mode": "append"}
        return sink_call(sink, key=f"c{sorted(more)}", sql="SELECT * FROM o", inputs=inputs)

    failed = await worker.tools.run(checked())
    assert failed.error is not None
    assert failed.error.kind == "assertion"
    assert "output: unique id does not hold in 1 of 3 rows" in failed.error.message
    warned = await answered(worker, checked(on_fail="warn"))
    assert {one["check"]: one["is_met"] for one in warned["checks"]} == {
        "not_null id": True,
        "unique id": False,
        "range amount": False,
        "in person": True,
        "predicate id > 0": True,
        "row_count": True,
    }
    diverting = {key: expect[key] for key in ("not_null", "range")} | {"on_fail": "divert"}
    sink = {**place, "mode": "overwrite", "expect": diverting}
    kin = {"foreign_key": {"column": "person", "of": "p", "key": "id"}}
    orphan = await worker.tools.run(
        sink_call({**place, "expect": kin}, key="k", sql="SELECT * FROM o", inputs=inputs)
    )
    assert orphan.error is not None
    assert "foreign_key person does not hold in 1 of 3 rows" in orphan.error.message
    keyed = {"path": f"s3://{s3.bucket}/keyed/", "auth": "lake", "expect": {"unique": "person"}}
    nobody = "SELECT id, CAST(NULL AS INT) AS person FROM o"
    left_alone = await answered(worker, sink_call(keyed, key="n", sql=nobody, inputs=inputs))
    assert left_alone["checks"][0]["is_met"], "null is no value that is there twice"
    left = await answered(worker, sink_call(sink, key="d", sql="SELECT * FROM o", inputs=inputs))
    assert left["row_count"] == 2
    assert [row["amount"] for row in left["diverted"]["output"]] == [-1]
    orphans = {**place, "expect": {"foreign_key": {"column": "person", "of": "p", "key": "id"}}}
    found = await worker.tools.run(
        spark_call(sql="SELECT * FROM w", inputs={"w": orphans, "p": people})
    )
    assert found.error is None, "person 1 is known, and null is of nobody"
    numbers = {**place, "mode": "overwrite", "expect": {"in": {"code": [1]}}}
    texts = await worker.tools.run(sink_call(numbers, key="t", sql="SELECT '01' AS code"))
    assert "'code', which is text, with 1" in getattr(texts.error, "message", "")
    columns = "id BIGINT, person BIGINT, amount BIGINT"
    told = {"schema": {"columns": columns, "drift": "warn"}, "not_null": "id", "on_fail": "divert"}
    known = {**place, "expect": told}
    drifted = await answered(worker, spark_call(sql="SELECT * FROM w", inputs={"w": known}))
    assert [one["is_met"] for one in drifted["checks"]] == [False, True]
    known["expect"] = {"schema": columns}
    refused = await worker.tools.run(spark_call(sql="SELECT * FROM w", inputs={"w": known}))
    assert refused.error is not None
    assert refused.error.kind == "assertion"
    assert "input 'w': expect.schema does not hold: column 'at' is" in refused.error.message
    known["expect"] = {"schema": "id NUMBERS"}
    wrong = await worker.tools.run(spark_call(sql="SELECT * FROM w", inputs={"w": known}))
    assert wrong.error is not None
    assert "input 'w': expect.schema: schema 'id NUMBERS' is no DDL" in wrong.error.message
    old = {**place, "expect": {"freshness": {"column": "at", "within": "1h"}}}
    late = await worker.tools.run(spark_call(sql="SELECT * FROM w", inputs={"w": old}))
    assert late.error is not None
    assert "input 'w': freshness at does not hold: it is 2026-01-01" in late.error.message


async def test_rows_too_long_to_be_shown_are_left_out_all_the_same(
    worker: Bench, s3: S3Server
) -> None:
    sink = {"path": f"s3://{s3.bucket}/long/", "auth": "lake"}
    sink["expect"] = {"not_null": "id", "on_fail": "divert"}
    query = "SELECT 1 AS id, 'a' AS t UNION ALL SELECT NULL, repeat('b', 2000000)"
    written = await answered(worker, sink_call(sink, key="long", sql=query))
    assert (written["row_count"], written["checks"][0]["failed_rows"]) == (1, 1)
    assert "diverted" not in written


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ({"nul": ["id"]}, "expect has an unknown key 'nul'"),
        ({"not_null": ["nope"]}, "names 'nope', which is no column"),
        ({"predicate": "reflect('java.lang.System', 'exit', 1) = 1"}, "Reflection"),
        ({"on_fail": "stop", "not_null": "id"}, "use fail, warn, divert"),
    ],
)
async def test_what_cannot_be_expected_is_refused(
    worker: Bench, s3: S3Server, expect: dict[str, Any], said: str
) -> None:
    sink = {"path": f"s3://{s3.bucket}/refused/", "auth": "lake", "expect": expect}
    found = await worker.tools.run(
        sink_call(sink, key="x", sql="SELECT * FROM o", inputs={"o": [{"id": 1}]})
    )
    assert found.error is not None
    assert said in found.error.message


async def test_the_plan_of_a_task_is_kept_where_it_is_asked_for(
    worker: Bench, s3: S3Server
) -> None:
    query = {"sql": "SELECT id % 2 AS k, count(*) AS n FROM r GROUP BY 1"}
    call = spark_call(**query, inputs={"r": [{"id": 1}, {"id": 2}]}, explain=True)
    found = await answered(worker, call)
    assert "== Physical Plan ==" in found["plan"]
    assert "HashAggregate" in found["plan"]
    assert found["row_count"] == 2
    sink = {"path": f"s3://{s3.bucket}/explained/", "auth": "lake"}
    written = await answered(
        worker, sink_call(sink, key="e", **query, inputs={"r": [{"id": 1}]}, explain=True)
    )
    assert "HashAggregate" in written["plan"]
    silent = await answered(
        worker, sink_call({**sink, "mode": "append"}, key="f", **query, inputs={"r": [{"id": 1}]})
    )
    assert "plan" not in silent


INCREMENT = """
  - step: load
    incremental: {cursor: id, from: state.rows, initial: 0TASK}
    tool:
      - write:
          kind: spark
          inputs: {r: [{id: 7}, {id: 9}]}
          sql: SELECT * FROM r WHERE id > {{ increment.since }}
          output: {path: rows/}
      - reach:
          kind: spark
          inputs: {w: {path: rows/}}
          sql: SELECT max(id) AS id FROM w
"""


async def test_the_cursor_of_a_written_dataset_is_that_of_a_task_after_it(worker: Bench) -> None:
    increment = Increment(name="rows", type=StateType.INTEGER, since=0, value=0, revision=0)
    slice_ = StateSlice(increment=increment)
    right = INCREMENT.replace("TASK", ", task: reach")
    (*_, done) = await worker.run(command_of(step_of(right), slice_=slice_))
    assert isinstance(done, CommandCompleted), done
    assert done.state
    assert (done.state.value and done.state.value.value, done.state.rows) == (9, 1)
    wrong = INCREMENT.replace("TASK", ", task: write")
    (*_, failed) = await worker.run(command_of(step_of(wrong), slice_=slice_))
    assert isinstance(failed, CommandFailed)
    assert "name it in incremental.task" in failed.error.message


async def test_a_file_of_a_server_is_an_input(worker: Bench) -> None:
    with serving() as site:
        site.files["orders.csv"] = b"id;code\n1;007\n2;x\n"
        source = {"path": f"{site.url}/files/orders.csv", "delimiter": ";"}
        sql = "SELECT id, code FROM o ORDER BY id"
        done = await answered(worker, spark_call(sql=sql, inputs={"o": source}))
        assert done["rows"] == [{"id": 1, "code": "007"}, {"id": 2, "code": "x"}]
        lenient = {**source, "on_bad_row": "skip"}
        outcome = await worker.tools.run(spark_call(sql=sql, inputs={"o": lenient}))
        assert outcome.error is not None
        assert "are counted by kind duckdb and transfer" in outcome.error.message


# Tries all that a function in an executor finds: its variables, and the worker's own modules.
THIEF = """\
def main(spark, inputs, params):
    def steal(batches):
        import json, os
        import pyarrow as pa
        from noetl_worker.spark.tables import store_access
        from noetl_worker.spark.tables.store_access import StoreAddress

        home = StoreAddress(url=params["url"], tenant_id="acme", organization_id="west")
        names = []
        for name in ("lake", "hidden"):
            try:
                names.append(store_access.open_credential_fields(home, name))
            except Exception as problem:
                names.append(str(problem))
        count = sum(batch.num_rows for batch in batches)
        found = json.dumps([count, dict(os.environ), names])
        yield pa.RecordBatch.from_pydict({"found": pa.array([found])})

    rows = inputs["mine"].coalesce(1).mapInArrow(steal, "found string")
    return {"rows": rows, "conf": str(spark.sparkContext.getConf().getAll())}
"""


async def test_a_function_in_an_executor_opens_nothing_but_what_its_job_names(
    worker: Bench, s3: S3Server, bucket: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("mine/a.csv", "theirs/a.csv"):
        obstore.put(bucket, key, b"n\n1\n2\n")
    await worker.put_credential("hidden", {"token": "hidden-token"}, kind="bearer")
    grants: list[JobGrant] = []
    given = job_grants.with_grant

    def note_grant(ask: SparkRequest, grant: JobGrant) -> SparkRequest:
        grants.append(grant)
        return given(ask, grant)

    monkeypatch.setattr(job_grants, "with_grant", note_grant)
    raw = await answered(
        trusting(worker),
        spark_call(
            code=THIEF,
            inputs={"mine": {"path": f"s3://{s3.bucket}/mine/", "auth": "lake"}},
            params={"url": s3.payload_url},
            event_log=True,
        ),
    )
    (row,) = raw["rows"]["rows"]
    count, environ, attempts = codec.decode_json(row["found"].encode())
    assert count == 2
    assert [text.count("is opened by the worker alone") for text in attempts] == [1, 1]
    (grant,) = grants
    account = grant.accounts["lake"]
    seen = f"{environ} {attempts} {raw['conf']}"
    for secret in (s3.secret_key, KEY, SEAL_KEY, account["session_token"], "hidden-token"):
        assert secret not in seen
    assert grant.ends_at > grant.renew_at > 0
    # The keys themselves open the folder of the job, and no other; those of payloads no credential.
    credentials = keys_of(bucket, "tenant/acme/org/west/named/credentials")
    narrow = open_bucket(s3, account)
    assert bytes(obstore.get(narrow, "mine/a.csv").bytes()) == b"n\n1\n2\n"
    payloads = open_bucket(s3, structs.asdict(grant.store))
    for client in (narrow, payloads):
        for key in ("theirs/a.csv", *credentials):
            with pytest.raises(PermissionDeniedError):
                obstore.get(client, key)
        with pytest.raises(PermissionDeniedError):
            obstore.put(client, "theirs/b.csv", b"n\n3\n")
    with pytest.raises(PermissionDeniedError):
        obstore.put(narrow, "mine/b.csv", b"n\n3\n")
    assert credentials
