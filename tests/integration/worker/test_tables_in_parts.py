"""Queries whose rows stay in the payload store, in parts, and never are values of the worker."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert, structs
from tests.support.calls import call_of
from tests.support.working import Bench, bench, command_of

from noetl_contracts import codec, spread_table
from noetl_contracts.commands.command_work import StepResult
from noetl_contracts.requests.facts import CommandCompleted
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_playbook.model.playbook import Output
from noetl_worker.tools.tables import stored_parts

ROWS = 400
SHOWN = ("rows", "row_count", "columns", "statement_count", "status")
SMALL_BYTES = 10_000
LARGE = """SELECT i, repeat('x', 100) || i AS pad, i / 2 AS half, i % 2 = 0 AS even,
    DATE '2026-01-01' + i::int AS day, CASE WHEN i > 3 THEN i::decimal(9, 2) END AS price
  FROM range(400) AS r (i)"""
SUMS = (
    "SELECT sum(i)::int AS s, sum(length(pad))::int AS n, count(day)::int AS d, "
    "sum(price)::int AS p FROM o"
)
VALUES = """SELECT * FROM (VALUES
    (1::int2, 2::int4, 3::int8, true, 0.1::float4, 1e300::float8, 'a"b,c', '', 'v'::varchar,
     '00000000-0000-0000-0000-000000000001'::uuid, date '2026-01-02',
     '2026-01-02 03:04:05.5'::timestamp, '2026-01-02T03:04:05Z'::timestamptz),
    (null, null, null, null, 'NaN', 'infinity', null, E'two\\nlines', null, null, null, null, null)
  ) AS v (a, b, c, d, e, f, g, h, i, j, k, l, m)"""


@pytest.fixture
async def worker(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    monkeypatch.setattr(stored_parts, "SMALL_BYTES", SMALL_BYTES)
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("db", {"dsn": database, "password": "hush-hush-hush-hush"})
        yield found


async def asked(worker: Bench, kind: str, query: str, **output: Any) -> dict[str, Any]:
    """What a task in a step of its own gives."""
    fields = {"query": query} | ({"database": ":memory:"} if kind == "duckdb" else {})
    auth = "db" if kind == "postgres" else None
    wanted = Output(**output) if output else None
    call = structs.replace(
        call_of(kind, fields, auth=auth, timeout_s=60), may_spread=True, output=wanted
    )
    found = await worker.tools.run(call)
    assert found.error is None, found.error
    data: dict[str, Any] = found.data
    return data


def spread_in(raw: dict[str, Any]) -> SpreadTable:
    assert spread_table.is_spread_marker(raw["rows"]), "the rows are here"
    return convert(raw["rows"][spread_table.KEY], SpreadTable)


@pytest.mark.parametrize("format_", ["auto", "arrow", "parquet"])
async def test_a_large_table_is_stored_as_it_comes_and_reads_as_its_rows(
    worker: Bench, format_: str
) -> None:
    step = f"""
  - step: load
    tool: {{kind: duckdb, database: ":memory:", query: "{LARGE}", output: {{format: {format_}}}}}
"""
    (*_, done) = await worker.run(
        command_of(step.replace("\n  FROM", " FROM").replace(",\n", ", "))
    )
    assert isinstance(done, CommandCompleted), done
    result = done.result
    assert result is not None
    assert result.reference is not None
    assert result.reference.media_type == SPREAD_MEDIA_TYPE
    assert result.reference.row_count == ROWS
    # Limits are held against what a reader has to hold, however well it packs.
    assert result.reference.payload_bytes > ROWS * 100
    assert result.context["columns"] == ["i", "pad", "half", "even", "day", "price"]
    found = await worker.value(result)
    plain = await worker.tools.run(call_of("duckdb", {"query": LARGE, "database": ":memory:"}))
    assert [found[name] for name in SHOWN] == [plain.data[name] for name in SHOWN]
    steps = {"load": StepResult(status="ok", result=result)}
    (*_, done) = await worker.run(
        command_of(
            """
  - step: s
    tool: {kind: duckdb, database: ":memory:", inputs: {o: "{{ load }}"}, query: "QUERY"}
