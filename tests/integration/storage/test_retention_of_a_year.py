"""A year of histories, some ninety days of them kept: old months leave, and all read as before."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, structs
from tests.support.builders import NOON, History, a_cursor_loop, a_single_step
from tests.support.moving import moved
from tests.support.retaining import OWNER, archivist, keep, replayed
from tests.support.servers import PostgresServer
from tests.support.storage import a_fence, emptied, migrated, postgres_stores

from noetl_contracts.ids import ExecutionId
from noetl_storage.archive.archive_reader import ArchivedReader, ArchiveReader
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.retention_ports import RetentionAction, UnitStatus
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.retention import (
    PostgresArchiveIndex,
    PostgresHolds,
    PostgresRetention,
)

# Histories begin on a month's first two days. The policy ends on the fifteenth of the third month
# back, so that a month is due with all its histories or with none, whatever the day.
MONTHS, STAYING_MONTHS = 12, 2
# Of each month; the second began after its first day.
STORIES = (a_single_step, a_cursor_loop)
_LIST_PARTITIONS = """
select relid::regclass::text as name from pg_partition_tree('noetl.event') where isleaf
"""
# The ledger notes when it was written to, which was now.
_AGE_HEADS = """
update noetl.execution_head as h
set updated_at = e.ended_at
from noetl.execution as e
where e.execution_id = h.execution_id
"""
_COUNT = "select count(*) from noetl.event where execution_id = any($1::bigint[])"


class Month(Struct, frozen=True, kw_only=True):
    """What a month had, and where."""

    start: datetime
    partition: str
    histories: list[History]


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> Iterator[str]:
    async def make() -> str:
        dsn = await postgres.create_database("retention_of_a_year")
        async with migrated(dsn):
            return dsn

    yield asyncio.run(make())
    asyncio.run(postgres.drop_database("retention_of_a_year"))


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    async with emptied(dsn) as opened:
        yield opened


def list_starts(now: datetime) -> list[datetime]:
    """List the first moments of the last twelve months that are over, the oldest first."""
    numbers = [now.year * 12 + now.month - 1 - back for back in range(MONTHS, 0, -1)]
    return [datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC) for number in numbers]


def count_kept_days(now: datetime, starts: list[datetime]) -> int:
    """Give the days from the fifteenth of the last month that is due until now: 77 to 107."""
    return (now - (starts[-STAYING_MONTHS - 1] + timedelta(days=14))).days


async def live_through(database: Database, start: datetime) -> Month:
    """Keep two histories that began in a month, in a partition as the month had it."""
    end = (start + timedelta(days=32)).replace(day=1)
    low = int(await database.get_value("select noetl.snowflake_floor($1)", start))
    high = int(await database.get_value("select noetl.snowflake_floor($1)", end))
    name = f"event_{start:%Y_%m}"
    await database.execute_statement(
        f"create table if not exists noetl.{name} partition of noetl.event "
        f"for values from ({low}) to ({high})"
    )
    stores = postgres_stores(database)
    fence = await a_fence(stores)
    histories = []
    for number, story in enumerate(STORIES):
        told = move_times(story(), start + timedelta(days=number) - NOON)
        execution = ExecutionId(str(low + 1000 + number * 1_000_000))
        histories.append(moved(told, execution))
        await keep(stores, fence, histories[-1])
    return Month(start=start, partition=f"noetl.{name}", histories=histories)


def move_times(history: History, by: timedelta) -> History:
    """Tell the same of another time."""
    other = History(history.execution_id)
    other.envelopes += [
        structs.replace(item, event_time=item.event_time + by) for item in history.envelopes
    ]
    return other


async def list_partitions(database: Database) -> set[str]:
    return {row["name"] for row in await database.fetch_rows(_LIST_PARTITIONS)}


async def replay_all(database: Database, store: PayloadStore, months: list[Month]) -> list[Any]:
    """What every history of the year comes to, with every checksum."""
    archive = ArchiveReader(PostgresArchiveIndex(database), store)
    reader = ArchivedReader(PostgresLedger(database), archive)
    return [
        await replayed(reader, history.execution_id)
        for month in months
        for history in month.histories
    ]


async def test_months_past_their_time_leave_as_partitions_and_replay_the_same(
    database: Database, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    starts = list_starts(now)
    months = [await live_through(database, start) for start in starts]
    await database.execute_statement(_AGE_HEADS)
    due, staying = months[:-STAYING_MONTHS], months[-STAYING_MONTHS:]
    keep_days = count_kept_days(now, starts)
    holds = PostgresHolds(database)
    await holds.set_policy(OWNER, keep_days=keep_days, action=RetentionAction.ARCHIVE, who="ann")
    async with open_payloads(f"file://{tmp_path / 'payloads'}") as store:
        before = await replay_all(database, store, months)
        told: list[Any] = []
        run = archivist(
            PostgresRetention(database), PostgresLedgerAudit(database), store, keep_days=None
        )
        await run.archive_all_due(told.append)
        assert [item.status for item in told].count(UnitStatus.DROPPED) == len(due)
        left = await list_partitions(database)
        assert left & {month.partition for month in months} == {item.partition for item in staying}
        gone = [int(item.execution_id) for month in due for item in month.histories]
        assert await database.get_value(_COUNT, gone) == 0
        assert await replay_all(database, store, months) == before
    folders = {path.name for path in (tmp_path / "payloads").rglob("month=*")}
    assert folders == {f"month={month.start:%Y-%m}" for month in due}
