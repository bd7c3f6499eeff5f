"""The duckdb tool: real databases, real files, hostile SQL."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from msgspec import structs
from tests.support.attempting import of_organization
from tests.support.calls import VISITS
from tests.support.files import walk_folder
from tests.support.polling import eventually
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, bench, command_of

from noetl_contracts.commands.command_work import StepResult
from noetl_contracts.ids import TenantId
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.tools.calls.call import Call, Outcome, Timeout


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        yield found


def site(**fields: Any) -> UnitScope:
    known_names: dict[str, Any] = {
        "execution_id": EXECUTION,
        "tenant_id": TENANT,
        "organization_id": ORGANIZATION,
        "step": "s",
        "unit": "step",
    }
    return UnitScope(**{**known_names, **fields})


def call(query: Any, *, at: UnitScope | None = None, timeout_s: float = 30, **fields: Any) -> Call:
    return Call(
        site=at or site(),
        task="t",
        kind="duckdb",
        attempt=1,
        visit=next(VISITS),
        fields={"query": query, **fields},
        input={},
        auth=fields.pop("auth", None),
        timeout=Timeout(total=timeout_s),
    )


async def run(worker: Bench, query: Any, **fields: Any) -> Outcome:
    return await worker.tools.run(call(query, **fields))


async def rows(worker: Bench, query: Any, **fields: Any) -> Any:
    fields.setdefault("database", ":memory:")
    found = await run(worker, query, **fields)
    assert found.error is None, found.error
    json.dumps(found.data, allow_nan=False)
    return found.data["rows"]


def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tenant" / TENANT / "org" / ORGANIZATION / "files"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("1::tinyint", 1),
        ("170141183460469231731687303715884105727::hugeint", str(2**127 - 1)),
        ("1.50::decimal(10,2)", 1.5),
        ("12345678901234567890.123::decimal(30,3)", "12345678901234567890.123"),
        ("timestamp '2026-01-02 03:04:05.5'", "2026-01-02T03:04:05.500000"),
        ("timestamptz '2026-01-02 03:04:05+02'", "2026-01-02T01:04:05+00:00"),
        ("timestamp_ns '2026-01-02 03:04:05.123456789'", "2026-01-02T03:04:05.123456789"),
        ("date '2026-01-02'", "2026-01-02"),
        ("time '03:04:05'", "03:04:05"),
        ("interval '1 month 2 days'", "P1M2D"),
        ("[1, null, 2]", [1, None, 2]),
        ("[date '2026-01-02']", ["2026-01-02"]),
        ("[1, 2]::int[2]", [1, 2]),
        ("{'a': 1, 'b': [1.5::decimal(3,1)], 'c': null}", {"a": 1, "b": [1.5], "c": None}),
        ("map {'k': date '2026-01-02'}", {"k": "2026-01-02"}),
        ("'\\x00\\x01'::blob", "AAE="),
        ("uuid '00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
        ("""'{"x": [1]}'::json""", {"x": [1]}),
        ("'nan'::double", "NaN"),
        ("true", True),
        ("null", None),
        ("5::uhugeint", 5),
        ("340282366920938463463374607431768211455::uhugeint", str(2**128 - 1)),
        ("[1::uhugeint]", "[1]"),
        ("timetz '01:02:03+02'", "01:02:03+02"),
        ("union_value(k := 3)", 3),
        ("'x'::enum('x', 'y')", "x"),
        ("'101'::bit", "101"),
    ],
)
async def test_values_come_as_json(worker: Bench, sql: str, value: Any) -> None:
    assert await rows(worker, f"select {sql} as v") == [{"v": value}]


async def test_every_type_of_the_database_has_a_form(worker: Bench) -> None:
    names = await rows(worker, "select column_name as n from (describe from test_all_types())")
    for name in (row["n"] for row in names):
        found = await run(
            worker,
            'select "NAME" as v from test_all_types()'.replace("NAME", name),
            database=":memory:",
        )
        assert found.error is None, (name, found.error)
        assert len(json.loads(json.dumps(found.data, allow_nan=False))["rows"]) == 3


async def test_returned_values_of_rare_types_are_exact(worker: Bench) -> None:
    found = await rows(
        worker,
        "create table t(a uhugeint, b int); insert into t values (7, 1) returning a, b, a as c",
    )
    assert found == [{"a": 7, "b": 1, "c": 7}]


async def test_each_statement_has_its_result(worker: Bench) -> None:
    found = await run(
        worker,
        "create table t(i int); insert into t values (1), (2); select count(*) as n from t;"
        " update t set i = 3 returning i; delete from t",
        database=":memory:",
    )
    assert found.error is None
    raw = found.data
    assert raw["statement_count"] == 5
    assert [command["row_count"] for command in raw["commands"]] == [0, 2, 1, 2, 2]
    assert raw["commands"][2]["rows"] == [{"n": 2}]
    # The last statement that returned rows is in front.
    assert raw["rows"] == [{"i": 3}, {"i": 3}]
    assert raw["columns"] == ["i"]


async def test_a_pipeline_reads_a_statement_by_its_number(worker: Bench) -> None:
    *_, done = await worker.run(
        command_of("""
  - step: s
    tool:
      - {name: q, kind: duckdb, database: ":memory:", commands: ["select 1 as a", "select 2 as b"]}
      - kind: python
        name: see
        input: {a: "{{ q.command_0.rows[0].a }}", b: "{{ q[0].b }}", n: "{{ q.data | length }}"}
        code: "return [a, b, n]"
