"""What executors do to read PostgreSQL, on a real server and without a session."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from tests.support.polling import eventually
from tests.support.typed_values import UUID, VALUES
from tests.support.working import ORGANIZATION, TENANT

from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts import codec, credentials
from noetl_contracts.json_values import to_json_value
from noetl_storage.arrow import arrow_values
from noetl_storage.arrow.table_schema import format_schema
from noetl_worker.spark.postgres import shared_snapshots
from noetl_worker.spark.postgres.postgres_source import PostgresSource
from noetl_worker.spark.postgres.read_request import ReadRequest, build_postgres_options
from noetl_worker.spark.postgres.shared_snapshots import PlannedReads
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress

KEY = base64.b64encode(b"7" * 32).decode()
# Columns of a numeric without digits hold 20 before the point and 18 behind it.
REFUSED = {
    *("38 digits", "39 digits", "wide decimal", "numeric that is none"),
    *("endless date", "endless moment ", "endless moment with a zone"),
}
FITTING = [item for item in VALUES if item.postgres is not None and item.name not in REFUSED]
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


class Reads:
    """A store with credentials, and reads by them."""

    def __init__(self, folder: Path) -> None:
        self.home = StoreAddress(
            url=f"file://{folder}", tenant_id=TENANT, organization_id=ORGANIZATION
        )

    def put_credential(self, name: str, dsn: str) -> None:
        """Register a credential as the API does."""
        sealed = CredentialSealer(KEY).seal_credential(
            {"dsn": dsn},
            name=name,
            version=1,
            kind="postgres",
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
        )
        store_access.run_with_store(
            self.home,
            lambda payloads: payloads.put_named(
                credentials.build_object_name(name, 1),
                codec.encode_json(sealed),
                tenant_id=TENANT,
                organization_id=ORGANIZATION,
            ),
        )

    def options_of(self, source: dict[str, Any]) -> dict[str, str]:
        """The options of an input, as `spark_inputs` writes them."""
        given = {**source}
        credential = given.pop("auth", "db")
        if "table" in given:
            given["query"] = 'table "' + '"."'.join(given["table"]) + '"'
        request = ReadRequest(name="s", **given)
        return build_postgres_options(self.home, credential=credential, request=request)

    def read(self, **source: Any) -> tuple[list[str], list[list[pa.RecordBatch]]]:
        """Read a source as Spark would: its types, and the batches of each share."""
        reads = {"s": self.options_of(source)}
        with shared_snapshots.plan_reads(reads, self.home) as planned:
            return read_shares(planned.options["s"])

    @asynccontextmanager
    async def hold_plans(self, **sources: dict[str, Any]) -> AsyncIterator[PlannedReads]:
        """Hold the snapshots of several sources."""
        reads = {name: self.options_of(source) for name, source in sources.items()}
        holding = shared_snapshots.plan_reads(reads, self.home)
        planned = await asyncio.to_thread(holding.__enter__)
        try:
            yield planned
        finally:
            await asyncio.to_thread(holding.__exit__, None, None, None)

    async def rows_of(self, **source: Any) -> tuple[list[str], list[dict[str, Any]]]:
        """Read a source: its types, and its rows in the form of JSON."""
        types, shares = await asyncio.to_thread(lambda: self.read(**source))
        return types, [row for share in shares for batch in share for row in show_rows(batch)]

    async def refusal_of(self, **source: Any) -> dict[str, Any]:
        """Read what is refused, and return what the driver finds of it."""
        with pytest.raises(SparkRefusal) as refused:
            await self.rows_of(**source)
        about = store_access.find_refusal(str(refused.value))
        assert about is not None
        return about


def read_shares(options: dict[str, str]) -> tuple[list[str], list[list[pa.RecordBatch]]]:
    """Read each share of a planned read."""
    source = PostgresSource(options)
    schema = source.schema()
    reader = source.reader(schema)
    shares = [list(reader.read(item)) for item in reader.partitions()]
    return format_schema(to_arrow_schema(schema, timezone="UTC")), shares


def show_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Show rows in the form of JSON."""
    rows = arrow_values.batch_to_rows(batch, [""] * batch.num_columns)
    return [{name: to_json_value(value) for name, value in row.items()} for row in rows]


