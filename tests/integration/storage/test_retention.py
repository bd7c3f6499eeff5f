"""Histories leave a real ledger for a real store, and are read from there as if they had not."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, structs
from tests.support.builders import (
    NOON,
    ORGANIZATION,
    TENANT,
    History,
    a_cursor_loop,
    a_failed_run,
    a_shop,
    a_single_step,
)
from tests.support.retaining import (
    MONTH,
    OWNER,
    PARTITION,
    archivist,
    keep,
    make_partition,
    of_the_month,
    replayed,
)
from tests.support.servers import PostgresServer, S3Server
from tests.support.storage import Stores, a_fence, emptied, migrated, postgres_stores
from typer.testing import CliRunner

from noetl_cli.__main__ import app
from noetl_contracts import codec
from noetl_contracts.identity.administration import RecordFilter
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import stored_event
from noetl_storage.archive import parquet
from noetl_storage.archive.archive_reader import ArchivedAudit, ArchivedReader, ArchiveReader
from noetl_storage.archive.archivist import UnitProgress
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.garbage import TTL_MIN, GarbageAge, GarbageCollector
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.errors import HistoryDropped, PayloadCorrupt, StorageMisconfigured
from noetl_storage.ports.retention_ports import RetentionAction, UnitStatus
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.payload_references import PostgresPayloadReferences
from noetl_storage.postgres.ledger.retention import (
    PostgresArchiveIndex,
    PostgresHolds,
    PostgresRetention,
)
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
_COUNT = "select count(*) from noetl.event where execution_id = any($1::bigint[])"
_FORGE = """
update noetl.event
set context = '{"step": "x"}'
where execution_id = $1 and stream_version = 3
"""
_REVIVE = "update noetl.execution set status = 'RUNNING', ended_at = null where execution_id = $1"
_SET_BACK = "update noetl.projection_position set version = version - 1 where execution_id = $1"
_SEND = """
insert into noetl.outbox (execution_id, subject, message_id, data, codec)
values ($1, 's', 'm', '', 'json')
"""
_JUST_ENDED = """
update noetl.execution set ended_at = now() - interval '1 hour' where execution_id = $1
"""


_PLACES_OF = """
select p.low
from noetl.list_places() as p
where p.high > $1 and p.low <= greatest($2::bigint, $3, $4)
"""


class World(Struct, frozen=True, kw_only=True):
    """A ledger with a few histories that have ended, and a store beside it."""

    dsn: str
    database: Database
    stores: Stores
    url: str
    store: PayloadStore
    histories: list[History]

    @property
    def executions(self) -> list[ExecutionId]:
        return [history.execution_id for history in self.histories]

    def reader(self) -> ArchivedReader:
        return ArchivedReader(PostgresLedger(self.database), self.archive())

    def audit(self) -> ArchivedAudit:
        return ArchivedAudit(PostgresLedgerAudit(self.database), self.archive())

    def archive(self) -> ArchiveReader:
        return ArchiveReader(PostgresArchiveIndex(self.database), self.store)

    async def run(self, **terms: Any) -> list[UnitProgress]:
        told: list[UnitProgress] = []
        await archivist(
            PostgresRetention(self.database),
            PostgresLedgerAudit(self.database),
            self.store,
            **terms,
        ).archive_all_due(told.append)
        return told

    async def count(self, *executions: ExecutionId) -> int:
        wanted = [int(execution) for execution in executions or self.executions]
        value: int = await self.database.get_value(_COUNT, wanted)
        return value

    async def has_partition(self) -> bool:
        query = f"select to_regclass('noetl.{PARTITION}') is not null"
        return bool(await self.database.get_value(query))


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> Iterator[str]:
    async def make() -> str:
        dsn = await postgres.create_database("retention")
        async with migrated(dsn):
            return dsn

    yield asyncio.run(make())
    asyncio.run(postgres.drop_database("retention"))


@asynccontextmanager
async def a_world(dsn: str, url: str, **keys: str) -> AsyncIterator[World]:
    async with emptied(dsn) as database, open_payloads(url, **keys) as store:
        await make_partition(database)
        stores = postgres_stores(database)
        stories = [a_single_step(), a_cursor_loop(), a_failed_run(), a_shop()]
        histories = [of_the_month(item, number) for number, item in enumerate(stories)]
        fence = await a_fence(stores)
        for history in histories:
            await keep(stores, fence, history)
        yield World(
            dsn=dsn, url=url, database=database, stores=stores, store=store, histories=histories
        )


@pytest.fixture
async def world(dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(dsn, f"file://{tmp_path / 'payloads'}") as made:
        yield made


async def checksums(world: World) -> list[Any]:
    """What every history comes to."""
    return [await replayed(world.reader(), execution) for execution in world.executions]


async def seen(world: World) -> list[Any]:
    """Everything that anybody asks of the histories."""
    reader, audit = world.reader(), world.audit()
    found: list[Any] = []
    for history in world.histories:
        execution, last = history.execution_id, history.envelopes[-1]
        found += [
            await replayed(reader, execution),
            await audit.read_stored_events(execution),
            await reader.read_events(execution, after_version=3, events_max=2),
            await reader.trace_runs(execution, "fetch", links_max=9),
            await audit.find_version_of(execution, last.event_id),
            await audit.find_version_at(execution, NOON),
            await audit.find_version_at(execution, history.envelopes[2].event_time),
            await audit.list_buckets(execution, buckets=5),
            await reader.find_head(execution),
            await reader.find_by_key(execution, last.idempotency_key or ""),
        ]
        bodies = [envelope.event for envelope in history.envelopes]
        for run in sorted({getattr(body, "run_id", "0") for body in bodies}):
            found.append(await reader.find_outcome(execution, run))
            found.append(await reader.list_item_results(execution, run, results_max=9))
        for stage in sorted({getattr(body, "stage_id", None) or "0" for body in bodies}):
            found.append(await reader.list_frame_results(execution, stage, results_max=9))
    return found


async def test_a_month_leaves_as_a_partition_and_reads_as_before(world: World) -> None:
    before = await seen(world)
    outcome = await world.run()
    assert [item.status for item in outcome] == [
        "planned",
        "archived",
        "verified",
        "detached",
        "dropped",
    ]
    assert not await world.has_partition()
    assert await world.count() == 0
    assert await seen(world) == before
    assert await world.run() == []
    # Nobody walks what has left: the month is no place of the ledger any more.
    assert await world.database.fetch_rows(_PLACES_OF, *map(int, world.executions)) == []
    # What is asked of the read models is answered as ever.
    row = (await world.stores.projections.list_rows("execution", world.executions[0]))[0]
    assert row["status"] == "COMPLETED"


async def test_histories_leave_for_a_bucket_of_s3_alike(dsn: str, s3: S3Server) -> None:
    keys = {"access_key": s3.access_key, "secret_key": s3.secret_key}
    async with a_world(dsn, s3.payload_url, **keys) as world:
        before = await seen(world)
        await world.run()
        assert await world.count() == 0
        assert await seen(world) == before


async def test_rows_go_where_the_partition_has_to_stay(world: World) -> None:
    before, held = await seen(world), world.executions[1]
    await PostgresHolds(world.database).place_hold(
        OWNER, execution_id=held, reason="case 7", who="ann"
    )
    waiting = await world.run()
    assert waiting[-1].status is UnitStatus.VERIFIED
    assert await world.count() == sum(len(history.envelopes) for history in world.histories)
    outcome = await world.run(can_delete=True)
    assert (outcome[-1].status, outcome[-1].histories) == (UnitStatus.DROPPED, 3)
    assert await world.has_partition()
    assert await world.count() == await world.count(held) == len(world.histories[1].envelopes)
    assert await seen(world) == before
    await PostgresHolds(world.database).release_hold(
        OWNER, execution_id=held, reason="closed", who="ann"
    )
    await world.run()
    assert not await world.has_partition()
    assert await seen(world) == before


async def test_a_hold_stops_what_is_already_verified(world: World) -> None:
    holds = PostgresHolds(world.database)
    retention = PostgresRetention(world.database)
    first = await holds.place_hold(OWNER, execution_id=None, reason="court", who="ann")
    assert await holds.place_hold(OWNER, execution_id=None, reason="court", who="bob") == first
    assert await world.run(can_delete=True) == []
    assert await retention.count_due(OWNER, keep_s=0.0) == []
    assert await holds.release_hold(OWNER, execution_id=None, reason="done", who="bob") == first
    assert await holds.release_hold(OWNER, execution_id=None, reason="done", who="bob") is None
    one = await holds.place_hold(
        OWNER, execution_id=world.executions[0], reason="case 7", who="ann"
    )
    # The others are verified and wait for their partition when all of them are to stay.
    assert (await world.run())[-1].status is UnitStatus.VERIFIED
    every = await holds.place_hold(OWNER, execution_id=None, reason="court", who="ann")
    assert await world.run(can_delete=True) == []
    assert await world.count() == sum(len(history.envelopes) for history in world.histories)
    for execution in (world.executions[0], None):
        await holds.release_hold(OWNER, execution_id=execution, reason="done", who="bob")
    assert (await world.run())[-1].status is UnitStatus.DROPPED
    found = await holds.list_holds(OWNER, has_released=True, holds_max=9)
    assert [hold.hold_id for hold in found] == [every, one, first]
    assert {hold.released_by for hold in found} == {"bob"}


async def test_what_was_dropped_says_so(world: World) -> None:
    await PostgresHolds(world.database).set_policy(
        OWNER, keep_days=0, action=RetentionAction.DROP, who="ann"
    )
    await world.run(keep_days=None)
    assert await world.count() == 0
    with pytest.raises(HistoryDropped, match=r"removed by the retention policy"):
        await world.reader().read_events(world.executions[0])
    head = await world.reader().find_head(world.executions[0])
    assert head is not None
    assert head.version == len(world.histories[0].envelopes)


async def test_only_what_is_done_with_may_leave(world: World) -> None:
    retention = PostgresRetention(world.database)
    live, behind, sending, kept = world.executions
    queries = {_REVIVE: live, _SET_BACK: behind, _SEND: sending, _JUST_ENDED: kept}
    for query, execution in queries.items():
        await world.database.execute_statement(query, int(execution))
    assert await retention.count_due(OWNER, keep_s=7200.0) == []
    [due] = await retention.count_due(OWNER, keep_s=0.0)
    assert (due.histories, due.events) == (1, len(world.histories[3].envelopes))


async def test_a_damaged_history_is_held_and_the_others_go(world: World) -> None:
    damaged = world.executions[2]
    await world.database.execute_statement(_FORGE, int(damaged))
    await world.run(can_delete=True)
    assert await world.count() == await world.count(damaged) > 0
    [hold] = await PostgresHolds(world.database).list_holds(OWNER, has_released=False, holds_max=9)
    assert hold.execution_id == damaged
    assert "version 3 is not what was sealed" in hold.reason


async def test_a_unit_that_is_in_doubt_keeps_no_other(world: World) -> None:
    [first, *_] = world.histories
    name = f"archive/v1/tenant={TENANT}/organization={ORGANIZATION}/month={MONTH}/1-0.parquet"
    other = of_the_month(a_failed_run(), 99)
    stranger = parquet.encode(
        [stored_event.to_stored_event(envelope) for envelope in other.envelopes]
    )
    await world.store.put_named(name, stranger, **PLACE)
    with pytest.raises(PayloadCorrupt, match="holds other events"):
        await world.run(histories_max=1, can_delete=True)
    assert await world.count() == await world.count(first.execution_id) == len(first.envelopes)


async def test_what_comes_after_the_archive_follows_it(world: World) -> None:
    await world.run()
    history = world.histories[0]
    whole = of_the_month(history, 0)
    last = whole.envelopes[-1]
    whole.add(structs.replace(last.event))
    await keep(world.stores, await a_fence(world.stores), whole, after=len(history.envelopes))
    read = await world.audit().read_stored_events(history.execution_id)
    assert read == [
        structs.replace(stored_event.to_stored_event(item), ingest_time=there.ingest_time)
        for item, there in zip(whole.envelopes, read, strict=True)
    ]
    outcome = await world.run()
    assert outcome[-1].status is UnitStatus.DROPPED
    assert [
        event.stream_version for event in await world.reader().read_events(history.execution_id)
    ] == [envelope.stream_version for envelope in whole.envelopes]


async def test_the_archivist_needs_no_more_than_its_role(world: World) -> None:
    dsn = f"{world.dsn}?role=noetl_archivist"
    async with open_database(dsn, must_be_durable=False) as database:
        told: list[UnitProgress] = []
        await archivist(
            PostgresRetention(database), PostgresLedgerAudit(database), world.store
        ).archive_all_due(told.append)
        assert told[-1].status is UnitStatus.DROPPED
        for forbidden in (
            "delete from noetl.event",
            "update noetl.archive_unit set status = 'verified'",
            "delete from noetl.legal_hold",
        ):
            with pytest.raises(StorageMisconfigured, match="permission denied"):
                await database.execute_statement(forbidden)


# Before: the first part, the manifest, each step that is noted down, and each way out.
KILLS = [
    ("put_named", 1),
    ("put_named", 3),
    ("advance_unit", 1),
    ("advance_unit", 2),
    ("compact_unit", 1),
    ("compact_unit", 2),
]


@pytest.mark.parametrize(("call", "nth"), KILLS)
async def test_whoever_is_killed_is_followed_by_one_who_finishes(
    dsn: str, tmp_path: Path, call: str, nth: int
) -> None:
    url = f"file://{tmp_path / 'payloads'}"
    async with a_world(dsn, url) as world:
        before = await checksums(world)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tests.support.retaining", dsn, url, call, str(nth)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == -9, done.stderr
        assert await checksums(world) == before
        outcome = await world.run()
        assert outcome[-1].status is UnitStatus.DROPPED
        assert not await world.has_partition()
        assert await checksums(world) == before


async def test_what_only_the_archive_mentions_is_not_collected(world: World) -> None:
    mentioned = await world.store.put_payload(b"an order", media_type="text/plain", **PLACE)
    garbage = await world.store.put_payload(b"nobody wants it", media_type="text/plain", **PLACE)
    history = History(ExecutionId(str(int(world.executions[-1]) + 1)))
    history.start(workload={"ref": mentioned.sha256})
    history.finish()
    await keep(world.stores, await a_fence(world.stores), history)
    await world.run(can_delete=True)
    assert await world.count(history.execution_id) == 0
    collector = GarbageCollector(
        shelf=world.store,
        references=PostgresPayloadReferences(world.database),
        garbage_age=GarbageAge(ttl=TTL_MIN, shelf=TTL_MIN),
    )
    later = datetime.now(UTC) + timedelta(days=30)
    sweep = await collector.sweep_owner(OWNER, now=later, is_dry_run=False)
    assert [content.sha256 for content in sweep.garbage] == [garbage.sha256]
    assert await world.store.read_payload(mentioned) == b"an order"
    assert (await replayed(world.reader(), history.execution_id))["version"] == 2


def typed(world: World, *words: str) -> Any:
    place = ["--postgres", world.dsn, "--payloads", world.url, "--json"]
    done = CliRunner().invoke(app, [*words, *place], catch_exceptions=True)
    if done.exception is not None:
        raise done.exception
    return [codec.decode_json(line) for line in done.stdout.splitlines()]


async def test_a_dry_run_says_what_a_run_then_does(world: World) -> None:
    events = sum(len(history.envelopes) for history in world.histories)
    command = ("retention", "run", "--keep-days", "0")
    [said] = await asyncio.to_thread(typed, world, *command, "--dry-run")
    assert said["plans"][0]["due"] == [{"month": MONTH, "histories": 4, "events": events}]
    assert await world.count() == events
    [done] = await asyncio.to_thread(typed, world, *command)
    assert [item["status"] for item in done["done"]] == ["dropped"]
    assert await world.count() == 0
    # What was projected can be projected anew from the archive.
    rebuilt = await asyncio.to_thread(typed, world, "projection", "rebuild", world.executions[1])
    records = await PostgresAdministrationLog(world.database).list_latest_records(
        RecordFilter(), **PLACE, records_max=4
    )
    assert [record.action for record in records] == [
        "retention.run_begun",
        "retention.run_ended",
        "projection.rebuild_begun",
        "projection.rebuilt",
    ]
    assert records[1].details == {"histories": 4, "events": events}
    assert records[2].target == f"execution {world.executions[1]}"
    assert records[3].details == {"rebuilt": 1, "differed": 0, "orphans": 0}
    assert rebuilt[0]["version"] == len(world.histories[1].envelopes)
    assert rebuilt[0]["differences"] == 0
    await world.stores.projections.clear_execution(world.executions[0])
    behind = await world.stores.projections.list_executions_behind(
        shard=0, shard_count=1, older_than_s=0.0, executions_max=9
    )
    assert behind == []
