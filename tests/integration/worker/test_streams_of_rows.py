"""Tasks that stream: what they emit, how far ahead, and what they keep in memory."""

import asyncio
import weakref
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from aiohttp import web
from msgspec import structs
from tests.support.polling import eventually
from tests.support.scripted import script
from tests.support.working import Bench, bench, command_of

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, subjects
from noetl_contracts.commands.command_work import (
    Chunk,
    ChunkWork,
    Command,
    StepWork,
    StreamProgress,
)
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ChunkEmitted, CommandCompleted, CommandFailed, Fact
from noetl_playbook.model.playbook import Stream
from noetl_worker.commands.command_lease import CommandLease
from noetl_worker.commands.fact_publisher import AttemptReporter
from noetl_worker.domain import lease_terms
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.pipeline import chunk_emitter
from noetl_worker.pipeline.chunk_emitter import ChunkEmitter

PATIENCE_S = 60.0


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    async with bench() as found:
        await found.put_credential("db", {"dsn": database})
        yield found


class Planner:
    """Takes facts as the planner does, and accepts chunks as a test wants."""

    def __init__(self, worker: Bench, command: Command, *, accepts: int = 10**9) -> None:
        self.found: list[Fact] = []
        self.accepts = accepts
        self.received = command.work.chunks if isinstance(command.work, StepWork) else 0
        self._worker = worker
        self._command = command

    @property
    def chunks(self) -> list[ChunkEmitted]:
        return [fact for fact in self.found if isinstance(fact, ChunkEmitted)]

    async def answer(self) -> None:
        while True:
            for fact in await self._worker.facts():
                self.found.append(fact)
                if isinstance(fact, ChunkEmitted):
                    self.received = max(self.received, fact.index + 1)
            await self.tell()
            await asyncio.sleep(0.01)

    def indexes(self) -> set[int]:
        """The chunks that have come; one that is said again counts once."""
        return {chunk.index for chunk in self.chunks}

    async def until(self, *, chunks: int = 0, repeats: int = 0) -> None:
        """Wait until so many chunks have come, and so many facts that said one again."""

        async def is_there() -> bool:
            new = len(self.indexes())
            return new >= chunks and len(self.chunks) - new >= repeats

        await eventually(is_there, timeout_s=PATIENCE_S)

    async def tell(self) -> None:
        stream_progress = StreamProgress(
            received=self.received, accepted=min(self.received, self.accepts)
        )
        hint = subjects.build_chunk_progress_hint(
            self._command.command_id, stream_progress.encode_token()
        )
        await self._worker.broker.notify(hint)


@asynccontextmanager
async def planner(worker: Bench, command: Command, **how: Any) -> AsyncIterator[Planner]:
    found = Planner(worker, command, **how)
    answering = asyncio.create_task(found.answer())
    try:
        yield found
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        found.found += await worker.facts()


async def attend(worker: Bench, command: Command) -> None:
    await worker.send(command)
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=5)
    async with asyncio.timeout(PATIENCE_S):
        await worker.lane.handle_delivery(delivery)


async def streamed(worker: Bench, text: str, **about: Any) -> Planner:
    command = command_of(text, **about)
    async with planner(worker, command) as found:
        await attend(worker, command)
    return found


async def rows_of(worker: Bench, chunk: ChunkEmitted) -> list[Any]:
    rows: list[Any] = codec.decode_json(await worker.payloads.read_payload(chunk.ref))
    return rows


async def all_rows(worker: Bench, found: Planner) -> list[Any]:
    return [row for chunk in found.chunks for row in await rows_of(worker, chunk)]


def ended(found: Planner) -> CommandCompleted:
    last = found.found[-1]
    assert isinstance(last, CommandCompleted), last
    return last


def refused(found: Planner) -> CommandFailed:
    last = found.found[-1]
    assert isinstance(last, CommandFailed), last
    return last


def step_with(tool: dict[str, Any]) -> str:
    return "- " + codec.encode_text({"step": "s", "tool": tool})


PYTHON = """
- step: s
  tool:
    kind: python
    input: {n: %d}
    code: |
      for i in range(n):
        yield {"i": i}
    stream: {chunk_rows: %d, max_ahead: %d}
"""


async def test_a_generator_gives_chunks_while_it_runs(worker: Bench) -> None:
    found = await streamed(worker, PYTHON % (2_500, 1_000, 4))
    shapes = [(chunk.index, chunk.row_count, chunk.has_more) for chunk in found.chunks]
    assert shapes == [(0, 1000, True), (1, 1000, True), (2, 500, False)]
    assert await all_rows(worker, found) == [{"i": i} for i in range(2_500)]
    result = ended(found).result
    assert result.reference is not None
    assert result.reference.row_count == 2_500
    assert result.context["columns"] == ["i"]
    whole = await worker.value(result)
    assert whole["row_count"] == 2_500
    assert whole["rows"] == [{"i": i} for i in range(2_500)]