@pytest.fixture
def reads(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Reads:
    monkeypatch.setenv("NOETL_WORKER_SECRET_KEY", KEY)
    return Reads(tmp_path)


@pytest.fixture
async def db(reads: Reads, database: str) -> AsyncIterator[Any]:
    await asyncio.to_thread(reads.put_credential, "db", database)
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def test_every_type_is_read_as_it_is(reads: Reads, db: Any) -> None:
    columns = ", ".join(f"{item.postgres} as v{place}" for place, item in enumerate(FITTING))
    types, (row,) = await reads.rows_of(query=f"select {columns}")
    for (name, shown), value, kind in zip(row.items(), FITTING, types, strict=True):
        assert shown == TEXTS.get(value.name, value.json_form), (name, value)
        assert kind == TYPE_IN_SPARK.get(value.kind, value.kind), (name, value)
    assert not db.is_closed()


async def test_what_spark_does_not_hold_is_refused_by_its_column(reads: Reads, db: Any) -> None:
    forms = [item.postgres for item in VALUES if item.name in REFUSED and item.postgres is not None]
    forms += ["array[[1, 2], [3, 4]]", "array[1e30::numeric]", "array['infinity'::date]", "1e-19"]
    for form in forms:
        about = await reads.refusal_of(query=f"select 1 as a, {form} as v0")
        assert about["kind"] == "schema", (form, about)
        for word in ("input 's'", "column 'v0'", "credential 'db'", "in the query"):
            assert word in about["message"], (form, about)
    assert not db.is_closed()


async def test_numbers_keep_the_digits_that_they_declare(reads: Reads, db: Any) -> None:
    await db.execute(
        "create table digits(a numeric(18,4), b numeric(38,0), c numeric, d numeric(3,5));"
        "insert into digits values (1.5, 99999999999999999999999999999999999999, 0.1, 0.00012)"
    )
    types, rows = await reads.rows_of(table=["digits"])
    assert types == [f"decimal128({item})" for item in ("18, 4", "38, 0", "38, 18", "5, 5")]
    assert rows == [{"a": 1.5, "b": "9" * 38, "c": 0.1, "d": 0.00012}]
    average = "select avg(i) as a, sum(i::int8) as s from generate_series(1, 2) i"
    assert (await reads.rows_of(query=average))[1] == [{"a": 1.5, "s": 3}]


async def test_types_of_users_are_texts_and_their_arrays_lists(reads: Reads, db: Any) -> None:
    await db.execute("create type mood as enum ('sad', 'glad'); create domain yes as boolean")
    query = (
        "select 'sad'::mood as m, array['glad', null]::mood[] as ms, true::yes as y,"
        " int4range(1, 3) as r, row(1, 'a') as c, 'a'::char(3) as p, 4000000000::oid as o"
    )
    types, rows = await reads.rows_of(query=query)
    assert types == ["string", "list<item: string>", "bool", *["string"] * 3, "int64"]
    assert rows == [
        {"m": "sad", "ms": ["glad", None], "y": True, "r": "[1,3)", "c": "(1,a)", "p": "a  "}
        | {"o": 4_000_000_000}
    ]


async def test_values_of_a_query_are_those_of_its_parameters(reads: Reads, db: Any) -> None:
    query = (
        "select $1::date as d, '$1' as t, $2::text as s, $3::jsonb as j, $4::bytea as b,"
        " $5::int as n, $6::int[] as l -- $1"
    )
    values = ["2024-01-02", "a'\\b", {"a": [1]}, "AAH/", None, [1, 2]]
    _, rows = await reads.rows_of(query=query, values=values)
    assert rows == [
        {"d": "2024-01-02", "t": "$1", "s": "a'\\b", "j": '{"a": [1]}', "b": "AAH/"}
        | {"n": None, "l": [1, 2]}
    ]
    about = await reads.refusal_of(query="select $1::text as t", values=["a\0b"])
    assert (about["kind"], "'params'" in about["message"]) == ("validation", True)
    assert not db.is_closed()


async def test_shares_hold_each_row_once_and_are_alike(reads: Reads, db: Any) -> None:
    await db.execute(
        "create table keyed as select case when i > 9990 then i * 1000000::bigint else i end as id,"
        " md5(i::text)::uuid as uid, date '2024-01-01' + i as day, 'n' || i as name,"
        " timestamptz '2024-01-01' + i * interval '1 s' as at from generate_series(1, 10000) i;"
        "insert into keyed select from generate_series(1, 7);"
        "create table child () inherits (keyed); insert into child(id) values (-1)"
    )
    shares: list[dict[str, Any]] = [{"partitions": 4}, {"partitions": None}]
    shares += [{"partitions": 4, "column": column} for column in ("id", "uid", "day", "name", "at")]
    for share in shares:
        _, found = await asyncio.to_thread(partial(reads.read, table=["keyed"], **share))
        assert len(found) == (4 if share["partitions"] else 1), share
        sizes = [sum(batch.num_rows for batch in batches) for batches in found]
        assert sum(sizes) == 10_008, share
        # A table has pages that wait for rows, of which the shares by pages know nothing.
        most = 3_100 if "column" in share else 5_000
        assert len(found) == 1 or max(sizes) < most, (share, sizes)
        ids = [item for batches in found for batch in batches for item in batch["id"].to_pylist()]
        assert len(set(ids)) == 10_002, share
    query = {"query": "select * from keyed where id > $1", "values": [10]}
    by_name = await asyncio.to_thread(lambda: reads.read(**query, partitions=3, column="name"))
    assert sum(batch.num_rows for batches in by_name[1] for batch in batches) == 9_990


async def test_what_is_planned_is_read_as_it_was_then(reads: Reads, db: Any) -> None:
    await db.execute("create table moment as select i from generate_series(1, 100) i")
    table = {"table": ["moment"], "partitions": 2}
    query = {"query": "select i from moment where i > 0"}
    # One that was closed before is shown until its server process has ended.
    is_kept = "select count(*) = 1 from pg_stat_activity where application_name = 'noetl-spark'"
    async with reads.hold_plans(a=table, b=query) as planned:
        assert planned.moving == frozenset()
        await eventually(lambda: db.fetchval(is_kept))
        await db.execute("insert into moment select i from generate_series(1, 50) i")
        for name in ("a", "b", "a"):
            _, found = await asyncio.to_thread(read_shares, planned.options[name])
            assert sum(batch.num_rows for batches in found for batch in batches) == 100
    assert len((await reads.rows_of(table=["moment"]))[1]) == 150


@pytest.mark.parametrize(
    ("query", "moving"),
    [
        ("select i from numbers where i in (1, 2) and lower('A') = 'a'", set()),
        ("select distinct i from numbers n join numbers m using (i)", set()),
        ("select random() as r", {"s"}),
        ("select now() as n", {"s"}),
        ("select current_date as d", {"s"}),
        ("select i from numbers limit 1", {"s"}),
        ("select distinct on (i) i from numbers", {"s"}),
        ("select array_agg(i) as l from numbers", {"s"}),
        ("select i, rank() over (order by i) as r from numbers", {"s"}),
        ("select * from seen", {"s"}),
    ],
)
async def test_queries_that_may_differ_between_runs_are_known(
    reads: Reads, db: Any, query: str, moving: set[str]
) -> None:
    await db.execute(
        "create table numbers as select i from generate_series(1, 3) i;"
        "create view seen as select random() as r"
    )
    async with reads.hold_plans(s={"query": query}) as planned:
        assert planned.moving == moving


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ({"table": ["shopp"]}, "validation", "there is no table 'shopp': did you mean 'shop'?"),
        ({"query": "select * from nowhere"}, "db_error", 'relation "nowhere" does not exist'),
        ({"query": "select prize from shop"}, "db_error", 'column "prize" does not exist'),
        ({"query": "select 1 as a, 2 as a"}, "schema", "several columns named 'a'"),
        ({"query": "select $1::int as a", "values": ["x"]}, "db_error", 'integer: "x"'),
        ({"query": "select 1 / (id - 500) as a from shop"}, "db_error", "division by zero"),
        (
            {"table": ["shop"], "partitions": 2, "column": "idd"},
            "validation",
            "'idd' is no column of it: did you mean 'id'?",
        ),
        (
            {"table": ["shop"], "partitions": 2, "column": "ok"},
            "validation",
            "'ok' is bool",
        ),
        ({"query": "select id from shop", "partitions": 2}, "validation", "'partition_column'"),
        (
            {"query": "select id from shop limit 9", "partitions": 2, "column": "id"},
            "validation",
            "LIMIT without ORDER BY",
        ),
        (
            {"query": "select random() as r", "partitions": 2, "column": "r"},
            "validation",
            "random()",
        ),
    ],
)
async def test_what_cannot_be_read_says_where_and_why(
    reads: Reads, db: Any, source: dict[str, Any], kind: str, said: str
) -> None:
    await db.execute(
        "create table shop as select i as id, true as ok from generate_series(1, 900) i"
    )
    about = await reads.refusal_of(**source)
    assert about["kind"] == kind, about
    for word in ("input 's'", "credential 'db'", said):
        assert word in about["message"], about


