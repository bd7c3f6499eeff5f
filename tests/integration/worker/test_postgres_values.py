# ruff: noqa: S608 - the tests' own texts are their SQL
"""Every type of PostgreSQL into the worker and back: nothing is lost on the way."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.attempting import attempt, data_of, files_of
from tests.support.postgres_values import SHAPES, TYPES_SQL, VALUES, PostgresValue
from tests.support.working import Bench, bench, command_of

from noetl_contracts.requests.facts import CommandCompleted


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    connection = await asyncpg.connect(database)
    await connection.execute(TYPES_SQL)
    await connection.close()
    async with bench(work_directory=str(tmp_path), postgres_connections_max=2) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


async def rows(worker: Bench, query: Any, params: Any = None) -> Any:
    fields = {"query": query} if params is None else {"query": query, "params": params}
    return (await data_of(worker, "postgres", fields, auth="db"))["rows"]


async def error_of(worker: Bench, query: Any, params: Any = None, **fields: Any) -> Any:
    given = {"query": query, **fields} if params is None else {"query": query, "params": params}
    found = await attempt(worker, "postgres", {**given, **fields}, auth="db")
    assert found.error is not None, found.data
    return found.error


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(postgres_value: PostgresValue) -> str:
    return f"{quoted(postgres_value.literal)}::{postgres_value.type_name}"


async def shown(worker: Bench, expression: str, params: Any = None) -> Any:
    """PostgreSQL's own text of a value, with its moments in UTC."""
    query = f"set timezone = 'UTC'; select ({expression})::text as v"
    return (await rows(worker, query, params))[0]["v"]


async def test_what_is_read_is_exact(worker: Bench) -> None:
    wrong = []
    for item in VALUES:
        ((found),) = await rows(worker, f"select {literal(item)} as v")
        if (found["v"], type(found["v"])) != (item.json_form, type(item.json_form)):
            wrong.append((item.type_name, item.literal, found["v"]))
    assert wrong == []


async def test_what_was_read_is_bound_as_the_same_value(worker: Bench) -> None:
    wrong = []
    for item in VALUES:
        found = await shown(worker, f"$1::{item.type_name}", [item.json_form])
        expected = await shown(worker, literal(item))
        # A number has no zeros behind its last digit.
        if found != expected and found.replace("1.5)", "1.50)") != expected:
            wrong.append((item.type_name, item.literal, found))
    assert wrong == []


async def test_arrays_hold_the_same_values(worker: Bench) -> None:
    wrong = []
    for item in VALUES:
        if item.type_name == "int4multirange":
            continue
        kind = f"{item.type_name}[]"
        array = f"array[{literal(item)}, null]"
        ((found),) = await rows(worker, f"select {array} as v")
        if found["v"] != [item.json_form, None]:
            wrong.append((kind, item.literal, found["v"]))
            continue
        if item.type_name in {"point", "path", "polygon", "circle"}:
            # The client takes a shape in an array for an array, and refuses to write it.
            error = await error_of(worker, f"select $1::{kind} as v", [found["v"]])
            assert error.kind == "validation"
            continue
        if item.type_name in {"point", "path", "polygon", "circle"}:
            # The client takes a shape in an array for an array, and refuses to write it.
            error = await error_of(worker, f"select $1::{kind} as v", [found["v"]])
            assert error.kind == "validation"
            continue
        same = f"select $1::{kind} is not distinct from {array}::{kind} as same"
        if (await rows(worker, same, [found["v"]]))[0]["same"] is not True:
            wrong.append((kind, item.literal, "bound"))
    assert wrong == []


