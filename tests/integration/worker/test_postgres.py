"""The postgres tool against a real server."""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.calls import site
from tests.support.polling import eventually
from tests.support.working import Bench, bench

from noetl_contracts import codec
from noetl_contracts.errors import summarize_error
from noetl_worker.tools.calls.call import Call, Outcome, Timeout
from noetl_worker.tools.postgres.task_fields import PoolHints


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    async with bench(postgres_connections_max=2) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


async def run(
    worker: Bench, query: Any, params: Any = None, *, timeout_s: float = 10, **fields: Any
) -> Outcome:
    given = {"query": query, **fields}
    if params is not None:
        given["params"] = params
    return await worker.tools.run(
        Call(
            site=site(),
            task="t",
            kind="postgres",
            attempt=1,
            visit=1,
            fields=given,
            input={},
            auth="db",
            timeout=Timeout(total=timeout_s),
        )
    )


async def rows(worker: Bench, query: Any, params: Any = None, **fields: Any) -> Any:
    found = await run(worker, query, params, **fields)
    assert found.error is None, found.error
    return found.data["rows"]


async def test_rows_come_as_json_values(worker: Bench) -> None:
    (row,) = await rows(
        worker,
        """select 1 as i, 2::bigint as b, 1.50::numeric as n, 0.1::numeric as d, 7::numeric as w,
           12345678901234567890.1::numeric as big, 'x' as t, true as ok, null as nothing,
           '{"a": [1]}'::jsonb as j, '2026-01-02T03:04:05Z'::timestamptz at time zone 'utc' as ts,
           '2026-01-02T03:04:05Z'::timestamptz as tz, date '2026-01-02' as day,
           '00000000-0000-0000-0000-000000000001'::uuid as u, '\\x0001'::bytea as raw,
           array[1, 2] as xs, array['{"a":1}'::jsonb] as js, 'NaN'::float8 as nan,
           interval '90 seconds' as span, '10.0.0.1'::inet as ip, row(1, 'a') as pair""",
    )
    assert row == {
        "i": 1,
        "b": 2,
        "n": 1.5,
        "d": 0.1,
        "w": 7,
        "big": "12345678901234567890.1",
        "t": "x",
        "ok": True,
        "nothing": None,
        "j": {"a": [1]},
        "ts": "2026-01-02T03:04:05",
        "tz": "2026-01-02T03:04:05+00:00",
        "day": "2026-01-02",
        "u": "00000000-0000-0000-0000-000000000001",
        "raw": "AAE=",
        "xs": [1, 2],
        "js": [{"a": 1}],
        "nan": "NaN",
        "span": 90.0,
        "ip": "10.0.0.1",
        "pair": [1, "a"],
    }


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "5", 5),
        ("int", 5.0, 5),
        ("bigint", 9_007_199_254_740_993, 9_007_199_254_740_993),
        ("text", 5, "5"),
        ("text", True, "true"),
        ("text", {"a": 1}, '{"a":1}'),
        ("jsonb", {"a": [1]}, {"a": [1]}),
        ("jsonb", [1, "x"], [1, "x"]),
        ("jsonb", '{"a": 1}', {"a": 1}),
        ("jsonb", 5, 5),
        ("numeric", "1.25", 1.25),
        ("numeric", 1.25, 1.25),
        ("float8", "1.5", 1.5),
        ("bool", "yes", True),
        ("timestamptz", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"),
        ("timestamptz", "2026-01-02 03:04:05", "2026-01-02T03:04:05+00:00"),
        ("timestamp", "2026-01-02T05:04:05+02:00", "2026-01-02T03:04:05"),
        ("date", "2026-01-02", "2026-01-02"),
        ("uuid", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
        ("bytea", "AAE=", "AAE="),
        ("int[]", [1, "2", None], [1, 2, None]),
        ("text[]", ["a", 1], ["a", "1"]),
        ("jsonb[]", [{"a": 1}], [{"a": 1}]),
        ("int[]", "[1, 2]", [1, 2]),
        ("int", None, None),
    ],
)
async def test_values_are_bound_as_the_statement_wants_them(
    worker: Bench, kind: str, value: Any, expected: Any
) -> None:
    assert await rows(worker, f"select $1::{kind} as v", [value]) == [{"v": expected}]