""")
    )
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    found = await worker.value(done.result)
    assert found == [1, 2, 1]


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("select $1 + 1 as v, $2 as t", [1, "it's"]),
        ("select %s + 1 as v, %s as t", [1, "it's"]),
        ("select :a + 1 as v, :b as t", {"a": 1, "b": "it's"}),
        ("select %(a)s::int + 1 as v, %(b)s as t", {"a": 1, "b": "it's"}),
    ],
)
async def test_parameters_are_bound(worker: Bench, query: str, params: Any) -> None:
    assert await rows(worker, query, params=params) == [{"v": 2, "t": "it's"}]


async def test_a_failing_statement_undoes_those_before_it(worker: Bench) -> None:
    assert (await run(worker, "create table t(i int primary key)")).error is None
    broken = await run(worker, "insert into t values (1); insert into t values (1)")
    assert broken.error is not None
    assert (broken.error.kind, broken.error.code) == ("db_error", "DUCKDB")
    assert broken.error.retryable is False
    assert broken.error.details == {"statement": 1}
    assert (await run(worker, "select count(*) as n from t")).data["rows"] == [{"n": 0}]


@pytest.mark.parametrize("query", ["selec 1", "select * from nowhere", "select 1; select nope"])
async def test_wrong_sql_is_a_database_error(worker: Bench, query: str) -> None:
    found = await run(worker, query)
    assert found.error is not None
    assert (found.error.kind, found.error.code) == ("db_error", "DUCKDB")


async def test_a_missing_parameter_is_named(worker: Bench) -> None:
    found = await run(worker, "select :b", params={"a": 1})
    assert found.error is not None
    assert found.error.kind == "validation"
    assert ":b" in found.error.message


async def test_tasks_of_an_execution_share_a_database_and_others_do_not(worker: Bench) -> None:
    assert (await run(worker, "create table mine as select 7 as i")).error is None
    assert (await run(worker, "select i from mine")).data["rows"] == [{"i": 7}]
    elsewhere = await run(worker, "from mine", at=site(execution_id="264905529753600001"))
    assert elsewhere.error is not None
    other_tenant = await run(worker, "from mine", at=site(tenant_id=TenantId("evil")))
    assert other_tenant.error is not None
    private = await run(worker, "from mine", database=":memory:")
    assert private.error is not None


async def test_accesses_to_one_database_wait_for_each_other(worker: Bench) -> None:
    assert (await run(worker, "create table n as select 0 as i")).error is None
    found = await asyncio.gather(*(run(worker, "update n set i = i + 1") for _ in range(12)))
    assert [item.error for item in found] == [None] * 12
    assert (await run(worker, "from n")).data["rows"] == [{"i": 12}]


HOLDER = """
import asyncio, sys
from tests.support.working import bench
from tests.integration.worker.test_duckdb import run
async def main():
    async with bench(work_directory=sys.argv[1]) as worker:
        for _ in range(5):
            found = await run(worker, "update n set i = i + 1", database="noetl://files/n.duckdb")
            assert found.error is None, found.error