@pytest.mark.parametrize(
    "code",
    [
        "yield [{'i': 0}, {'i': 1}]\nyield {'i': 2}",
        "def main():\n    yield from ({'i': i} for i in range(3))",
        "async def main():\n    for i in range(3):\n        yield {'i': i}",
        "for i in range(3):\n    await asyncio.sleep(0)\n    yield {'i': i}",
    ],
)
async def test_every_form_of_generator_streams(worker: Bench, code: str) -> None:
    step = {"kind": "python", "code": code, "stream": {"chunk_rows": 2}}
    found = await streamed(worker, step_with(step))
    assert await all_rows(worker, found) == [{"i": 0}, {"i": 1}, {"i": 2}], found.found
    assert [chunk.row_count for chunk in found.chunks] == [2, 1]


async def test_code_that_yields_nothing_is_refused_with_the_way_out(worker: Bench) -> None:
    text = "- {step: s, tool: {kind: python, code: 'result = [1]', stream: {}}}"
    error = refused(await streamed(worker, text)).error
    assert (error.kind, "must yield" in error.message) == ("validation", True)


async def test_a_generator_that_breaks_fails_the_step_after_what_it_gave(worker: Bench) -> None:
    text = PYTHON.replace('yield {"i": i}', 'yield {"i": 6 // (3 - i)}') % (9, 1, 4)
    found = await streamed(worker, text)
    assert refused(found).error.exception_type == "ZeroDivisionError"
    assert await all_rows(worker, found) == [{"i": 2}, {"i": 3}]


async def test_a_producer_waits_until_its_chunks_are_accepted(
    worker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_emitter, "_RESEND_S", 0.05)
    command = command_of(PYTHON % (100, 10, 3))
    async with planner(worker, command, accepts=2) as found, asyncio.TaskGroup() as tasks:
        working = tasks.create_task(attend(worker, command))
        # Chunks 2, 3 and 4 are not accepted: what follows is said again, and nothing new.
        await found.until(chunks=5)
        said_again = len(found.chunks) - 5
        await found.until(repeats=said_again + 3)
        assert found.indexes() == set(range(5))
        assert not working.done()
        found.accepts = 100
        await working
    assert found.indexes() == set(range(10))


async def test_facts_that_are_not_heard_of_are_sent_again(
    worker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_emitter, "_RESEND_S", 0.05)
    command = command_of(PYTHON % (4, 1, 2))
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(attend(worker, command))

        async def is_repeated() -> bool:
            seen.extend(f for f in await worker.facts() if isinstance(f, ChunkEmitted))
            return len([item for item in seen if item.index == 0]) > 1

        seen: list[ChunkEmitted] = []
        await eventually(is_repeated, timeout_s=PATIENCE_S)
        async with planner(worker, command) as found:
            await working
    assert ended(found)


async def test_who_goes_on_with_a_stream_emits_what_follows(worker: Bench) -> None:
    found = await streamed(worker, PYTHON % (50, 10, 2), work=StepWork(chunks=3))
    assert [chunk.index for chunk in found.chunks] == [3, 4]
    assert await all_rows(worker, found) == [{"i": i} for i in range(30, 50)]
    assert (await worker.value(ended(found).result))["row_count"] == 50


async def test_a_retry_emits_what_follows(worker: Bench) -> None:
    text = """
- step: s
  tool:
    kind: python
    input: {n: "{{ _attempt }}"}
    code: |
      for i in range(4):
        if n == 1 and i == 3:
          raise ConnectionError("again")
        yield [{"i": i, "n": n}]
    stream: {chunk_rows: 1}
    spec: {policy: {rules: [{when: "{{ output.error.retryable }}", then: {do: retry}}]}}
"""
    found = await streamed(worker, text)
    assert [(row["i"], row["n"]) for row in await all_rows(worker, found)] == [
        (0, 1),
        (1, 1),
        (2, 2),
        (3, 2),
    ]
    whole = await worker.value(ended(found).result)
    assert [row["n"] for row in whole["rows"]] == [2, 2, 2, 2]


async def test_chunk_bytes_bound_a_chunk_and_a_larger_row_goes_alone(worker: Bench) -> None:
    text = """
- step: s
  tool:
    kind: python
    code: |
      for size in (10, 10, 10, 90, 10):
        yield "x" * size
    stream: {chunk_bytes: 40}
"""
    found = await streamed(worker, text)
    assert [chunk.row_count for chunk in found.chunks] == [2, 1, 1, 1]