async def test_a_value_that_does_not_fit_is_named(worker: Bench) -> None:
    found = await run(worker, "select $1::int as a, $2::int as b", [1, "many"])
    assert found.error is not None
    assert found.error.kind == "validation"
    assert "parameter $2 is of type int4, which 'many' is not" in found.error.message


async def test_errors_name_parameters_as_the_task_does(worker: Bench) -> None:
    params = {"id": "many", "total": 1}
    found = await run(worker, "select :total::int as a, :id::int as b", params)
    assert found.error is not None
    assert "parameter :id is of type int4, which 'many' is not" in found.error.message
    # What only the server says of a parameter.
    found = await run(worker, "select :total::int; select :id is null", params)
    assert found.error is not None
    assert "could not determine data type of parameter :id" in found.error.message


async def test_parameters_can_be_named(worker: Bench) -> None:
    found = await rows(worker, "select :a::int + :b as s, ':a' as t", {"a": 1, "b": "2"})
    assert found == [{"s": 3, "t": ":a"}]


async def test_each_statement_has_its_result(worker: Bench) -> None:
    found = await run(
        worker,
        "create table t(i int); insert into t values (1), (2); select count(*) as n from t;"
        " update t set i = 3",
    )
    assert found.error is None
    commands = found.data["commands"]
    assert [command["message"] for command in commands] == [
        *("CREATE TABLE", "INSERT 0 2", "SELECT 1", "UPDATE 2"),
    ]
    assert [command["row_count"] for command in commands] == [0, 2, 1, 2]
    assert found.data["rows"] == [{"n": 2}]
    assert found.data["statement_count"] == 4


async def test_without_a_result_set_the_count_is_that_of_the_last_statement(worker: Bench) -> None:
    found = await run(worker, "create table t(i int); insert into t values (1), (2)")
    assert (found.data["rows"], found.data["row_count"]) == ([], 2)


async def test_the_statements_of_an_attempt_take_effect_together(worker: Bench) -> None:
    await run(worker, "create table t(i int primary key)")
    found = await run(worker, "insert into t values (1); insert into t values (1)")
    assert found.error is not None
    assert (found.error.kind, found.error.pg_code, found.error.code) == (
        *("db_constraint", "23505", "PG_23505"),
    )
    assert found.error.details == {
        "statement": 1,
        "statement_text": "insert into t values (1)",
        "constraint": "t_pkey",
        "table": "t",
    }
    assert await rows(worker, "select * from t") == []


async def test_autocommit_and_own_transactions_keep_what_was_done(worker: Bench) -> None:
    await run(worker, "create table t(i int primary key)")
    await run(worker, "insert into t values (1); insert into t values (1)", autocommit=True)
    assert await rows(worker, "select * from t") == [{"i": 1}]
    await run(worker, "begin; insert into t values (2); rollback; begin; insert into t values (3)")
    assert await rows(worker, "select * from t") == [{"i": 1}]


async def test_statements_that_refuse_a_transaction_run_alone(worker: Bench) -> None:
    found = await run(worker, "create table t(i int); vacuum t; select 1 as one")
    assert found.error is None
    assert found.data["rows"] == [{"one": 1}]


async def test_text_without_params_is_sent_untouched(worker: Bench) -> None:
    found = await rows(worker, "select '10%' as p, 7 % 5 as m, '1'::int as c, ':x' as n")
    assert found == [{"p": "10%", "m": 2, "c": 1, "n": ":x"}]


