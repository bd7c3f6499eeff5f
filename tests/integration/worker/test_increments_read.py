# ruff: noqa: S608 - the SQL is our own
"""A step that reads increments reports how far it came, for every tool that reads rows."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec import structs
from tests.support.scripted import Script, says
from tests.support.working import Bench, bench, command_of, step_of

from noetl_contracts.commands.command_work import Command, StateSlice
from noetl_contracts.commands.state_values import Increment, StateType
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_worker.tools.tables import stored_parts

MOMENTS = "'2024-01-01T00:00:00Z'::timestamptz + i * interval '1 hour'"
HEAD = """
  - step: load
    incremental: {cursor: updated_at, from: state.orders, lag: 2h, initial: "2024-01-01"%s}
    tool:
"""
TRANSFER = (
    HEAD % ""
    + """
      kind: transfer
      source:
        type: postgres
        auth: db
        query: SELECT id, amount, updated_at FROM source WHERE updated_at >= :since::timestamptz
        params: {since: "{{ increment.since }}"}
      target: {type: postgres, auth: db, table: target}
      mode: %s
      key: id
"""
)


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture
async def db(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    columns = "(id int primary key, amount numeric, updated_at timestamptz)"
    await connection.execute(f"create table source {columns}; create table target {columns}")
    await add_rows(connection, 1, 9)
    yield connection
    await connection.close()


async def add_rows(db: Any, first: int, last: int) -> None:
    await db.execute(
        f"insert into source select i, i * 1.5, {MOMENTS} from generate_series($1::int, $2) as i",
        first,
        last,
    )


def reading(text: str, since: str = "2024-01-01T05:00:00+00:00", **changes: Any) -> Command:
    increment = Increment(
        name="orders", type=StateType.TIMESTAMP, since=since, value=since, revision=1
    )
    increment = structs.replace(increment, **changes)
    return command_of(step_of(text), slice_=StateSlice(increment=increment))


async def completed(worker: Bench, command: Command) -> CommandCompleted:
    fact = (await worker.run(command))[-1]
    assert isinstance(fact, CommandCompleted), fact
    return fact


async def reached(worker: Bench, command: Command) -> tuple[Any, int]:
    state = (await completed(worker, command)).state
    assert state
    return (None if state.value is None else state.value.value), state.rows


async def failed(worker: Bench, command: Command) -> str:
    fact = (await worker.run(command))[-1]
    assert isinstance(fact, CommandFailed), fact
    assert fact.error.kind == "validation"
    return fact.error.message


@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
async def test_a_transfer_moves_rows_from_the_bound_on(worker: Bench, db: Any, mode: str) -> None:
    assert await reached(worker, reading(TRANSFER % mode)) == ("2024-01-01T09:00:00+00:00", 5)
    assert await db.fetchval("select array_agg(id order by id) from target") == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_an_attempt_after_one_that_wrote_and_never_reported_neither_loses_nor_doubles(
    worker: Bench, db: Any, mode: str
) -> None:
    first = reading(TRANSFER % mode)
    await completed(worker, first)
    # Nobody heard of it: meanwhile rows come, of which the second attempt writes none.
    await add_rows(db, 10, 12)
    again = structs.replace(first, attempt=2)
    assert await reached(worker, again) == ("2024-01-01T09:00:00+00:00", 5)
    assert await db.fetchval("select array_agg(id order by id) from target") == [5, 6, 7, 8, 9]
    # The next run begins where the first one was, and has them.
    later = reading(TRANSFER % "upsert", "2024-01-01T09:00:00+00:00")
    later = structs.replace(later, activation=2)
    assert await reached(worker, later) == ("2024-01-01T12:00:00+00:00", 4)
    assert await db.fetchval("select count(*) from target") == 8


async def test_rows_that_have_no_such_column_are_not_written(worker: Bench, db: Any) -> None:
    text = (TRANSFER % "append").replace("amount, updated_at", "amount")
    message = await failed(worker, reading(text))
    assert "'updated_at' is no column of the rows, which have amount, id" in message
    assert await db.fetchval("select count(*) from target") == 0


@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
@pytest.mark.parametrize("is_large", [False, True])
async def test_a_query_is_looked_through_wherever_its_rows_are_kept(
    worker: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(stored_parts, "SMALL_BYTES", 1_000)
    at = "timestamptz '2024-01-01T00:00:00Z' + i * interval '1 hour' AS updated_at"
    series = "generate_series(1, 500) AS r (i)" if kind == "postgres" else "range(1, 501) AS r (i)"
    query = f"SELECT i, repeat('x', 40) AS pad, {at} FROM {series} ORDER BY i DESC"
    place = "auth: db" if kind == "postgres" else 'database: ":memory:"'
    text = f"""{HEAD % ""}      kind: {kind}
      {place}
      output: {{format: arrow}}
      query: "{query}"
