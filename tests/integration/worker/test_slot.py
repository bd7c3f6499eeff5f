# ruff: noqa: E501 - a playbook reads best with one task to a line
"""The slot protocol: claims from a real table, memory payloads, every way to lose facts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import asyncpg
import pytest
from msgspec import structs
from tests.support.scripted import Script, hangs, says, script
from tests.support.working import (
    EXECUTION,
    ORGANIZATION,
    STAGE,
    TENANT,
    Bench,
    bench,
    command_of,
    step_of,
)

from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Command, OpenFrame, SlotWork
from noetl_contracts.commands.waits import Resume
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import (
    CommandFailed,
    CommandLost,
    CommandParked,
    CommandStarted,
    Fact,
    FrameClosed,
    FrameOpened,
    SlotDry,
)
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_worker.domain.frames import FrameRecord, build_record_name

T = TypeVar("T")

TABLES = """
create table jobs(id int primary key, frame_id text, frame_row int, state text default 'new', runs int default 0);
create unique index jobs_frame on jobs (frame_id, frame_row) where frame_id is not null;
"""
CLAIM = """
        with mine as (
          select id, frame_id, frame_row from jobs where frame_id = {{ __frame_id | sql_literal }}
        ), candidate as (
          select id from jobs where frame_id is null and not exists (select 1 from mine)
          order by id limit {{ __frame_max_rows | int }} for update skip locked
        ), numbered as (select id, row_number() over (order by id) as n from candidate
        ), taken as (
          update jobs j set frame_id = {{ __frame_id | sql_literal }}, frame_row = n
          from numbered where j.id = numbered.id returning j.id, j.frame_id, j.frame_row)
        select * from taken union all select * from mine order by frame_row