async def test_a_session_is_handed_on_clean(worker: Bench) -> None:
    await run(worker, "set statement_timeout = 12345; create temp table leftover(i int)")
    for _ in range(3):
        (row,) = await rows(worker, "select current_setting('statement_timeout') as t")
        assert row == {"t": "0"}
    assert (await run(worker, "select * from leftover")).error is not None


async def test_a_statement_survives_a_changed_table(worker: Bench) -> None:
    await run(worker, "create table t(i int)")
    await run(worker, "insert into t values (1)")
    assert await rows(worker, "select * from t") == [{"i": 1}]
    await run(worker, "alter table t add column j int default 2")
    assert await rows(worker, "select * from t") == [{"i": 1, "j": 2}]


PREPARED = """select name, generic_plans + custom_plans as runs from pg_prepared_statements
              where statement like 'select $1::int as often%'"""


async def test_a_statement_is_parsed_once_and_run_often(worker: Bench) -> None:
    for n in range(3):
        assert await rows(worker, "select :n::int as often", {"n": n}) == [{"often": n}]
    (kept,) = await rows(worker, PREPARED)
    assert kept["runs"] == 3


async def test_a_statement_in_a_transaction_is_parsed_once_too(worker: Bench) -> None:
    for n in range(2):
        found = await run(worker, "select :n::int as often; select 1 as one", {"n": n})
        assert found.error is None
    (kept,) = await rows(worker, PREPARED)
    assert kept["runs"] == 2


async def test_a_statement_that_the_server_forgot_goes_without_a_name(worker: Bench) -> None:
    # So is it for whoever is behind a pooler that hands out another server for each transaction.
    await run(
        worker,
        "create function forget() returns void language plpgsql as 'begin deallocate all; end'",
    )
    for n in range(3):
        assert await rows(worker, "select :n::int as often", {"n": n}) == [{"often": n}]
        await rows(worker, "select forget()")
    assert not [item for item in await rows(worker, PREPARED) if item["name"]]


async def test_a_timeout_cancels_the_statement_on_the_server(worker: Bench, database: str) -> None:
    found = await run(worker, "select pg_sleep(60)", timeout_s=0.3)
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("timeout", True)
    observer = await asyncpg.connect(database)

    async def is_idle() -> bool:
        count = await observer.fetchval(
            "select count(*) from pg_stat_activity"
            " where query like 'select pg_sleep%' and state = 'active'"
        )
        return bool(count == 0)

    await eventually(is_idle)
    await observer.close()


async def test_a_statement_timeout_is_the_databases_own(worker: Bench) -> None:
    found = await run(worker, "select pg_sleep(60)", statement_timeout=0.2)
    assert found.error is not None
    assert (found.error.kind, found.error.pg_code) == ("db_timeout", "57014")
    assert (await rows(worker, "show statement_timeout")) == [{"statement_timeout": "0"}]


async def test_a_killed_connection_is_retryable_and_replaced(worker: Bench) -> None:
    found = await run(worker, "select pg_terminate_backend(pg_backend_pid())")
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("db_connection", True)
    assert await rows(worker, "select 1 as one") == [{"one": 1}]


async def test_a_wrong_password_is_not_retryable_and_not_shown(database: str) -> None:
    wrong = re.sub(r"://([^:]+):[^@]+@", r"://\1:hunter22@", database)
    async with bench() as other:
        await other.put_credential("db", {"dsn": wrong})
        found = await run(other, "select 1")
    assert found.error is not None
    assert found.error.kind == "auth"
    assert "hunter22" not in found.error.message


async def test_an_unreachable_server_is_a_connection_error() -> None:
    async with bench() as other:
        await other.put_credential("db", {"host": "127.0.0.1", "port": 9, "user": "u"})
        found = await run(other, "select 1")
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("db_connection", True)


async def test_no_more_connections_are_opened_than_allowed(worker: Bench, database: str) -> None:
    await asyncio.gather(*(run(worker, "select pg_sleep(0.05)") for _ in range(8)))
    observer = await asyncpg.connect(database)
    count = await observer.fetchval(
        "select count(*) from pg_stat_activity"
        " where application_name = 'noetl-worker' and datname = current_database()"
    )
    await observer.close()
    assert 1 <= count <= 2