asyncio.run(main())
"""


async def test_another_process_waits_too(worker: Bench, tmp_path: Path) -> None:
    named = {"database": of_organization("n.duckdb")}
    assert (await run(worker, "create table n as select 0 as i", **named)).error is None
    root = Path(__file__).parents[3]
    other = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        str(tmp_path),
        cwd=root,
        stderr=subprocess.PIPE,
    )
    turns = 0
    while other.returncode is None:
        assert (await run(worker, "update n set i = i + 1", **named)).error is None
        turns += 1
        await asyncio.sleep(0)
    assert other.stderr is not None
    assert other.returncode == 0, (await other.stderr.read()).decode()
    assert (await run(worker, "from n", **named)).data["rows"] == [{"i": turns + 5}]


async def test_a_database_can_be_a_file(worker: Bench, tmp_path: Path) -> None:
    create = "create table t as select 1 as i"
    found = await run(worker, create, database="noetl://files/reports/own.duckdb")
    assert found.error is None
    assert (folder(tmp_path) / "reports" / "own.duckdb").is_file()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ([{"i": 1, "t": "a"}, {"i": 2}], [{"i": 1, "t": "a"}, {"i": 2, "t": None}]),
        ({"columns": ["i"], "rows": [[1], [2]]}, [{"i": 1}, {"i": 2}]),
        ({"columns": ["i"], "rows": []}, []),
        ({"rows": [{"i": 1}], "row_count": 1}, [{"i": 1}]),
        ([{"i": 1}, {"i": "x"}], [{"i": "1"}, {"i": "x"}]),
        ([{"d": {"a": 1}}, {"d": {"b": [1]}}], None),
        ([{"i": 2**70}], [{"i": str(2**70)}]),
        ([{"i": [1, "x"]}], [{"i": '[1,"x"]'}]),
        ([{"i": {}}], [{"i": "{}"}]),
    ],
)
async def test_rows_are_a_view(worker: Bench, source: Any, expected: Any) -> None:
    found = await rows(worker, "select * from o", inputs={"o": source})
    if expected is None:
        expected = [{"d": {"a": 1, "b": None}}, {"d": {"a": None, "b": [1]}}]
    assert found == expected


@pytest.mark.parametrize("source", [[], "rows", [1, 2], {"x": 1}, None])
async def test_what_holds_no_rows_is_refused(worker: Bench, source: Any) -> None:
    found = await run(worker, "select 1", inputs={"o": source})
    assert found.error is not None
    assert found.error.kind == "validation"
    assert "'o'" in found.error.message


async def test_the_name_of_an_input_is_only_a_name(worker: Bench) -> None:
    name = 'o"; drop table t; --'
    found = await rows(worker, 'select i from "o""; drop table t; --"', inputs={name: [{"i": 1}]})
    assert found == [{"i": 1}]


async def test_files_are_inputs(worker: Bench, tmp_path: Path) -> None:
    place = folder(tmp_path)
    (place / "a.csv").write_text("i,t\n1,x\n2,y\n")
    (place / "a.ndjson").write_text('{"i": 1}\n{"i": 2}\n')
    (place / "a.json").write_text('[{"i": 1}, {"i": 2}]')
    pyarrow.parquet.write_table(pa.table({"i": [1, 2]}), place / "a.parquet")
    for name in ("a.csv", "a.ndjson", "a.json", "a.parquet"):
        found = await rows(
            worker, "select sum(i) as s from f", inputs={"f": {"path": of_organization(name)}}
        )
        assert found == [{"s": 3}], name
    named = {"path": of_organization("a.csv"), "format": "csv"}
    assert len(await rows(worker, "from f", inputs={"f": named})) == 2


@pytest.mark.parametrize(
    "path",
    [
        "../../../../../etc/passwd",
        "/etc/passwd",
        "noetl://files/link.csv",
        "file:///etc/passwd",
        "a\x00b",
        ".",
    ],
)
async def test_no_path_leads_out(worker: Bench, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    (folder(tmp_path) / "link.csv").symlink_to(tmp_path / "secret.csv")
    found = await run(worker, "from f", inputs={"f": {"path": path, "format": "csv"}})
    assert found.error is not None
    assert found.error.kind == "config"
    as_database = await run(worker, "select 1", database=path)
    assert as_database.error is not None
    assert as_database.error.kind == "config"


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('{place}/in.csv')",
        "select * from glob('/etc/*')",
        "copy (select 1) to '{place}/out.csv'",
        "attach '{place}/other.duckdb' as other",
        "export database '{place}/dump'",
        "install postgres",
        "load postgres",
        "pragma profiling_output = '{place}/profile'",
        "call enable_logging(storage = 'file', storage_path = '{place}/logs')",
        "set session log_query_path = '{place}/log'",
        "select * from parquet_metadata('{place}/in.csv')",
        "select * from sniff_csv('{place}/in.csv')",
        "pragma import_database('{place}')",
        "from '{place}/in.csv'",
        "select getenv('HOME')",
        "set enable_external_access = true",
        "set memory_limit = '64GB'",
        "set lock_configuration = false",
        "reset memory_limit",
        "set temp_directory = '{place}'",
        "select * from o_local",
        "create secret s (type s3, key_id 'a', secret 'b'); from read_csv('s3://b/x.csv')",
        "from read_csv('http://127.0.0.1/x.csv')",
    ],
)
async def test_statements_reach_nothing_outside(worker: Bench, tmp_path: Path, query: str) -> None:
    o_local = pa.table({"i": [1]})
    place = folder(tmp_path)
    (place / "in.csv").write_text("a\n1\n")
    before = sorted(path.name for path in place.iterdir())
    for database in (None, ":memory:"):
        found = await run(worker, query.format(place=place), database=database)
        assert found.error is not None, o_local
        assert found.error.kind == "db_error"
    assert sorted(path.name for path in place.iterdir()) == before


ENDLESS = "select count(*) as n from range(1000000000000) a where a.range % 7 = 3"


async def test_a_timeout_interrupts(worker: Bench) -> None:
    found = await run(worker, ENDLESS, timeout_s=0.3)
    assert found.error is not None
    assert found.error.kind == "timeout"
    assert (await run(worker, "select 1 as i")).data["rows"] == [{"i": 1}]


async def test_a_cancelled_task_frees_its_database(worker: Bench) -> None:
    running = asyncio.create_task(run(worker, ["create table t as select 1 as i", ENDLESS]))

    async def is_open() -> bool:
        root = worker.tools.lender._workspaces.root
        return any(path.name == "execution.duckdb" for path in walk_folder(root))

    await eventually(is_open)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    found = await run(worker, "select count(*) as n from duckdb_tables()")
    assert found.data["rows"] == [{"n": 0}]


async def test_memory_is_limited(tmp_path: Path) -> None:
    async with bench(work_directory=str(tmp_path), duckdb_memory_bytes=64 * 1024**2) as worker:
        found = await run(
            worker,
            "create table t as select range as i, repeat('x', 100) || range as t"
            " from range(5000000) order by t",
            database=":memory:",
        )
        assert found.error is not None
        assert found.error.kind == "db_error"
        assert "memory" in found.error.message.lower()


async def test_a_table_that_is_not_there_is_told_with_those_that_are(worker: Bench) -> None:
    missing = call("from orders", inputs={"o": [{"i": 1}]})
    found = await worker.tools.run(missing)
    assert found.error is not None
    assert found.error.message.startswith("Catalog Error: Table with name orders does not exist!")
    assert found.error.message.endswith("; the task's inputs are o")
    named = await worker.tools.run(structs.replace(call("from o"), input={"o": [{"i": 1}]}))
    assert named.error is not None
    assert named.error.message.endswith(
        "does not exist!; `input` gives values; rows to query go under `inputs: {o: …}`"
    )


async def test_postgres_rows_are_an_input(worker: Bench, database: str) -> None:
    await worker.put_credential("db", {"dsn": database})
    source = {
        "auth": "db",
        "query": "select i, 'n' || i as t from generate_series(1, $1::int) i",
        "params": [25_000],
    }
    found = await rows(worker, "select sum(i) as s, max(t) as t from o", inputs={"o": source})
    assert found == [{"s": 312512500, "t": "n9999"}]
    none = {"auth": "db", "query": "select 1 as i where false"}
    assert await rows(worker, "select count(*) as n from o", inputs={"o": none}) == [{"n": 0}]
    wrong = await run(worker, "from o", inputs={"o": {"auth": "db", "query": "selec"}})
    assert wrong.error is not None
    assert (wrong.error.kind, wrong.error.pg_code) == ("db_error", "42601")


async def test_attaching_without_the_extension_says_what_to_do(worker: Bench) -> None:
    await worker.put_credential("db", {"host": "h", "user": "u", "password": "a-long-password"})
    found = await worker.tools.run(
        Call(
            site=site(),
            task="t",
            kind="duckdb",
            attempt=1,
            visit=next(VISITS),
            fields={"query": "from shop.t"},
            input={},
            auth={"shop": {"type": "postgres", "credential": "db"}},
            timeout=Timeout(total=10),
        )
    )
    assert found.error is not None
    assert found.error.kind == "config"
    assert "inputs" in found.error.message
    assert "a-long-password" not in found.error.message


async def test_a_stored_result_is_an_input_by_reference(worker: Bench) -> None:
    *_, first = await worker.run(
        command_of("""
  - step: load
    tool: {kind: python, code: "return {'columns': ['i'], 'rows': [[n] for n in range(2000)]}"}
    output: {inline_max_bytes: 0}