""".replace("QUERY", SUMS),
            steps=steps,
        )
    )
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    text_size = sum(len(row["pad"]) for row in plain.data["rows"])
    total = ROWS * (ROWS - 1) // 2
    wanted = {"s": total, "n": text_size, "d": ROWS, "p": total - 6}
    assert (await worker.value(done.result))["rows"] == [wanted]


async def test_parts_are_cut_by_their_size(worker: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_parts, "GROUP_BYTES", 1)
    monkeypatch.setattr(stored_parts, "PART_BYTES", 1)
    monkeypatch.setattr(stored_parts, "BATCH_ROWS", 100)
    found = spread_in(await asked(worker, "duckdb", LARGE, format="parquet"))
    assert len(found.parts) > 1
    assert sum(part.row_count or 0 for part in found.parts) == found.row_count == ROWS
    assert [row["i"] for row in found.head] == list(range(len(found.head))) != []


async def test_a_small_table_is_a_result_like_any_other(worker: Bench) -> None:
    raw = await asked(worker, "duckdb", "SELECT 1 AS a", format="parquet")
    plain = await worker.tools.run(call_of("duckdb", {"query": "SELECT 1 AS a"}))
    assert raw == plain.data


async def test_a_query_runs_once(worker: Bench) -> None:
    for expected in (1, 2):
        fields = {"query": "SELECT nextval('seen')::int AS n", "database": "n.duckdb"}
        if expected == 1:
            made = await worker.tools.run(
                call_of("duckdb", {**fields, "query": "CREATE SEQUENCE seen"})
            )
            assert made.error is None, made.error
        call = structs.replace(call_of("duckdb", fields), may_spread=True)
        found = await worker.tools.run(call)
        assert found.error is None, found.error
        assert found.data["rows"] == [{"n": expected}]


async def test_what_no_table_holds_comes_as_values_within_the_limit(worker: Bench) -> None:
    query = LARGE.replace("SELECT i,", "SELECT '{}'::json AS j, [i] AS xs, i,")
    raw = await asked(worker, "duckdb", query)
    assert len(raw["rows"]) == ROWS
    assert raw["rows"][7]["xs"] == [7]
    assert raw["rows"][7]["j"] == {}


async def test_secrets_are_masked_in_parts(worker: Bench) -> None:
    await asked(worker, "postgres", "SELECT 1")  # the worker learns the secret
    found = spread_in(
        await asked(
            worker,
            "duckdb",
            LARGE.replace("repeat('x', 100)", "'hush-hush-hush-hush' || repeat('x', 100)"),
        )
    )
    for part in found.parts:
        assert b"hush-hush" not in await worker.payloads.read_payload(part)
    assert found.row_count == ROWS


async def test_moments_that_no_table_holds_are_refused(worker: Bench) -> None:
    query = LARGE.replace("DATE '2026-01-01' + i::int", "'infinity'::timestamp")
    call = call_of("duckdb", {"query": query, "database": ":memory:"})
    found = await worker.tools.run(structs.replace(call, may_spread=True))
    assert found.error is not None
    assert (found.error.kind, "infinity" in found.error.message) == ("schema", True)


async def test_a_query_of_postgres_gives_the_same_values_by_columns(worker: Bench) -> None:
    by_rows = await asked(worker, "postgres", VALUES)
    assert await asked(worker, "postgres", VALUES, format="parquet") == by_rows
    assert codec.encode_json(by_rows)


@pytest.mark.parametrize("format_", ["arrow", "parquet"])
async def test_a_large_query_of_postgres_is_stored_as_it_comes(worker: Bench, format_: str) -> None:
    query = "SELECT i, repeat('x', 100) || i AS pad FROM generate_series(1, 400) AS i"
    raw = await asked(worker, "postgres", query, format=format_)
    found = spread_in(raw)
    assert (found.row_count, raw["row_count"], raw["columns"]) == (ROWS, ROWS, ["i", "pad"])


async def test_a_query_that_fails_says_so_with_its_code(worker: Bench) -> None:
    call = call_of(
        "postgres", {"query": "SELECT 1 / i AS n FROM generate_series(0, 3) AS i"}, auth="db"
    )
    found = await worker.tools.run(
        structs.replace(call, may_spread=True, output=Output(format="parquet"))
    )
    assert found.error is not None
    assert found.error.code == "PG_22012"
    assert (await asked(worker, "postgres", "SELECT 1 AS a"))["rows"] == [{"a": 1}]


async def test_columns_that_have_to_go_by_rows_do(worker: Bench) -> None:
    raw = await asked(worker, "postgres", "SELECT '[1]'::jsonb AS j, 1.50 AS n", format="arrow")
    assert raw["rows"] == [{"j": [1], "n": 1.5}]