async def test_postgres_streams_the_last_statement(worker: Bench) -> None:
    text = """
- step: s
  tool:
    kind: postgres
    auth: db
    params: [2500]
    query: |
      create table numbers (i int, doc jsonb);
      insert into numbers select i, jsonb_build_object('i', i) from generate_series(1, $1::int) i;
      select i, doc from numbers order by i
    stream: {chunk_rows: 1000}
"""
    found = await streamed(worker, text)
    assert [chunk.row_count for chunk in found.chunks] == [1000, 1000, 500]
    assert (await all_rows(worker, found))[1500] == {"i": 1501, "doc": {"i": 1501}}
    whole = await worker.value(ended(found).result)
    assert (whole["row_count"], whole["columns"]) == (2_500, ["i", "doc"])
    assert whole["rows"][2_499]["doc"] == {"i": 2_500}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("create table lost (i int); select 1 / (i - 150) from generate_series(1, 200) i", "22012"),
        ("create table lost (i int); select wrong", "42703"),
    ],
)
async def test_a_statement_that_fails_undoes_those_before(
    worker: Bench, database: str, query: str, code: str
) -> None:
    tool = {"kind": "postgres", "auth": "db", "query": query, "stream": {"chunk_rows": 10}}
    error = refused(await streamed(worker, step_with(tool))).error
    assert error.pg_code == code
    assert error.details is not None
    assert error.details["statement"] == 1
    connection = await asyncpg.connect(database)
    assert await connection.fetchval("select to_regclass('lost')") is None
    await connection.close()


async def test_a_statement_without_rows_streams_nothing(worker: Bench) -> None:
    for query in ("create table t (i int)", "insert into t values (1), (2)"):
        tool = {"kind": "postgres", "auth": "db", "query": query, "stream": {}}
        found = await streamed(worker, step_with(tool))
        assert not found.chunks
        assert (await worker.value(ended(found).result))["rows"] == []
    tool = {"kind": "postgres", "auth": "db", "query": "begin; select 1; commit", "stream": {}}
    assert refused(await streamed(worker, step_with(tool)))


async def test_duckdb_streams_the_last_statement(worker: Bench) -> None:
    text = """
- step: s
  tool:
    kind: duckdb
    database: ":memory:"
    inputs: {given: [{n: 3}]}
    query: |
      create table numbers as select i, i * g.n as t from range(2500) r(i), given g;
      select i, t, (select n from given) as n from numbers order by i
    stream: {chunk_rows: 1000}
"""
    found = await streamed(worker, text)
    assert [chunk.row_count for chunk in found.chunks] == [1000, 1000, 500], found.found
    assert (await all_rows(worker, found))[2_000] == {"i": 2_000, "t": 6_000, "n": 3}
    assert (await worker.value(ended(found).result))["columns"] == ["i", "t", "n"]
    wrong = text.replace("order by i", "order by nothing")
    assert refused(await streamed(worker, wrong)).error.code == "DUCKDB"


def lines(count: int) -> bytes:
    return b"".join(codec.encode_json({"i": i}) + b"\n" for i in range(count))


@asynccontextmanager
async def serving(body: bytes, **headers: str) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for start in range(0, len(body), 1_000):
            await response.write(body[start : start + 1_000])
        return response

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


HTTP = "- {step: s, tool: {kind: http, url: '%s', response_type: %s, stream: {chunk_rows: 100}}}"


@pytest.mark.parametrize("is_packed", [False, True])
async def test_http_streams_lines(worker: Bench, *, is_packed: bool) -> None:
    body = lines(250)[:-1]
    headers = {}
    if is_packed:
        body, headers = zlib.compress(body, wbits=31), {"Content-Encoding": "gzip"}
    async with serving(body, **headers) as url:
        found = await streamed(worker, HTTP % (url, "ndjson"))
    assert [chunk.row_count for chunk in found.chunks] == [100, 100, 50], found.found
    assert await all_rows(worker, found) == [{"i": i} for i in range(250)]
    whole = await worker.value(ended(found).result)
    assert (whole["status_code"], whole["row_count"], len(whole["rows"])) == (200, 250, 250)


async def test_http_refuses_what_has_no_lines(worker: Bench) -> None:
    async with serving(lines(150) + b"{no json\n") as url:
        broken = await streamed(worker, HTTP % (url, "ndjson"))
        wrong = await streamed(worker, HTTP % (url, "json"))
    assert refused(broken).error.kind == "parse"
    assert [chunk.row_count for chunk in broken.chunks] in ([], [100])
    assert refused(wrong).error.kind == "validation"
    async with script() as server:
        found = await streamed(worker, HTTP % (f"{server.url}/missing", "ndjson"))
    assert refused(found).error.kind != "validation"