""")
    )
    assert isinstance(first, CommandCompleted)
    assert first.result is not None
    assert first.result.reference is not None
    steps = {"load": StepResult(status="ok", result=first.result)}
    for source in ("{{ load._ref }}", "{{ load }}", "{{ load.rows }}", "{{ load._ref.ref }}"):
        *_, done = await worker.run(
            command_of(
                """
  - step: s
    tool: {kind: duckdb, inputs: {o: "SOURCE"}, query: "select sum(i) as s from o"}
""".replace("SOURCE", source),
                steps=steps,
            )
        )
        assert isinstance(done, CommandCompleted), done
        assert done.result is not None
        assert (await worker.value(done.result))["rows"] == [{"s": 1999000}], source


async def test_parts_are_one_input(worker: Bench) -> None:
    *_, first = await worker.run(
        command_of("""
  - step: load
    tool: {kind: python, code: "return {'columns': ['i'], 'rows': [[n] for n in range(2000)]}"}
    output: {inline_max_bytes: 0}
""")
    )
    assert isinstance(first, CommandCompleted)
    assert first.result is not None
    *_, done = await worker.run(
        command_of(
            """
  - step: s
    tool:
      kind: duckdb
      inputs: {o: ["{{ load._ref }}", "{{ load._ref }}", {columns: [i], rows: [[1]]}]}
      query: "select _part, count(*) as n from o group by _part order by _part"
""",
            steps={"load": StepResult(status="ok", result=first.result)},
        )
    )
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    counts = (await worker.value(done.result))["rows"]
    assert [(row["_part"], row["n"]) for row in counts] == [(0, 2000), (1, 2000), (2, 1)]


@pytest.mark.usefixtures("_brief_pauses")
async def test_a_reference_to_nothing_can_be_tried_again(worker: Bench) -> None:
    given = {"kind": "result_ref", "ref": "noetl://execution/1/result/s/1", "sha256": "0" * 64}
    *_, done = await worker.run(
        command_of(
            """
  - step: s
    tool: {kind: duckdb, inputs: {o: "{{ workload.given }}"}, query: "from o"}
""",
            workload={"given": given},
        )
    )
    assert isinstance(done, CommandFailed)
    assert (done.error.kind, done.error.retryable) == ("reference_not_available", True)