async def test_a_syntax_error_has_its_code(worker: Bench) -> None:
    found = await run(worker, "selec 1")
    assert found.error is not None
    assert (found.error.kind, found.error.code) == ("db_error", "PG_42601")
    assert found.error.details is not None
    assert (found.error.details["statement"], found.error.details["line"]) == (0, 1)


async def test_an_error_names_its_statement_its_line_and_its_text(worker: Bench) -> None:
    query = "SELECT 1;\nSELECT\n  absent\nFROM pg_class"
    found = await run(worker, query)
    assert found.error is not None
    assert found.error.details == {
        "statement": 1,
        "statement_text": "SELECT\n  absent\nFROM pg_class",
        "line": 2,
        "column": 3,
        "line_text": "absent",
    }
    summary = summarize_error(codec.to_builtins(found.error))
    assert summary == 'column "absent" does not exist (statement 2, line 2: absent)'


@pytest.mark.parametrize("query", [None, "", "-- nothing", 5])
async def test_a_task_without_sql_says_so(worker: Bench, query: Any) -> None:
    found = await run(worker, query)
    assert found.error is not None
    assert found.error.kind == "validation"


HOSTILE = [
    "'; drop table victim; --",
    "' or '1'='1",
    "1; drop table victim",
    "$1",
    "$$; drop table victim; $$",
    ":other",
    "%(other)s",
    "%s",
    "%%",
    "\\'; drop table victim; --",
    "\\",
    '"; drop table victim; --',
    "/* */ -- ;",
    "\u02bc; drop table victim; --",
    "\u202e; drop table victim",
    "pg_sleep(10)",
    "x" * 100_000,
    "{{ 7 * 7 }}",
    "",
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_value_is_a_value_whatever_it_says(worker: Bench, value: str) -> None:
    await run(worker, "create table victim(t text); insert into victim values ('kept')")
    for query, params in (
        ("select $1::text as v, '$1' as q", [value]),
        ("select %s::text as v, '$1' as q", [value]),
        ("select :v::text as v, '$1' as q", {"v": value, "other": "no"}),
        ("select %(v)s::text as v, '$1' as q", {"v": value, "other": "no"}),
    ):
        assert await rows(worker, query, params) == [{"v": value, "q": "$1"}]
    wanted = await rows(worker, "select t from victim where t = $1", [value])
    assert wanted == []
    assert await rows(worker, "select t from victim") == [{"t": "kept"}]


async def test_hostile_structures_stay_values_too(worker: Bench) -> None:
    values = [{"k": "'; drop table victim"}, ["'", '"', "}", "{", ","]]
    found = await rows(worker, "select $1::jsonb as j, $2::text[] as a", values)
    assert found == [{"j": values[0], "a": values[1]}]


async def test_a_character_that_text_cannot_hold_is_refused(worker: Bench) -> None:
    found = await run(worker, "select $1::text", ["a\0b"])
    assert found.error is not None
    assert (found.error.kind, found.error.pg_code) == ("db_error", "22021")


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("select $2::int - $1::int as d", [1, 3]),
        ("select %s::int - %s::int as d", [3, 1]),
        ("select :b::int - :a::int as d", {"a": 1, "b": 3}),
        ("select %(b)s::int - %(a)s::int as d", {"a": 1, "b": 3}),
        ("select ((array[5,2])[:b:2])[1] + 0*:a as d", {"a": 1, "b": 2}),
    ],
)
async def test_parameters_have_four_spellings(worker: Bench, query: str, params: Any) -> None:
    assert await rows(worker, query, params) == [{"d": 2}]