"""
DONE = '{name: done, kind: postgres, auth: db, query: "update jobs set state = \'done\', runs = runs + 1 where id = :id", params: {id: "{{ iter.job.id }}"}}'


def loop_of(*tasks: str, claim: str = CLAIM, collect: str = "none") -> dict[str, Any]:
    body = "\n".join(f"      - {task}" for task in tasks or (DONE,))
    return step_of(f"""
  - step: drain
    loop:
      cursor:
        kind: postgres
        auth: db
        claim: {codec.encode_text(claim)}
      iterator: job
      spec: {{mode: cursor, collect: {collect}, frame: {{max_rows: 3}}}}
    tool:
{body}
""")


def slot_of(
    step: dict[str, Any], *, attempt: int = 1, frame: dict[str, Any] | None = None, **work: Any
) -> Command:
    slot = SlotWork(stage_id=STAGE, slot=0, frame={"max_rows": 3, **(frame or {})}, **work)
    return command_of(step, work=slot, attempt=attempt)


def frame_id(index: int) -> ids.FrameId:
    return ids.derive_frame_id(STAGE, slot=0, frame_index=index)


def of(facts: list[Fact], kind: type[T]) -> list[T]:
    return [fact for fact in facts if isinstance(fact, kind)]


@pytest.fixture
async def table(database: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(database)
    await connection.execute(TABLES)
    yield connection
    await connection.close()


@pytest.fixture
async def worker(database: str, table: "asyncpg.Connection[Any]") -> AsyncIterator[Bench]:
    async with bench() as found:
        await found.put_credential("db", {"dsn": database})
        yield found


async def add(table: "asyncpg.Connection[Any]", count: int, *, start: int = 1) -> None:
    await table.execute(
        "insert into jobs(id) select * from generate_series($1::int, $2::int)",
        start,
        start + count - 1,
    )


async def test_a_slot_runs_frames_until_a_claim_is_empty(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 7)
    await worker.send(slot_of(loop_of()))
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    await worker.lane.handle_delivery(delivery)
    batches = [batch.facts for batch in await worker.batches()]
    facts = [fact for batch in batches for fact in batch]
    assert isinstance(facts[0], CommandStarted)
    assert [
        (item.frame_index, item.row_count, item.frame_id) for item in of(facts, FrameOpened)
    ] == [(index, rows, frame_id(index)) for index, rows in enumerate([3, 3, 1])]
    assert [
        (item.frame_index, item.row_count, item.rows_failed) for item in of(facts, FrameClosed)
    ] == [
        (0, 3, 0),
        (1, 3, 0),
        (2, 1, 0),
    ]
    (dry,) = of(facts, SlotDry)
    assert (dry.frames, dry.next_index, facts[-1]) == (3, 3, dry)
    together = [[type(fact) for fact in batch] for batch in batches]
    assert [FrameClosed, FrameOpened] in together
    assert [FrameClosed, SlotDry] in together
    assert await table.fetchval("select count(*) from jobs where runs = 1") == 7


async def test_the_rows_are_recorded_before_the_body_runs(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 2)
    facts = await worker.run(slot_of(loop_of("{kind: python, code: \"raise ValueError('no')\"}")))
    (opened,) = of(facts, FrameOpened)
    data = await worker.payloads.read_payload(opened.rows_ref)
    assert codec.decode_as(data, FrameRecord).rows == [
        {"id": index, "frame_id": frame_id(0), "frame_row": index} for index in (1, 2)
    ]
    named = await worker.payloads.find_named(
        build_record_name(EXECUTION, frame_id(0)), tenant_id=TENANT, organization_id=ORGANIZATION
    )
    assert named == data


def left_open(opened: FrameOpened) -> OpenFrame:
    """The frame as the planner hands it to the next attempt."""
    return OpenFrame(
        frame_id=opened.frame_id,
        frame_index=0,
        rows_ref=opened.rows_ref,
        row_count=opened.row_count,
        dispatches=1,
    )


async def test_an_open_frame_is_replayed_with_exactly_its_rows(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 5)
    before = of(await worker.run(slot_of(loop_of())), FrameOpened)[0]
    await table.execute("update jobs set runs = 0, frame_id = null, frame_row = null where id > 3")
    left = left_open(before)
    facts = await worker.run(slot_of(loop_of(), attempt=2, next_index=0, open_frame=left))
    opened = of(facts, FrameOpened)
    assert [item.frame_index for item in opened][:1] == [0]
    assert (opened[0].rows_ref, opened[0].attempts_before) == (before.rows_ref, 0)
    runs = await table.fetch("select runs from jobs order by id")
    assert [row["runs"] for row in runs][:3] == [2, 2, 2]


async def test_a_record_whose_report_was_lost_decides_which_rows_run(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 3)
    await worker.run(slot_of(loop_of()))
    await add(table, 2, start=10)
    facts = await worker.run(slot_of(loop_of(), attempt=2))
    opened = of(facts, FrameOpened)
    assert [(item.frame_index, item.row_count, item.attempts_before) for item in opened] == [
        (0, 3, 1),
        (1, 2, 0),
    ]
    runs = await table.fetch("select runs from jobs order by id")
    assert [row["runs"] for row in runs] == [2, 2, 2, 1, 1]


async def test_a_record_made_by_someone_else_meanwhile_wins_over_the_claim(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 2)
    rows = [{"id": 2, "frame_id": frame_id(0), "frame_row": 1}]
    data = codec.encode_canonical(FrameRecord(rows=rows, fence=1, root_frame_id=frame_id(0)))
    await worker.payloads.put_named(
        build_record_name(EXECUTION, frame_id(0)),
        data,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
    )
    facts = await worker.run(slot_of(loop_of()))
    opened = of(facts, FrameOpened)[0]
    assert (opened.rows_ref.sha256, opened.row_count, opened.attempts_before) == (
        codec.digest_hex(data),
        1,
        1,
    )


async def test_a_copy_of_a_slot_command_runs_no_row_and_reports_no_frame(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 3)
    command = slot_of(loop_of())
    await worker.run(command)
    facts = await worker.run(command)
    assert of(facts, FrameOpened) == []
    assert of(facts, SlotDry) == []
    assert await table.fetchval("select max(runs) from jobs") == 1
    assert await worker.commands.count_pending() == (0, 0)


async def test_a_slot_command_that_a_broker_forgot_it_handed_over_is_lost_and_not_run_again(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    """A killed NATS Server hands a message over as new that it handed over just before."""
    await add(table, 3)
    await worker.send(slot_of(loop_of()))
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=5)
    await worker.lane.handle_delivery(delivery)
    assert len(of(await worker.facts(), FrameOpened)) == 1
    await worker.lane.handle_delivery(delivery)
    facts = await worker.facts()
    assert [(item.attempt, item.reason) for item in of(facts, CommandLost)] == [(1, "redelivered")]
    assert of(facts, FrameOpened) == []
    assert await table.fetchval("select max(runs) from jobs") == 1


async def second_attempt(
    worker: Bench, table: "asyncpg.Connection[Any]", *, is_known: bool
) -> Command:
    """Run a slot once; return its command's next attempt, which may know of the first's frame."""
    await add(table, 3)
    before = of(await worker.run(slot_of(loop_of())), FrameOpened)[0]
    return slot_of(loop_of(), attempt=2, open_frame=left_open(before) if is_known else None)


@pytest.mark.parametrize("is_known", [True, False], ids=["reported", "unreported"])
async def test_a_copy_of_a_later_attempt_does_not_run_its_frame_again(
    worker: Bench,
    table: "asyncpg.Connection[Any]",
    is_known: bool,  # noqa: FBT001 - a case of this test
) -> None:
    again = await second_attempt(worker, table, is_known=is_known)
    await worker.run(again)
    facts = await worker.run(again)
    assert of(facts, FrameOpened) == []
    assert of(facts, SlotDry) == []
    assert await table.fetchval("select max(runs) from jobs") == 2
    later = structs.replace(again, attempt=3)
    assert len(of(await worker.run(later), FrameOpened)) == 1


async def test_an_attempt_that_arrives_after_a_later_one_runs_nothing(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 3)
    command = slot_of(loop_of())
    for attempt, frames, runs in ((2, 1, 1), (1, 0, 1), (4, 1, 2), (3, 0, 2)):
        facts = await worker.run(structs.replace(command, attempt=attempt))
        assert len(of(facts, FrameOpened)) == frames
        assert await table.fetchval("select max(runs) from jobs") == runs


@pytest.mark.parametrize("is_known", [True, False], ids=["reported", "unreported"])
async def test_attempts_of_which_no_report_arrived_are_told_by_the_next(
    worker: Bench,
    table: "asyncpg.Connection[Any]",
    is_known: bool,  # noqa: FBT001 - a case of this test
) -> None:
    again = await second_attempt(worker, table, is_known=is_known)
    told: list[int] = []
    # Of the fifth, its worker died before it took the frame over.
    for attempt in (2, 3, 4, 6):
        facts = await worker.run(structs.replace(again, attempt=attempt))
        told.append(of(facts, FrameOpened)[0].attempts_before + int(is_known))
    assert told == [1, 2, 3, 4]


async def test_rows_that_a_lost_claim_took_come_back_under_its_identity(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 4)
    await table.execute("update jobs set frame_id = $1, frame_row = 1 where id = 4", frame_id(0))
    facts = await worker.run(slot_of(loop_of(), attempt=2))
    assert [(item.row_count, item.attempts_before) for item in of(facts, FrameOpened)] == [
        (1, 0),
        (3, 0),
    ]


async def test_a_failed_row_fails_its_frame_and_the_others_go_on(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 4)
    task = "{name: check, kind: python, input: {job: \"{{ iter.job }}\"}, code: \"assert job['id'] != 2, 'two is bad'\"}"
    facts = await worker.run(slot_of(loop_of(task, DONE), frame={"row_concurrency": 3}))
    closed = of(facts, FrameClosed)
    assert [(item.row_count, item.rows_failed) for item in closed] == [(3, 1), (1, 0)]
    error = closed[0].error
    assert error is not None
    assert (error.kind, error.step, error.task, error.attempt) == ("assertion", "drain", "check", 1)
    assert error.details is not None
    assert (error.details["row_index"], error.details["frame_id"]) == (1, frame_id(0))
    assert await table.fetchval("select array_agg(id order by id) from jobs where runs = 1") == [
        1,
        3,
        4,
    ]


async def test_rows_not_started_in_time_go_on_in_a_continuation(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 3)
    async with script() as server:
        server.answers(says({}))
        get = f'{{name: get, kind: http, url: "{server.url}/{{{{ iter.job.id }}}}", headers: {{X-Frame: "{{{{ frame.id }}}}", X-Base: "{{{{ frame.base_index }}}}"}}}}'
        facts = await worker.run(slot_of(loop_of(get, DONE), frame={"max_seconds": 0}))
        again = await worker.run(slot_of(loop_of(get), attempt=2))
    closed = of(facts, FrameClosed)
    assert [(item.frame_index, item.row_count) for item in closed] == [(0, 1), (1, 1), (2, 1)]
    assert [item.parent_frame_id for item in of(facts, FrameOpened)] == [
        None,
        frame_id(0),
        frame_id(1),
    ]
    assert await table.fetchval("select count(*) from jobs where runs = 1") == 3
    _keys_survive_a_replay(server)
    assert of(again, FrameClosed)[0].row_count == 3


def _keys_survive_a_replay(server: Script) -> None:
    """A row keeps its key, in a continuation and in a replay of the frame that claimed it."""
    keys: dict[str, set[str]] = {}
    for seen in server.seen:
        keys.setdefault(seen.path, set()).add(seen.headers["Idempotency-Key"])
    assert {path: len(found) for path, found in keys.items()} == {"/1": 1, "/2": 1, "/3": 1}
    assert [seen.headers["X-Base"] for seen in server.seen][:3] == ["0", "1", "2"]


async def test_rows_that_an_untold_attempt_left_and_the_next_one_ran_are_not_run_again(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 3)
    loop = loop_of(collect="all")
    # Nothing of this attempt arrives: it leaves two rows, and then one.
    await worker.run(slot_of(loop, frame={"max_seconds": 0}))
    facts = await worker.run(slot_of(loop, attempt=2, rows_left=0))
    opened, closed = of(facts, FrameOpened), of(facts, FrameClosed)
    assert [(item.row_count, item.parent_frame_id) for item in opened] == [
        (3, None),
        (0, frame_id(0)),
        (0, frame_id(1)),
    ]
    assert [(item.row_count, item.rows_failed, item.rows_left) for item in closed] == [
        (3, 0, 0),
        (0, 0, 0),
        (0, 0, 0),
    ]
    assert all(item.result is not None for item in closed)
    assert await table.fetchval("select sum(runs) from jobs") == 6
    # Its worker dies in the empty one: the next attempt finds it open, and as empty.
    resumed = slot_of(loop, attempt=3, open_frame=left_open(opened[1]), next_index=1, rows_left=0)
    facts = await worker.run(resumed)
    assert of(facts, FrameClosed)[0].row_count == 0
    assert await table.fetchval("select sum(runs) from jobs") == 6


async def test_rows_that_an_untold_attempt_claimed_far_ahead_are_run_by_the_next(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 7)
    # Nothing of this attempt arrives: the claims are its frames 0, 3 and 6.
    lost = await worker.run(slot_of(loop_of(), frame={"max_seconds": 0}))
    assert [item.row_count for item in of(lost, FrameOpened)] == [3, 2, 1, 3, 2, 1, 1]
    closed = of(await worker.run(slot_of(loop_of(), attempt=2, rows_left=0)), FrameClosed)
    assert sum(item.row_count for item in closed) == 7
    assert await table.fetchval("select array_agg(distinct runs) from jobs") == [2]


async def test_a_frame_can_be_processed_as_a_whole(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 4)
    task = '{name: all, kind: postgres, auth: db, query: "update jobs set runs = runs + 1 where id = any(:ids)", params: {ids: "{{ iter.job | map(attribute=\'id\') | list }}"}}'
    facts = await worker.run(slot_of(loop_of(task), frame={"process": "frame"}))
    assert [item.row_count for item in of(facts, FrameClosed)] == [3, 1]
    assert await table.fetchval("select count(*) from jobs where runs = 1") == 4


async def test_collected_results_are_in_row_order(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 3)
    step = loop_of('{kind: noop, result: {id: "{{ iter.job.id }}"}}', collect="all")
    facts = await worker.run(slot_of(step, frame={"row_concurrency": 3}))
    (closed,) = of(facts, FrameClosed)
    assert closed.result is not None
    found = await worker.value(closed.result)
    assert found["results"] == [{"id": 1}, {"id": 2}, {"id": 3}]


async def test_rows_of_one_frame_see_earlier_writes_when_they_run_in_turn(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 3)
    task = '{kind: noop, set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}}'
    facts = await worker.run(slot_of(loop_of(task)))
    assert [item.patch for item in of(facts, FrameClosed)] == [{"n": 3}]


async def test_a_row_of_another_frame_is_an_engine_error(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    facts = await worker.run(
        slot_of(loop_of(claim="\n        select 1 as id, 'other' as frame_id\n"))
    )
    assert isinstance(facts[-1], CommandFailed)
    assert (facts[-1].error.kind, facts[-1].error.retryable) == ("internal", False)


async def test_a_claim_that_meets_its_own_index_is_repeated(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 1)
    await table.execute("""
        create sequence tries;
        create function stumble() returns int language plpgsql as $$ begin
          if nextval('tries') < 3 then raise unique_violation; end if; return 1; end $$;
    """)
    claim = CLAIM.replace("with mine as (", "with s as (select stumble()), mine as (").replace(
        "where frame_id is null", "where frame_id is null and (select * from s) = 1"
    )
    facts = await worker.run(slot_of(loop_of(claim=claim)))
    assert [item.row_count for item in of(facts, FrameClosed)] == [1]


@pytest.mark.parametrize("given", ["'soon'", "0", "-1", "1e300", "'nan'", "[]", "true"])
async def test_a_claims_timeout_that_is_none_fails_the_slot_by_its_name(
    worker: Bench, given: str
) -> None:
    step = loop_of()
    step["loop"]["cursor"]["options"] = {"statement_timeout_s": f"{{{{ {given} }}}}"}
    facts = await worker.run(slot_of(step))
    assert isinstance(facts[-1], CommandFailed)
    assert (facts[-1].error.kind, facts[-1].error.step) == ("validation", "drain")
    assert "loop.cursor.options.statement_timeout_s" in facts[-1].error.message


async def test_a_claim_that_cannot_succeed_fails_the_slot(worker: Bench) -> None:
    facts = await worker.run(slot_of(loop_of(claim="\n        select * from nowhere\n")))
    assert isinstance(facts[-1], CommandFailed)
    assert (facts[-1].error.pg_code, facts[-1].error.step) == ("42P01", "drain")


async def test_a_draining_worker_gives_the_slot_back_after_a_frame(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 9)
    worker.lane.drain_slots()
    facts = await worker.run(slot_of(loop_of()))
    assert isinstance(facts[-1], CommandLost)
    assert facts[-1].is_release
    assert of(facts, SlotDry) == []
    assert await table.fetchval("select count(*) from jobs where frame_id is not null") == 0


COUNT = '{name: count, kind: postgres, auth: db, query: "insert into effects values (:id)", params: {id: "{{ iter.job.id }}"}}'


async def test_a_frame_in_one_transaction_takes_effect_once_however_often_it_runs(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await table.execute("create table effects(id int)")
    await add(table, 5)
    policy = {"transaction": "true", "row_concurrency": 2}
    step = loop_of(COUNT, DONE, '{kind: noop, set: {ctx.last: "{{ iter.job.id }}"}}')
    first = of(await worker.run(slot_of(step, frame=policy)), FrameClosed)
    again = of(await worker.run(slot_of(step, frame=policy, attempt=2)), FrameClosed)
    assert [(item.row_count, item.rows_failed, item.patch) for item in again] == [
        (item.row_count, item.rows_failed, item.patch) for item in first
    ]
    assert await table.fetchval("select count(*) from effects") == 5
    assert await table.fetchval("select count(*) from jobs where runs = 1") == 5
    markers = "select count(*) from noetl_effect where execution_id = $1"
    assert await table.fetchval(markers, EXECUTION) == 2


async def test_a_failed_statement_undoes_itself_alone(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await table.execute("create table effects(id int check (id <> 2))")
    await add(table, 3)
    facts = await worker.run(slot_of(loop_of(COUNT), frame={"transaction": True}))
    (closed,) = of(facts, FrameClosed)
    assert (closed.row_count, closed.rows_failed) == (3, 1)
    assert await table.fetchval("select array_agg(id order by id) from effects") == [1, 3]


@pytest.mark.parametrize("rows_at_once", [1, 3])
async def test_a_lost_transaction_is_run_again_from_its_start(
    worker: Bench, table: "asyncpg.Connection[Any]", rows_at_once: int
) -> None:
    await table.execute("create table effects(id int); create sequence deaths")
    await add(table, 3)
    dies = "{name: dies, kind: postgres, auth: db, query: \"select case when nextval('deaths') = 2 then pg_terminate_backend(pg_backend_pid()) end\"}"
    policy = {"transaction": True, "row_concurrency": rows_at_once}
    facts = await worker.run(slot_of(loop_of(COUNT, dies), frame=policy))
    (closed,) = of(facts, FrameClosed)
    assert (closed.row_count, closed.rows_failed) == (3, 0)
    assert await table.fetchval("select array_agg(id order by id) from effects") == [1, 2, 3]


async def test_a_frame_in_a_transaction_moves_rows_over_another_connection(
    database: str, table: "asyncpg.Connection[Any]"
) -> None:
    await table.execute("create table effects(id int); create table moved(id int)")
    await add(table, 4)
    move = '{name: move, kind: transfer, auth: db, timeout: 10s, source: {type: data, data: [{id: "{{ iter.job.id }}"}]}, target: {type: postgres, table: moved}}'
    policy = {"transaction": True, "row_concurrency": 3}
    async with bench(postgres_connections_max=1) as worker:
        await worker.put_credential("db", {"dsn": database})
        facts = await worker.run(slot_of(loop_of(COUNT, move), frame=policy))
    closed = of(facts, FrameClosed)
    assert [(item.row_count, item.rows_failed) for item in closed] == [(3, 0), (1, 0)]
    for name in ("effects", "moved"):
        found = await table.fetchval(f"select array_agg(id order by id) from {name}")  # noqa: S608 - a name of this test's
        assert found == [1, 2, 3, 4]


async def test_a_lost_lease_leaves_no_effect_behind(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await table.execute("create table effects(id int)")
    await add(table, 2)
    async with script() as server:
        server.answers(hangs())
        wait = f'{{name: get, kind: http, url: "{server.url}"}}'
        await worker.send(slot_of(loop_of(COUNT, wait), frame={"transaction": True}))
        (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(worker.lane.handle_delivery(delivery))
            await server.arrived.wait()
            worker.lane.release_commands()
    assert await table.fetchval("select count(*) from effects") == 0
    facts = await worker.facts()
    assert isinstance(facts[-1], CommandLost)


async def test_a_row_that_waits_lets_the_slot_go_and_another_worker_goes_on_with_it(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 4)
    ask = '{name: ask, kind: playbook, path: family/double, input: {n: "{{ iter.job.id }}"}, spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.told: "{{ output.data.n }}"}}}}]}}}'
    step = loop_of(
        '{name: odd, kind: noop, spec: {policy: {rules: [{when: "{{ iter.job.id != 2 }}", then: {do: jump, to: done}}]}}}',
        ask,
        DONE,
    )
    first = slot_of(step)
    facts = await worker.run(first)
    (opened,) = of(facts, FrameOpened)
    (parked,) = of(facts, CommandParked)
    assert (opened.row_count, parked.wait.task) == (3, "ask")
    assert await table.fetchval("select count(*) from jobs where state = 'done'") == 1
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="python", raw={"n": 4})}, last="t")
    resume = Resume(
        key=parked.wait.key,
        ref=parked.resume_ref,
        status="COMPLETED",
        child_execution_id=EXECUTION,
        result=ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(pipeline_result)
        ),
    )
    left = OpenFrame(
        frame_id=opened.frame_id, frame_index=0, rows_ref=opened.rows_ref, row_count=3, dispatches=1
    )
    again = structs.replace(slot_of(step, attempt=2, open_frame=left), resume=resume)
    facts = await worker.run(again)
    whole, rest = of(facts, FrameClosed)
    assert (whole.row_count, whole.rows_failed, whole.patch) == (3, 0, {"told": 4})
    assert rest.row_count == 1
    assert of(facts, SlotDry)
    assert await table.fetchval("select array_agg(runs order by id) from jobs") == [1, 1, 1, 1]


async def test_a_claim_whose_rows_cannot_be_read_claims_none(
    worker: Bench, table: "asyncpg.Connection[Any]"
) -> None:
    await add(table, 2)
    # Deeper than a value may be nested.
    await table.execute(
        "alter table jobs add about json;"
        " update jobs set about = (repeat('[', 5000) || repeat(']', 5000))::json where id = 2"
    )
    claim = CLAIM.replace("j.frame_row)", "j.frame_row, j.about)").replace(
        "select id, frame_id, frame_row from jobs",
        "select id, frame_id, frame_row, about from jobs",
    )
    facts = await worker.run(slot_of(loop_of(claim=claim)))
    (failed,) = of(facts, CommandFailed)
    assert failed.error.kind == "schema"
    assert "column 'about', row 2" in failed.error.message
    assert await table.fetchval("select count(*) from jobs where frame_id is not null") == 0
    # Once the row can be read, the rows are claimed and run, each once.
    await table.execute("update jobs set about = '{}' where id = 2")
    facts = await worker.run(slot_of(loop_of(claim=claim)))
    assert [item.row_count for item in of(facts, FrameOpened)] == [2]
    assert await table.fetchval("select array_agg(runs) from jobs") == [1, 1]
