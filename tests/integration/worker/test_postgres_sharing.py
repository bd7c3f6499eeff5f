"""Statements whose results nobody reads travel together; each answers for itself."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.attempting import site_of
from tests.support.polling import eventually
from tests.support.working import (
    Bench,
    bench,
    command_of,
    step_of,
)

from noetl_contracts.commands.command_work import ItemWork
from noetl_contracts.ids import FrameId
from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.pipeline.compiled_tasks import compile_pipeline
from noetl_worker.tools.calls.call import Call, Outcome, Timeout

INSERT = "insert into kept (id, part) values ($1, pg_current_xact_id()::text)"


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    async with bench(postgres_connections_max=4) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture
async def table(database: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(database)
    await connection.execute("create table kept (id int primary key check (id <> 13), part text)")
    yield connection
    await connection.close()


async def save(worker: Bench, identity: Any, *, patience_s: float = 10) -> Outcome:
    site = site_of(unit="frame", row_index=0, frame_id=FrameId("1"))
    return await worker.tools.run(
        Call(
            site=site,
            task="save",
            kind="postgres",
            attempt=1,
            visit=1,
            fields={"query": INSERT, "params": [identity]},
            input={},
            auth="db",
            timeout=Timeout(total=patience_s),
            may_share=True,
        )
    )


async def test_concurrent_runs_share_transactions_and_each_is_committed(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    outcomes = await asyncio.gather(*(save(worker, number) for number in range(100, 150)))
    assert [outcome.error for outcome in outcomes] == [None] * 50
    assert await table.fetchval("select count(*) from kept") == 50
    assert await table.fetchval("select count(distinct part) from kept") < 10


async def test_a_run_that_the_database_refuses_fails_alone(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    numbers = [1, 2, 13, 3, 2, 4]
    outcomes = await asyncio.gather(*(save(worker, number) for number in numbers))
    kinds = [None if outcome.error is None else outcome.error.pg_code for outcome in outcomes]
    assert kinds == [None, None, "23514", None, "23505", None]
    found = await table.fetch("select id from kept order by id")
    assert [row["id"] for row in found] == [1, 2, 3, 4]


async def test_a_value_that_does_not_fit_fails_alone(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    outcomes = await asyncio.gather(*(save(worker, value) for value in [1, "many", 2]))
    kinds = [None if outcome.error is None else outcome.error.kind for outcome in outcomes]
    assert kinds == [None, "validation", None]
    assert await table.fetchval("select count(*) from kept") == 2


async def test_a_run_that_waits_too_long_leaves_the_others_their_answers(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    async with table.transaction():
        await table.execute("lock table kept")
        patient = asyncio.ensure_future(save(worker, 1))

        async def waits() -> bool:
            text = "select exists (select from pg_locks where not granted)"
            return bool(await table.fetchval(text))

        await eventually(waits)
        late, later = await asyncio.gather(
            save(worker, 2, patience_s=0.2), save(worker, 3, patience_s=0.2)
        )
        for outcome in (late, later):
            assert outcome.error is not None
            assert outcome.error.kind == "timeout"
    assert (await patient).error is None
    # Whoever gave up before its turn came was not sent at all.
    assert await table.fetchval("select array_agg(id) from kept") == [1]


async def test_a_batch_that_nobody_waits_for_is_taken_back(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    async with table.transaction():
        await table.execute("lock table kept")
        outcome = await save(worker, 1, patience_s=0.2)
    assert outcome.error is not None
    assert outcome.error.kind == "timeout"
    assert (await save(worker, 2)).error is None
    assert await table.fetchval("select array_agg(id) from kept") == [2]


async def test_a_lone_run_waits_for_nobody(worker: Bench, table: "asyncpg.Connection[Any]") -> None:
    outcome = await save(worker, 7)
    assert outcome.error is None
    assert await table.fetchval("select count(*) from kept") == 1


async def test_items_that_nobody_collects_share_transactions(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    step = f"""
  - step: s
    loop: {{in: 30, iterator: i, spec: {{mode: parallel, collect: none}}}}
    tool:
      - {{name: get, kind: noop, result: {{x: 1}}}}
      - name: save
        kind: postgres
        auth: db
        query: "{INSERT}"
        params: ["{{{{ iter.i + 100 }}}}"]
"""
    for index in range(30):
        await worker.send(command_of(step, work=ItemWork(index=index, total=30, item=index)))
    deliveries = await worker.commands.fetch_batch(messages_max=30, wait_s=5)
    await asyncio.gather(*(worker.lane.handle_delivery(delivery) for delivery in deliveries))
    ended = [item for item in await worker.facts() if isinstance(item, CommandCompleted)]
    assert len(ended) == await table.fetchval("select count(*) from kept") == 30
    assert await table.fetchval("select count(distinct part) from kept") < 30


def loop_of(save_task: str, *, collect: str = "none") -> dict[str, Any]:
    return step_of(
        f"""
  - step: s
    loop:
      cursor: {{kind: postgres, auth: db, claim: "select 1"}}
      iterator: row
      spec: {{mode: cursor, collect: {collect}}}
    tool:
      - {{name: get, kind: noop, result: {{x: 1}}}}
      - {save_task}
"""
    )


@pytest.mark.parametrize(
    ("task", "collect", "is_unread"),
    [
        ("{name: save, kind: postgres, auth: db, query: 'select 1'}", "none", True),
        ("{name: save, kind: postgres, auth: db, query: 'select 1'}", "all", False),
        (
            (
                "{name: save, kind: postgres, auth: db, query: 'select 1', "
                "set: {n: '{{ output.row_count }}'}}"
            ),
            "none",
            False,
        ),
        (
            (
                "{name: save, kind: postgres, auth: db, query: 'select 1', spec: {policy: {rules: "
                "[{when: '{{ output.data.row_count == 0 }}', then: {do: fail}}]}}}"
            ),
            "none",
            False,
        ),
        (
            (
                "{name: save, kind: postgres, auth: db, query: 'select 1', spec: {policy: {rules: "
                "[{when: '{{ output.error.retryable }}', then: {do: retry}}]}}}"
            ),
            "none",
            True,
        ),
    ],
)
def test_only_a_result_that_no_template_can_see_may_be_shared(
    task: str,
    collect: str,
    is_unread: bool,  # noqa: FBT001 - a parameter of the case
) -> None:
    block = compile_pipeline(loop_of(task, collect=collect), {})
    assert block.tasks[1].is_result_unread is is_unread


def test_a_later_task_that_names_an_earlier_one_reads_its_result() -> None:
    definition = loop_of("{name: last, kind: noop, result: '{{ get.x }}'}")
    assert compile_pipeline(definition, {}).tasks[0].is_result_unread is False


@pytest.mark.parametrize(("mode", "is_unread"), [("parallel", False), ("chunked", True)])
def test_a_block_on_the_step_reads_what_items_give_and_rows_do_not(
    mode: str, *, is_unread: bool
) -> None:
    """A loop that collects nothing keeps an item for it, and rows of a frame never."""
    definition = step_of(f"""
  - step: s
    output: {{preview_max_bytes: 5}}
    loop: {{in: [1], iterator: i, spec: {{mode: {mode}, collect: none}}}}
    tool: {{kind: postgres, auth: db, query: "select 1"}}
""")
    assert compile_pipeline(definition, {}).tasks[0].is_result_unread is is_unread