"""
    fact = await completed(worker, reading(text))
    assert fact.state
    assert fact.state.value is not None
    assert (fact.state.value.value, fact.state.rows) == ("2024-01-21T20:00:00+00:00", 500)
    is_spread = fact.result.reference is not None and "spread" in fact.result.reference.media_type
    assert is_spread is is_large


async def test_the_pages_of_an_api_count_together(worker: Bench, server: Script) -> None:
    def page(*numbers: int, has_more: bool) -> Any:
        orders = [{"id": n, "updated_at": f"2024-01-{n:02}T00:00:00Z"} for n in numbers]
        return says({"orders": orders, "has_more": has_more})

    server.answers(page(7, 9, has_more=True), page(3, has_more=True), page(has_more=False))
    text = f"""{HEAD % ""}      kind: http
      url: "{server.url}/orders"
      params: {{since: "{{{{ increment.since }}}}"}}
      pagination:
        continue_while: "{{{{ response.has_more }}}}"
        next_page: {{params: {{page: "{{{{ iter.calls }}}}"}}}}
        merge_path: orders
        into: orders
"""
    assert await reached(worker, reading(text)) == ("2024-01-09T00:00:00+00:00", 3)
    assert server.seen[0].query == {"since": "2024-01-01T05:00:00+00:00"}


async def test_an_answer_is_looked_through_where_its_rows_are(
    worker: Bench, server: Script
) -> None:
    server.answers(says({"data": {"orders": [{"updated_at": "2024-01-02T00:00:00Z"}]}}))
    tool = f'      kind: http\n      url: "{server.url}"\n'
    text = HEAD % ", rows: data.orders" + tool
    assert await reached(worker, reading(text)) == ("2024-01-02T00:00:00+00:00", 1)
    message = await failed(worker, reading(HEAD % "" + tool))
    assert "has no rows of its own: write where its list is as incremental.rows" in message


async def test_an_answer_without_rows_moves_nothing(worker: Bench, server: Script) -> None:
    server.answers(says([]))
    text = HEAD % "" + f'      kind: http\n      url: "{server.url}"\n'
    assert await reached(worker, reading(text)) == (None, 0)


async def test_what_a_later_transfer_wrote_counts_and_not_what_was_fetched(
    worker: Bench, db: Any, server: Script
) -> None:
    def day(number: int) -> dict[str, Any]:
        return {"id": number, "updated_at": f"2024-01-0{number}T00:00:00Z"}

    server.answers(says([day(1)]), says([day(1), day(2)]))
    text = f"""{HEAD % ""}      - {{name: fetch, kind: http, url: "{server.url}"}}
      - name: store
        kind: transfer
        source: {{type: data, data: "{{{{ fetch.data }}}}"}}
        target: {{type: postgres, auth: db, table: target}}
        mode: upsert
        key: id
"""
    first = reading(text)
    assert await reached(worker, first) == ("2024-01-01T00:00:00+00:00", 1)
    again = structs.replace(first, attempt=2)
    assert await reached(worker, again) == ("2024-01-01T00:00:00+00:00", 1)
    assert await db.fetchval("select array_agg(id) from target") == [1]


async def test_a_file_is_transferred_once_and_its_cursor_stays(worker: Bench, db: Any) -> None:
    text = (TRANSFER % "replace").replace(
        "target: {type: postgres, auth: db, table: target}", "target: {type: file, uri: out.csv}"
    )
    first = reading(text)
    assert await reached(worker, first) == ("2024-01-01T09:00:00+00:00", 5)
    await add_rows(db, 10, 12)
    again = structs.replace(first, attempt=2)
    assert await reached(worker, again) == ("2024-01-01T09:00:00+00:00", 5)


async def test_templates_see_the_range(worker: Bench) -> None:
    text = HEAD % "" + (
        "      kind: postgres\n      auth: db\n"
        "      query: SELECT :since AS since, :until AS until, :is_backfill AS is_backfill,\n"
        "        now() AS updated_at\n"
        '      params: {since: "{{ increment.since }}", until: "{{ increment.until }}",\n'
        '        is_backfill: "{{ increment.is_backfill }}"}\n'
    )
    until = "2024-01-06T00:00:00"
    fact = await completed(worker, reading(text, until=until, is_backfill=True))
    (row,) = (await worker.value(fact.result))["rows"]
    shown = [row["since"], row["until"], str(row["is_backfill"]).lower()]
    assert shown == ["2024-01-01T05:00:00+00:00", until, "true"]