async def test_what_only_looks_like_a_parameter_is_left_alone(worker: Bench) -> None:
    (row,) = await rows(
        worker,
        "select '12:30'::time as t, (array[1,2,3])[1:n] as xs, 10 %% 4 as m, :a::int as a,"
        " E'\\':a' as e from (select 2 as n) as one",
        {"a": 1},
    )
    assert row == {"t": "12:30:00", "xs": [1, 2], "m": 2, "a": 1, "e": "':a"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"params": "x"}, "params"),
        ({"params": 5}, "params"),
        ({"params": [1]}, "$2"),
        ({}, "$2"),
        ({"params": {"a": 1}, "query": "select :b"}, ":b"),
        ({"autocommit": "perhaps"}, "autocommit"),
        ({"statement_timeout": "soon"}, "statement_timeout"),
        ({"statement_timeout": -1}, "statement_timeout"),
        ({"query_b64": "***"}, "query_b64"),
        ({"pool": 5}, "pool"),
        ({"pool": {"size": 5}}, "pool"),
        ({"pool": {"max_size": 0}}, "pool.max_size"),
        ({"pool": {"timeout": "x"}}, "pool.timeout"),
    ],
)
async def test_fields_that_make_no_sense_are_named_to_the_author(
    worker: Bench, fields: dict[str, Any], named: str
) -> None:
    query = fields.pop("query", "select $1::int as a, $2::int as b")
    found = await run(worker, query, **fields)
    assert found.error is not None
    assert found.error.kind == "validation"
    assert named in found.error.message


