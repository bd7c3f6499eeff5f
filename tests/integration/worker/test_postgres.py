"""The postgres tool against a real server."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.polling import eventually
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, bench

from noetl_worker.domain.sites import Site
from noetl_worker.tools.call import Call, Outcome, Timeout


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    async with bench(postgres_connections_max=2) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


async def run(
    worker: Bench, query: Any, params: Any = None, *, timeout_s: float = 10, **fields: Any
) -> Outcome:
    site = Site(
        execution_id=EXECUTION,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        step="s",
        unit="step",
    )
    given = {"query": query, **fields}
    if params is not None:
        given["params"] = params
    return await worker.tools.run(
        Call(
            site=site,
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
        "nan": None,
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
    found = await run(worker, "select $1::int, $2::int", [1, "many"])
    assert found.error is not None
    assert found.error.kind == "validation"
    assert "parameter $2 is of type int4, which 'many' is not" in found.error.message


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
    assert [one["message"] for one in commands] == [
        *("CREATE TABLE", "INSERT 0 2", "SELECT 1", "UPDATE 2"),
    ]
    assert [one["row_count"] for one in commands] == [0, 2, 1, 2]
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
    assert found.error.details == {"statement": 1, "constraint": "t_pkey", "table": "t"}
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
    assert count == 2


async def test_a_syntax_error_has_its_code(worker: Bench) -> None:
    found = await run(worker, "selec 1")
    assert found.error is not None
    assert (found.error.kind, found.error.code) == ("db_error", "PG_42601")
    assert found.error.details == {"statement": 0}


@pytest.mark.parametrize("query", [None, "", "-- nothing", 5])
async def test_a_task_without_sql_says_so(worker: Bench, query: Any) -> None:
    found = await run(worker, query)
    assert found.error is not None
    assert found.error.kind == "validation"