async def test_an_activation_sees_its_chunk(worker: Bench) -> None:
    reference = await worker.payloads.put_payload(
        b'[{"i":1},{"i":2}]',
        tenant_id=command_of("- {step: s, tool: {kind: noop}}").tenant_id,
        organization_id=command_of("- {step: s, tool: {kind: noop}}").organization_id,
        media_type=JSON_MEDIA_TYPE,
        row_count=2,
    )
    chunk = Chunk(index=7, row_count=2, ref=reference, has_more=True)
    text = """
- step: s
  tool:
    - name: seen
      kind: python
      input:
        index: "{{ chunk.index }}"
        rows: "{{ chunk.rows }}"
        same: "{{ output.data.rows }}"
        count: "{{ chunk.row_count }}"
        more: "{{ chunk.has_more }}"
      code: "result = {'index': index, 'rows': rows, 'same': same == rows, 'n': [count, more]}"
    - name: summed
      kind: duckdb
      database: ":memory:"
      inputs: {c: "{{ chunk.ref }}", d: "{{ chunk.rows }}"}
      query: select (select sum(i) from c) + (select sum(i) from d) as total
"""
    facts_ = await worker.run(command_of(text, work=ChunkWork(index=3, chunk=chunk)))
    last = facts_[-1]
    assert isinstance(last, CommandCompleted), last
    whole = await worker.value(last.result)
    assert whole["seen"] == {
        "index": 7,
        "rows": [{"i": 1}, {"i": 2}],
        "same": True,
        "n": [2, True],
    }
    assert whole["rows"] == [{"total": 6}]


async def test_a_stopped_producer_ends_in_the_middle(worker: Bench) -> None:
    command = command_of(PYTHON % (10_000_000, 10, 2))
    async with planner(worker, command, accepts=1) as found, asyncio.TaskGroup() as tasks:
        working = tasks.create_task(attend(worker, command))
        await found.until(chunks=3)

        async def is_over() -> bool:
            await worker.broker.notify(subjects.build_stop_hint(command.command_id))
            return working.done()

        await eventually(is_over, timeout_s=PATIENCE_S)
    assert isinstance(found.found[-1], facts.CommandStopped)


async def taken(worker: Bench, command: Command) -> CommandLease:
    """Take a command as the lane does, and hold it."""
    await worker.send(command)
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=5)
    lease = lease_terms.fit_lease(lease_s=300, heartbeat_s=30, ack_wait_s=300)
    return CommandLease(delivery, lease=lease, clock=SystemClock())


class Row(dict[str, Any]):
    """A row that tells whether it is still in memory."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # type: ignore[assignment]  # the set asks which one it is


async def test_ten_thousand_rows_stay_within_two_chunks_of_memory(worker: Bench) -> None:
    """Counts the rows that live at each moment in which one is taken or a chunk is stored."""
    command = command_of(PYTHON % (0, 1_000, 4))
    hands = worker.lane._build_services(command, await taken(worker, command))
    reporter = AttemptReporter(
        fact_publisher=worker.lane._lane.fact_publisher, command=command, holder="test"
    )
    emitter = ChunkEmitter(
        command=command,
        emitted_chunks=0,
        stream=Stream(chunk_rows=1_000),
        services=hands,
        reporter=reporter,
    )
    alive = weakref.WeakSet[Row]()
    most = 0
    async with planner(worker, command) as found, asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(
            hands.progress.listen_for_hints(worker.broker, command.command_id)
        )
        for start in range(0, 10_000, 100):
            window = [Row(i=i) for i in range(start, start + 100)]
            for row in window:
                alive.add(row)
            await emitter.write_rows(window)
            most = max(most, len(alive) + len(emitter._rows))
            del window, row
        outcome = await emitter.finish_stream(chunk_emitter.Outcome())
        listening.cancel()
    emitter.close()
    assert outcome.data == {"row_count": 10_000, "columns": ["i"]}
    assert [chunk.row_count for chunk in found.chunks] == [1_000] * 10
    assert most <= 2_000


async def test_a_row_larger_than_any_chunk_is_refused(worker: Bench) -> None:
    command = command_of(PYTHON % (0, 1_000, 4))
    hands = worker.lane._build_services(command, await taken(worker, command))
    reporter = AttemptReporter(
        fact_publisher=worker.lane._lane.fact_publisher, command=command, holder="test"
    )
    emitter = ChunkEmitter(
        command=structs.replace(command, attempt=2),
        emitted_chunks=0,
        stream=Stream(),
        services=hands,
        reporter=reporter,
    )
    with pytest.raises(ToolFailure) as refusal:
        await emitter.write_rows(["x" * (16 * 1024 * 1024)])
    assert refusal.value.error.kind == "payload_too_large"
    emitter.close()