async def test_sql_comes_from_wherever_it_is(database: str, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("select :n::int + 1 as n; -- {{ not rendered }}")
    encoded = b64encode(b"select :n::int + 2 as n").decode()
    async with bench(script_directory=str(tmp_path)) as worker:
        await worker.put_credential("db", {"dsn": database})
        assert await rows(worker, None, {"n": 1}, script={"uri": "q.sql"}) == [{"n": 2}]
        assert await rows(worker, None, {"n": 1}, query_b64=encoded) == [{"n": 3}]
        listed = await run(worker, ["select 1 as a", "select 2 as a; select 3 as a"])
        assert [command["rows"] for command in listed.data["commands"]] == [
            [{"a": 1}],
            [{"a": 2}],
            [{"a": 3}],
        ]


@pytest.mark.parametrize("autocommit", [True, "true", 1])
async def test_autocommit_may_be_rendered_text(worker: Bench, autocommit: Any) -> None:
    await run(worker, "create table t(i int primary key)")
    twice = "insert into t values (1); insert into t values (1)"
    await run(worker, twice, autocommit=autocommit)
    assert await rows(worker, "select * from t") == [{"i": 1}]


async def test_concurrent_indexes_need_no_transaction(worker: Bench) -> None:
    for statement in (
        "create index concurrently t_i on t(i)",
        "reindex table concurrently t",
        "reindex (verbose) index concurrently t_i",
        "drop index concurrently t_i",
        "/* why */ -- not\n alter system set work_mem = '4MB'",
    ):
        await run(worker, "create table if not exists t(i int)")
        found = await run(worker, f"select 1; {statement}")
        assert found.error is None, (statement, found.error)
    await run(worker, "alter system reset work_mem")


async def test_a_commit_that_fails_is_an_error(worker: Bench) -> None:
    await run(worker, "create table p(i int primary key)")
    await run(worker, "create table c(i int references p deferrable initially deferred)")
    found = await run(worker, "select 1; insert into c values (1)")
    assert found.error is not None
    assert (found.error.kind, found.error.pg_code) == ("db_constraint", "23503")
    assert await rows(worker, "select * from c") == []


async def test_rarer_types_are_readable(worker: Bench) -> None:
    (row,) = await rows(
        worker,
        "select int4range(1, 5) as r, tstzrange(null, '2026-01-02Z', '[]') as o,"
        " 'empty'::int4range as e, B'101' as b, point(1, 2) as p, '12.50'::money::numeric as m,"
        " array[[1,2],[3,4]] as xs, int4multirange(int4range(1,2), int4range(5,6)) as mr,"
        " 'infinity'::float8 as inf",
    )
    assert row == {
        "r": "[1,5)",
        "o": "(,2026-01-02T00:00:00+00:00]",
        "e": "empty",
        "b": "101",
        "p": [1.0, 2.0],
        "m": 12.5,
        "xs": [[1, 2], [3, 4]],
        "mr": ["[1,2)", "[5,6)"],
        "inf": "Infinity",
    }


async def test_a_copy_without_a_client_is_an_error_and_not_a_wait(worker: Bench) -> None:
    await run(worker, "create table t(i int)")
    for copy in ("copy t from stdin", "copy t to stdout"):
        found = await run(worker, copy)
        assert found.error is not None
        assert found.error.kind == "validation"
    assert await rows(worker, "select 1 as one") == [{"one": 1}]


async def test_a_task_may_have_a_pool_of_its_own_size(worker: Bench, database: str) -> None:
    hints = {"name": "narrow", "max_size": 1, "min_size": 1}
    sleeping = [run(worker, "select pg_sleep(0.05)", pool=hints) for _ in range(4)]
    found = await asyncio.gather(*sleeping)
    assert [item.error for item in found] == [None] * 4
    observer = await asyncpg.connect(database)
    count = await observer.fetchval(
        "select count(*) from pg_stat_activity"
        " where application_name = 'noetl-worker' and datname = current_database()"
    )
    await observer.close()
    assert count == 1


async def test_a_task_waits_for_a_connection_as_long_as_it_wants(worker: Bench) -> None:
    hints = {"name": "narrow", "max_size": 1, "timeout": 0.1}
    # It waits longer: its connection is yet to be made.
    holding = asyncio.ensure_future(
        run(worker, "select pg_sleep(60)", pool={**hints, "timeout": 60})
    )
    pool = await worker.tools.postgres.get_pool("db", site(), PoolHints(name="narrow", size_max=1))

    async def is_held() -> bool:
        return pool.is_busy

    await eventually(is_held)
    late = await run(worker, "select 1", pool=hints)
    full = await run(worker, "select 1", pool={**hints, "max_waiting": 0})
    holding.cancel()
    for found in (late, full):
        assert found.error is not None
        assert (found.error.kind, found.error.retryable) == ("db_connection", True)
    assert "within 0.1 s" in late.error.message  # type: ignore[union-attr]  # checked above
    assert "wait for a connection" in full.error.message  # type: ignore[union-attr]  # checked above


_MEETING = """
do $meeting$
begin
  perform pg_advisory_lock_shared(4711);
  for tries in 1..2000 loop
    exit when (select count(*) from pg_locks
               where locktype = 'advisory' and objid = 4711 and granted) >= 6;
    perform pg_sleep(0.01);
  end loop;
  if (select count(*) from pg_locks
      where locktype = 'advisory' and objid = 4711 and granted) < 6 then
    raise exception 'they never were six';
  end if;
  perform pg_sleep(0.3);
  perform pg_advisory_unlock_shared(4711);
end $meeting$
"""
_CONNECTIONS = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and application_name = 'noetl-worker'"
)


async def test_short_statements_share_few_connections_and_slow_ones_get_more(
    database: str,
) -> None:
    async with bench(postgres_connections_soon=2) as worker:
        await worker.put_credential("db", {"dsn": database})
        watcher = await asyncpg.connect(database)
        try:
            await asyncio.gather(*(rows(worker, "select 1 as n") for _ in range(40)))
            await eventually(_shown(watcher, 2))

            # None of them ends before all six run: whoever waits for them gets connections.
            met = await asyncio.gather(*(run(worker, _MEETING, timeout_s=30) for _ in range(6)))
            assert [item.error for item in met] == [None] * 6
            await eventually(_shown(watcher, 2))
        finally:
            await watcher.close()


def _shown(watcher: Any, count: int) -> Any:
    async def is_so() -> bool:
        return bool(await watcher.fetchval(_CONNECTIONS) <= count)

    return is_so
