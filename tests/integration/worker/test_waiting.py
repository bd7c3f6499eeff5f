"""Calls that hold a file, a database or a connection and wait for another: all of them end."""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiohttp import web
from msgspec import structs
from tests.support.attempting import attempt, data_of, files_of, of_organization, site_of
from tests.support.calls import call_of
from tests.support.files import nameless_files
from tests.support.polling import eventually
from tests.support.scripted import script
from tests.support.working import Bench, bench

from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.calls.call import Outcome
from noetl_worker.tools.calls.work_folder import WorkFolder
from noetl_worker.tools.postgres.effects import open_effects

# Longer than anything here takes, and shorter than a test may.
LATE_S = 60


@pytest.fixture
async def db(database: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(database)
    await connection.execute("create table target(i int)")
    yield connection
    await connection.close()


def lock_of(work_directory: Path, name: str) -> Path:
    """The file whose lock says who uses another one."""
    return WorkFolder(work_directory).get_lock_path(files_of(work_directory) / name, site_of())


def is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock as another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def moving(worker: Bench, source: dict[str, Any], target: dict[str, Any]) -> "asyncio.Task[Any]":
    given = {"source": source, "target": target}
    return asyncio.create_task(
        attempt(worker, "transfer", given, auth="db", timeout_s=LATE_S), name="transfer"
    )


async def all_well(*running: "asyncio.Task[Outcome]") -> None:
    for outcome in await asyncio.gather(*running):
        assert outcome.error is None, outcome.error


@pytest.mark.parametrize("mode", ["append", "replace"])
async def test_transfers_into_one_file_take_turns_between_workers(
    tmp_path: Path, mode: str
) -> None:
    path = files_of(tmp_path) / "grow.ndjson"
    path.write_text('{"i":0}\n')
    event = asyncio.Event()

    async def late(_request: web.Request) -> web.StreamResponse:
        await event.wait()
        return web.json_response([{"i": 1}])

    target = {"type": "file", "uri": of_organization("grow.ndjson")}
    async with (
        bench(work_directory=str(tmp_path)) as one,
        bench(work_directory=str(tmp_path)) as other,
        script() as server,
    ):
        server.answers(late)
        slow = moving(one, {"type": "http", "url": server.url}, {**target, "mode": "append"})
        await server.arrived.wait()
        data = {"type": "data", "data": [{"i": 2}]}
        quick = moving(other, data, {**target, "mode": mode})

        async def has_come() -> bool:
            return quick.done() or is_locked(lock_of(tmp_path, "grow.ndjson").with_suffix(".turn"))

        await eventually(has_come)
        event.set()
        await all_well(slow, quick)
    rows = [json.loads(line)["i"] for line in path.read_text().splitlines()]
    assert rows == ([0, 1, 2] if mode == "append" else [2])


async def test_transfers_of_one_worker_into_one_file_lose_nothing(tmp_path: Path) -> None:
    async with bench(work_directory=str(tmp_path)) as worker:
        target = {"type": "file", "uri": of_organization("grow.csv")}
        await all_well(
            *(moving(worker, {"type": "data", "data": [{"i": i}]}, target) for i in range(20))
        )
    lines = (files_of(tmp_path) / "grow.csv").read_text().split()
    assert (lines[0], sorted(map(int, lines[1:]))) == ("i", list(range(20)))


async def test_a_transfer_that_waits_for_a_database_holds_no_place(tmp_path: Path) -> None:
    async with bench(work_directory=str(tmp_path), duckdb_databases_max=1) as worker:
        first, second = of_organization("a.duckdb"), of_organization("b.duckdb")
        for name in (first, second):
            await data_of(worker, "duckdb", {"query": "create table t(i int)", "database": name})
        both = lock_of(tmp_path, "b.duckdb")
        insert = {"query": "insert into t values (1)", "database": second}
        with locked(both):
            # The task has come first for the database that a transfer wants as its second one.
            task = asyncio.create_task(attempt(worker, "duckdb", insert, timeout_s=LATE_S))

            async def is_first() -> bool:
                return is_locked(both.with_suffix(".turn"))

            await eventually(is_first)
            transfer = moving(
                worker,
                {"type": "duckdb", "database": first, "query": "select 2 as i"},
                {"type": "duckdb", "database": second, "table": "t"},
            )

            async def has_its_own() -> bool:
                return is_locked(lock_of(tmp_path, "a.duckdb"))

            await eventually(has_its_own)
        await all_well(task, transfer)
        rows = {"query": "select i from t order by i", "database": second}
        assert (await data_of(worker, "duckdb", rows))["rows"] == [{"i": 1}, {"i": 2}]


@pytest.mark.parametrize("prefix", ["", "noetl://files/"])
async def test_transfers_that_cross_between_workers_end(tmp_path: Path, prefix: str) -> None:
    store = MemoryPayloads()
    first, second = f"{prefix}a.duckdb", f"{prefix}b.duckdb"
    async with (
        bench(store=store, work_directory=str(tmp_path), duckdb_databases_max=2) as one,
        bench(store=store, work_directory=str(tmp_path), duckdb_databases_max=2) as other,
    ):
        for name in (first, second):
            await data_of(one, "duckdb", {"query": "create table t(i int)", "database": name})
        ends = [(first, second), (second, first)] * 4
        await all_well(
            *(
                moving(
                    worker,
                    {"type": "duckdb", "database": source, "query": "select 1 as i"},
                    {"type": "duckdb", "database": target, "table": "t"},
                )
                for source, target in ends
                for worker in (one, other)
            )
        )


class Stuck:
    """A sink that takes no row until it may."""

    window_rows = 10

    def __init__(self) -> None:
        self.has_rows = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.taken: list[Any] = []

    async def write_rows(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        if rows:
            self.taken += rows
            self.has_rows.set()
            await self.may_go_on.wait()


def streaming(
    worker: Bench, kind: str, sink: Stuck, fields: dict[str, Any], *, auth: Any = None
) -> "asyncio.Task[Outcome]":
    call = structs.replace(call_of(kind, fields, auth=auth, timeout_s=60), sink=sink)
    return asyncio.create_task(worker.tools.run(call))


async def test_streams_leave_a_connection_to_who_takes_their_rows(
    database: str, db: "asyncpg.Connection[Any]"
) -> None:
    async with bench(postgres_connections_max=2) as worker:
        await worker.put_credential("db", {"dsn": database})
        sinks = [Stuck(), Stuck()]
        query = {"query": "select 1 as i"}
        streams = [streaming(worker, "postgres", sink, query, auth="db") for sink in sinks]
        pool = await worker.tools.postgres.get_pool("db", site_of())

        async def have_come() -> int:
            return sum(sink.has_rows.is_set() for sink in sinks) + pool.waiting_count == 2

        await eventually(have_come)
        insert = {"query": "insert into target values (1)"}
        await data_of(worker, "postgres", insert, auth="db", timeout_s=LATE_S)
        for sink in sinks:
            sink.may_go_on.set()
        await all_well(*streams)


@pytest.mark.parametrize("places", [1, 2])
async def test_streams_leave_a_place_of_duckdb_to_who_takes_their_rows(
    tmp_path: Path, places: int
) -> None:
    async with bench(work_directory=str(tmp_path), duckdb_databases_max=places) as worker:
        sinks = [Stuck() for _ in range(places)]
        query = {"query": "select 1 as i", "database": ":memory:"}
        streams = [streaming(worker, "duckdb", sink, query) for sink in sinks]
        # It asks for its place after the streams did.
        plain = asyncio.create_task(attempt(worker, "duckdb", query, timeout_s=LATE_S))
        await all_well(plain)
        for sink in sinks:
            sink.may_go_on.set()
        await all_well(*streams)


async def test_a_stream_leaves_its_database_to_who_takes_its_rows(tmp_path: Path) -> None:
    """What streams was read before the first row left: it is not changed by what takes it."""
    async with bench(work_directory=str(tmp_path), duckdb_databases_max=1) as worker:
        made = {"query": "create table t as select i from range(1000) r(i)", "database": "one.db"}
        await data_of(worker, "duckdb", made)
        sink = Stuck()
        stream = streaming(worker, "duckdb", sink, {"query": "from t", "database": "one.db"})
        await asyncio.wait_for(sink.has_rows.wait(), LATE_S)
        changed = {"query": "update t set i = -1", "database": "one.db"}
        await data_of(worker, "duckdb", changed, timeout_s=LATE_S)
        sink.may_go_on.set()
        await all_well(stream)
        assert sorted(row["i"] for row in sink.taken) == list(range(1000))


async def test_a_stream_that_is_called_off_gives_its_place_and_disk_back(tmp_path: Path) -> None:
    async with bench(work_directory=str(tmp_path), duckdb_databases_max=1) as worker:
        endless = {"query": "select i, i::text as t from range(1000000000000) r(i)"}
        before = nameless_files()
        stream = streaming(worker, "duckdb", Stuck(), endless)

        async def is_writing() -> bool:
            return bool(nameless_files() - before)

        try:
            await eventually(is_writing)
        finally:
            stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert not nameless_files() - before
        await data_of(worker, "duckdb", {"query": "select 1"}, timeout_s=LATE_S)


READS = {
    "transfer": {
        "source": {"type": "data", "data": [{"i": 1}]},
        "target": {"type": "postgres", "table": "target"},
    },
    "duckdb": {
        "query": "from o",
        "database": ":memory:",
        "inputs": {"o": {"auth": "db", "query": "select count(*) as n from target"}},
    },
}


@pytest.mark.parametrize("most", [1, 2])
async def test_frames_leave_a_connection_to_their_own_tasks(
    database: str, db: "asyncpg.Connection[Any]", most: int
) -> None:
    async with bench(postgres_connections_max=most) as worker:
        await worker.put_credential("db", {"dsn": database})
        tool, ended = worker.tools.postgres, asyncio.Event()
        held = 0

        async def frame(index: int) -> None:
            nonlocal held
            site = site_of(frame_id=f"frame-{index}")
            async with open_effects(tool, auth="db", site=site) as effects:
                assert await effects.begin_effects() is None
                held += 1
                await ended.wait()
                for kind, fields in READS.items():
                    auth = "db" if kind == "transfer" else None
                    await data_of(worker, kind, fields, auth=auth, timeout_s=LATE_S)
                await effects.commit_effects({})

        frames = [asyncio.create_task(frame(index)) for index in range(3)]
        pool = await tool.get_pool("db", site_of())

        async def have_come() -> bool:
            return held + pool.waiting_count == len(frames)

        await eventually(have_come)
        ended.set()
        await asyncio.gather(*frames)
    assert await db.fetchval("select count(*) from target") == len(frames)


BUSY = {**READS, "postgres": {"query": "select 1"}}


@pytest.mark.parametrize("kind", BUSY)
async def test_who_waits_too_long_for_a_connection_hears_for_which(
    database: str, db: "asyncpg.Connection[Any]", kind: str
) -> None:
    async with bench(postgres_connections_max=1, postgres_wait_s=0.05) as worker:
        await worker.put_credential("db", {"dsn": database})
        pool = await worker.tools.postgres.get_pool("db", site_of())
        session = await pool.acquire_session()
        auth = None if kind == "duckdb" else "db"
        found = await attempt(worker, kind, BUSY[kind], auth=auth)
        assert found.error is not None
        assert (found.error.kind, found.error.code) == ("db_connection", "PG_53300")
        assert found.error.retryable
        assert "credential 'db'" in found.error.message
        assert "NOETL_WORKER_POSTGRES_CONNECTIONS_MAX" in found.error.message
        shared = structs.replace(call_of("postgres", BUSY["postgres"], auth="db"), may_share=True)
        assert (await worker.tools.run(shared)).error == found.error
        with pytest.raises(ToolFailure, match="credential 'db'"):
            async with open_effects(worker.tools.postgres, auth="db", site=site_of()):
                pass
        pool.release_session(session, is_sound=True)
        await data_of(worker, kind, BUSY[kind], auth=auth)