async def test_a_table_that_may_not_be_read_is_named(reads: Reads, db: Any, database: str) -> None:
    await db.execute("create table closed(id int); create role reader login password 'reader'")
    try:
        scheme, _, rest = database.partition("://")
        dsn = f"{scheme}://reader:reader@{rest.rpartition('@')[2]}"
        await asyncio.to_thread(reads.put_credential, "reader", dsn)
        about = await reads.refusal_of(table=["closed"], auth="reader")
        for word in ("table 'closed'", "credential 'reader'", "permission denied for table closed"):
            assert word in about["message"], about
        assert about["pg_code"] == "42501"
    finally:
        await db.execute("drop role reader")


async def test_nobody_at_the_address_is_a_failed_connection(reads: Reads, db: Any) -> None:
    await asyncio.to_thread(reads.put_credential, "away", "postgresql://u:secret@127.0.0.1:1/d")
    about = await reads.refusal_of(table=["closed"], auth="away")
    assert about["kind"] == "db_connection", about
    assert "credential 'away'" in about["message"]
    assert "secret" not in about["message"]
    assert not db.is_closed()


async def test_a_server_that_ends_the_connection_is_a_lost_connection(
    reads: Reads, db: Any
) -> None:
    slow = "select i, pg_sleep(0.002)::text as s from generate_series(1, 100000) i"
    failing = asyncio.ensure_future(reads.refusal_of(query=slow))
    copies = (
        "select pid from pg_stat_activity where application_name = 'noetl-spark'"
        " and query like 'COPY%' and state = 'active'"
    )
    pid = await eventually(lambda: db.fetchval(copies))
    await db.execute("select pg_terminate_backend($1)", pid)
    about = await failing
    assert about["kind"] == "db_connection", about
    assert "input 's'" in about["message"]


async def test_a_read_that_is_left_early_closes_its_connection(reads: Reads, db: Any) -> None:
    await db.execute("create table many as select i from generate_series(1, 100000) i")
    async with reads.hold_plans(s={"table": ["many"]}) as planned:
        source = PostgresSource(planned.options["s"])
        reader = source.reader(source.schema())
        reading: Any = reader.read(reader.partitions()[0])
        with closing(reading) as batches:
            assert (await asyncio.to_thread(next, batches)).num_rows > 0
    nobody = "select count(*) = 0 from pg_stat_activity where application_name = 'noetl-spark'"
    await eventually(lambda: db.fetchval(nobody))