@pytest.mark.parametrize("way", ["table", "csv", "ndjson"])
async def test_a_transfer_moves_the_same_values(worker: Bench, tmp_path: Path, way: str) -> None:
    """Straight from table to table, by columns or rows, and through a file."""
    files_of(tmp_path)
    wrong = []
    for index, item in enumerate(VALUES):
        # A shape is a list as JSON, and an empty field of CSV is null.
        if item.type_name in SHAPES or (way == "csv" and item.literal == ""):
            continue
        await rows(
            worker,
            f"create table source_{index} as select {literal(item)} as v union all select null;"
            f" create table target_{index} (like source_{index})",
        )
        read = {"type": "postgres", "auth": "db", "query": f"select v from source_{index}"}
        write = {"type": "postgres", "auth": "db", "table": f"target_{index}"}
        if way == "table":
            steps = [(read, write)]
        else:
            file = {"type": "file", "uri": f"rows_{index}.{way}"}
            steps = [(read, {**file, "mode": "replace"}), (file, write)]
        for source, target in steps:
            await data_of(worker, "transfer", {"source": source, "target": target})
        text = "set timezone = 'UTC'; select v::text as v from {} order by 1"
        expected = await rows(worker, text.format(f"source_{index}"))
        found = await rows(worker, text.format(f"target_{index}"))
        if found != expected:
            wrong.append((item.type_name, item.literal, found, expected))
    assert wrong == []


async def test_json_goes_from_table_to_table_as_it_is(worker: Bench) -> None:
    """Numbers of any length, texts that look like numbers, and keys that come twice."""
    values = ['"5"', '"x"', "12345678901234567890123", "0.1234567890123456789", '{"a":1,"a":2}']
    for kind in ("json", "jsonb"):
        await rows(
            worker, f"create table from_{kind} (j {kind}); create table to_{kind} (j {kind})"
        )
        for value in values:
            await rows(worker, f"insert into from_{kind} values ({quoted(value)})")
        ends = {
            "source": {"type": "postgres", "auth": "db", "query": f"select j from from_{kind}"},
            "target": {"type": "postgres", "auth": "db", "table": f"to_{kind}"},
        }
        await data_of(worker, "transfer", ends)
        text = "select j::text as v from {} order by 1"
        expected = await rows(worker, text.format(f"from_{kind}"))
        assert await rows(worker, text.format(f"to_{kind}")) == expected


@pytest.mark.parametrize(
    ("json", "expected"),
    [
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("[0.1234567890123456789, 0.1]", ["0.1234567890123456789", 0.1]),
        ("1e400", 10**400),
        ("0.10", 0.1),
        ('"9007199254740993123456789"', "9007199254740993123456789"),
    ],
)
async def test_json_numbers_keep_their_digits(worker: Bench, json: str, expected: Any) -> None:
    (row,) = await rows(worker, f"select {quoted(json)}::jsonb as j")
    assert row["j"] == expected
    # A text is bound as the JSON that it says.
    bound = row["j"] if not isinstance(row["j"], str) else json
    (row,) = await rows(worker, f"select $1::jsonb = {quoted(json)}::jsonb as same", [bound])
    assert row["same"] is ("0.1234567890123456789" not in json)


async def test_a_json_number_that_no_float_holds_is_its_text(worker: Bench) -> None:
    (row,) = await rows(worker, "select '[1e400, 1e-400, 0.1e1]'::json as j")
    assert row["j"] == ["1e400", "1e-400", 1.0]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("interval", 5, "00:00:05"),
        ("interval", "1.5", "00:00:01.5"),
        ("interval", "P1Y2M3DT4H", "1 year 2 mons 3 days 04:00:00"),
        ("interval", "1 year 2 mons -3 days +04:05:06", "1 year 2 mons -3 days +04:05:06"),
        ("interval", "2 hours ago", "-02:00:00"),
        ("date", "2026-02-03T23:00:00+05:00", "2026-02-03"),
        ("timestamp", "2026-02-03T00:30:00+01:00", "2026-02-02 23:30:00"),
        ("timestamptz", 0, "1970-01-01 00:00:00+00"),
        ("timestamptz", "0001-01-01T00:00:00+05:00", "0001-12-31 19:00:00+00 BC"),
        ("timestamptz", "2026-02-03", "2026-02-03 00:00:00+00"),
        ("timetz", "04:05", "04:05:00+00"),
        ("numeric", 1e22, "10000000000000000000000"),
        ("numeric", "1e131071", "1" + "0" * 131_071),
    ],
)
async def test_other_forms_are_bound_too(worker: Bench, kind: str, value: Any, text: str) -> None:
    assert await shown(worker, f"$1::{kind}", [value]) == text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "0000-01-01"),
        ("date", "2026-02-30"),
        ("date", "5881580-07-11"),
        ("date", "2026-02-03x"),
        ("timestamp", "294277-01-01 00:00:00"),
        ("timestamptz", "2026-02-03T24:00:01Z"),
        ("time", "24:00:01"),
        ("interval", "P0.5M"),
        ("interval", "soon"),
        ("interval", "P"),
        ("numeric", "1e200000"),
        ("numeric", "many"),
        ("int4", 2147483648),
        ("int4", 1.5),
        ("int8", "9223372036854775808"),
        ("int4range", "[1"),
        ('"char"', "ab"),
        ("bit(3)", "102"),
        ("text", "\ud800"),
        ("pair", {"d": "2026-02-30"}),
        ("pair", {"x": 1}),
        ("date[]", ["2026-02-30"]),
    ],
)
async def test_what_a_type_does_not_hold_is_refused(worker: Bench, kind: str, value: Any) -> None:
    error = await error_of(worker, f"select $1::{kind} as v", [value])
    assert (error.kind, "$1" in error.message) == ("validation", True)


async def test_a_nul_in_a_text_is_refused(worker: Bench) -> None:
    error = await error_of(worker, "select $1::text as v", ["a\0b"])
    assert error.pg_code == "22021"


async def test_an_open_end_stays_a_date(worker: Bench) -> None:
    query = (
        "create temporary table ranges (until date); insert into ranges values (:until);"
        " select until::text as d, isfinite(until) as finite from ranges"
    )
    assert await rows(worker, query, {"until": "9999-12-31"}) == [
        {"d": "9999-12-31", "finite": True}
    ]


DEEP = "repeat('[', 5000) || repeat(']', 5000)"


@pytest.mark.parametrize("how", ["alone", "autocommit", "together"])
async def test_nothing_is_committed_of_what_cannot_be_read(worker: Bench, how: str) -> None:
    await rows(worker, "create table queue (id serial, taken bool default false, about json)")
    await rows(worker, f"insert into queue (about) values ('{{}}'), (({DEEP})::json)")
    take = "update queue set taken = true returning id, about"
    query = take if how == "alone" else f"insert into queue default values; {take}"
    error = await error_of(worker, query, autocommit=how == "autocommit")
    assert error.kind == "schema"
    assert "column 'about', row 2" in error.message
    (left,) = await rows(worker, "select count(*) filter (where taken) as n from queue")
    assert left == {"n": 0}
    # The connection is as good as before.
    assert await rows(worker, "select 1 as one") == [{"one": 1}]


async def test_rules_are_asked_of_a_value_that_cannot_be_read(worker: Bench) -> None:
    await rows(worker, "create table kept (id serial)")
    step = f"""
  - step: s
    tool:
      kind: postgres
      auth: db
      query: "insert into kept default values returning id, ({DEEP})::json as about"
      spec:
        policy:
          rules:
            - when: "{{{{ output.error.kind == 'schema' and _attempt < 3 }}}}"
              then: {{do: retry, attempts: 5, delay: 0.01}}
            - when: "{{{{ output.error.kind == 'schema' }}}}"
              then: {{do: continue}}
"""
    (*_, done) = await worker.run(command_of(step))
    assert isinstance(done, CommandCompleted), done
    assert await rows(worker, "select * from kept") == []
    # Three attempts took three numbers, and none of them is there.
    assert await rows(worker, "select last_value from kept_id_seq") == [{"last_value": 3}]
